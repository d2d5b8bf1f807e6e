"""`python -m topics.spark` as somebody meets it: help without Spark, one sentence for what is missing, exit codes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import topics.client
from tests.conformance.client import Client, Daemon, until
from tests.spark.cluster import Cluster
from tests.spark.conftest import ROOT
from topics import __version__
from topics.spark import __main__ as program
from topics.spark.secrets import Secret
from topics.spark.session import DaemonAddress, is_local, package_archive

NOBODY = "http://127.0.0.1:1"
SHORT = topics.client.Retry(give_up_after=1)


def spark(
    *arguments: str, python: tuple[str, ...] = ("-m", "topics.spark"), **environ: str
) -> subprocess.CompletedProcess[str]:
    """`python -m topics.spark` to its end, with nothing of ours in its environment but `environ`."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(("TOPICS_", "SPARK_"))}
    return subprocess.run(
        [sys.executable, *python, *arguments],
        cwd=ROOT,
        env=inherited | environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def here(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The same in this process."""
    code = program.run(arguments)
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("job", list(program.JOBS))
def test_every_job_has_a_help_with_examples_that_needs_no_spark(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = here(capsys, job, "--help")
    assert (code, err) == (0, "")
    assert f"Usage: python -m topics.spark {job}" in out
    assert f"python -m topics.spark {job} " in out.partition("Examples:")[2]
    assert "--master" in out


def test_help_and_version_are_there_without_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert all(job in here(capsys, "--help")[1] for job in program.JOBS)
    assert __version__ in here(capsys, "--version")[1]
    code, _, err = here(capsys)
    assert code == 2
    assert "Usage" in err


def test_nothing_of_spark_is_loaded_for_a_help() -> None:
    look = "import sys; from topics.spark.__main__ import run; run(['rollup', '--help']); "
    done = spark(python=("-c", look + "sys.exit(bool({'pyspark', 'pyarrow', 'httpx'} & set(sys.modules)))"))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lode"], "No such command 'lode'"),
        (["load", "a.csv"], "Missing option '--to'"),
        (["load", "a.dat", "--to", "t"], "the name does not say the format"),
        (["load", "a.csv", "--to", "t", "--tag", "{a"], "--tag {a: a brace"),
        (["load", "a.csv", "--to", "t", "--url", "ftp://h"], "--url must be like"),
        (["load", "a.csv", "--to", "t", "--url", "http://u:p@h"], "must not hold a password"),
        (["load", "a.csv", "--to", "t", "--token-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        (["load", "a.csv", "--to", "t", "--token-env", "A", "--token-file", "b"], "exclude each other"),
        (["load", "a.csv", "--to", "t", "--conf", "x"], "'x' is not like"),
        (["archive", "d"], "name topics, or give --prefix"),
        (["archive", "d", "t", "--prefix", "t"], "name topics, or give --prefix"),
        (["rollup", "t", "--window", "1x", "--checkpoint", "c"], "no unit 'x'"),
        (["rollup", "t", "--window", "1h", "--checkpoint", "c"], "give --to-topic, --to-parquet, or both"),
        (["rollup", "t", "--window", "1h", "--checkpoint", "c", "--aggregate", "x"], "--aggregate x"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_started(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = here(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("topics: ")


def test_a_daemon_that_is_not_there_is_noticed_before_spark_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_URL", NOBODY)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setattr(DaemonAddress, "client", lambda address: topics.client.Client(address.url, retry=SHORT))
    code, out, err = here(capsys, "archive", "d", "t")
    assert (code, out) == (6, "")
    assert len(err.splitlines()) == 1


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """A JAVA_HOME with a Java that is too old."""
    found = tmp_path / "bin" / "java"
    found.parent.mkdir()
    found.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    found.chmod(0o755)
    return tmp_path


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A directory that `audit` takes for one of data."""
    (tmp_path / "data" / "wal").mkdir(parents=True)
    return str(tmp_path / "data")


def test_a_missing_or_old_java_is_one_sentence(tmp_path: Path, data: str, java: Path) -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"JAVA_HOME": "/nowhere"}, r"topics: Spark needs Java 17 or later, and .*"),
        ({"JAVA_HOME": "", "PATH": str(tmp_path / "empty")}, r"topics: Spark needs Java 17 or later, and there is .*"),
        ({"JAVA_HOME": str(java)}, r"topics: Spark needs Java 17 or later, and .* is of version 8"),
    ]
    for environ, said in cases:
        done = spark("audit", "--path", data, python=("-m", "topics.spark"), **environ)
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(said + "\n", done.stderr), done.stderr


def test_a_missing_pyspark_is_one_sentence(data: str) -> None:
    hidden = "import importlib.metadata as m, sys; old = m.version\n"
    hidden += "def version(name):\n    if name == 'pyspark': raise m.PackageNotFoundError(name)\n    return old(name)\n"
    hidden += "m.version = version; sys.modules['pyspark'] = None\n"
    hidden += "from topics.spark.__main__ import run; sys.exit(run())"
    done = spark("audit", "--path", data, python=("-c", hidden))
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"topics: .*pyspark.*pip install '\.\[spark\]' in the checkout of topics\n", done.stderr), (
        done.stderr
    )


def test_what_a_task_has_said_is_what_is_told_of_its_failure() -> None:
    wrapped = (
        "Job aborted due to stage failure: Task 0 failed:\nTraceback (most recent call last):\n"
        "  File ...\ntopics.spark.errors.DataLoss: topic 't': 11 to 15 are gone (cap)\n\tat org.apache.spark...\n"
        "Caused by: org.apache.spark.SparkException: something else\n"
    )
    assert program.cause(RuntimeError(wrapped)) == "topic 't': 11 to 15 are gone (cap) (DataLoss)"
    assert program.cause(RuntimeError("[PATH_NOT_FOUND] Path does not exist\nmore")).endswith("Path does not exist")


def test_the_address_of_a_daemon_says_where_its_key_is_and_never_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "secret-key")
    assert DaemonAddress("http://h:1").options() == {"url": "http://h:1"}
    address = DaemonAddress("http://h:1", Secret("env", "A_KEY"))
    assert address.options() == {"url": "http://h:1", "tokenEnv": "A_KEY"}
    assert "secret-key" not in repr(address)


def test_which_masters_are_on_this_machine() -> None:
    assert [
        is_local(master) for master in ("local", "local[2]", "spark://127.0.0.1:7077", "spark://h:7077", "yarn")
    ] == [*(True, True, True, False, False)]


def test_the_package_that_is_shipped_can_be_imported_and_holds_code_only(tmp_path: Path) -> None:
    path = package_archive(tmp_path)
    names = zipfile.ZipFile(path).namelist()
    assert {"topics/spark/source.py", "topics/client/sync.py"} <= set(names)
    assert all(name.endswith(".py") for name in names)


JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CHEAP = ("--conf", f"spark.driver.extraJavaOptions={JAVA}")


@pytest.mark.slow
def test_a_job_on_a_cluster_runs_quietly_and_says_what_it_did(
    http: Client, daemon: Daemon, cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    http.append(topic, *range(10))
    executors = ("--conf", "spark.executor.memory=512m", "--conf", f"spark.executor.extraJavaOptions={JAVA}")
    arguments = ("archive", str(tmp_path / "a"), topic, "--delete", "--master", cluster.url)
    done = spark(*arguments, *CHEAP, *executors, TOPICS_URL=daemon.url)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{topic}: archived to seq 10, 10 deleted\n10 records, 0 gaps\n"
    assert "WARN" not in done.stderr.replace("WARNING: Using incubator", "")
    rows = pq.read_table(next((tmp_path / "a").glob("topic=*/day=*/*.parquet")), columns=["seq", "data"]).to_pylist()
    assert rows == [{"seq": n + 1, "data": str(n)} for n in range(10)]


@pytest.mark.slow
@pytest.mark.more
def test_a_job_that_is_interrupted_stops_in_order(http: Client, daemon: Daemon, tmp_path: Path, topic: str) -> None:
    http.append(topic, *range(10))
    command = [sys.executable, "-m", "topics.spark", "rollup", topic, "--window", "1h", "--url", daemon.url, *CHEAP]
    command += ["--master", "local[1]", "--to-parquet", str(tmp_path / "w"), "--checkpoint", str(tmp_path / "c")]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        committed = tmp_path / "c" / "parquet" / "commits" / "0"
        until(lambda: committed.exists() or running.poll() is not None, within_s=240)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=120)
    finally:
        running.kill()
    assert (running.returncode, out) == (130, "10 records, 0 windows\n"), err
    assert "Traceback" not in err
