"""A key travels by the name of where it is: nothing that is pickled, printed or logged has it."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.bucket.conftest import moto
from tests.bucket.servers import SECRET, TOKEN, S3Server, fresh_prefix
from tests.spark.buckets import directory_of, put_all
from tests.spark.conftest import ROOT, StartDaemon, settings_of_a_session
from tests.spark.test_bucket_segments import objects_of_left
from tests.spark.test_segments import left
from topics.spark.bucket_access import opened
from topics.spark.bucket_segments import reader_of_path
from topics.spark.options import ReadOptions
from topics.spark.secrets import MissingSecret, Secret

__all__ = ["left", "moto"]  # fixtures

KEY = "k-6d1f0b77e2a94c"


def test_a_reader_of_a_bucket_has_its_url_and_nothing_of_the_environment(
    left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://store.example")
    options = ReadOptions.parsed({"path": "s3://archive/main", "topic": "quick"})
    url = directory_of(objects_of_left(left), tmp_path / "bucket")
    planned = reader_of_path(ReadOptions.parsed({"path": url, "topic": "quick"})).partitions()
    assert planned
    for value in (options, reader_of_path(options), planned):
        assert KEY.encode() not in pickle.dumps(value)
        assert b"store.example" not in pickle.dumps(value)
        assert KEY not in repr(value)
    with pytest.raises(TypeError, match="a store holds credentials, and is not pickled"):
        pickle.dumps(opened("s3://archive/main", None))


def test_a_key_in_the_environment_is_looked_up_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret("env", "SHOP_KEY")
    monkeypatch.setenv("SHOP_KEY", f" {KEY}\n")
    assert secret.resolve() == KEY
    monkeypatch.delenv("SHOP_KEY")
    with pytest.raises(MissingSecret, match="tokenEnv: the variable SHOP_KEY is not set in the process that needs it"):
        secret.resolve()


def test_a_key_in_a_file_may_change_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "key"
    secret = Secret("file", str(file))
    with pytest.raises(MissingSecret, match="cannot be read where it is needed: No such file"):
        secret.resolve()
    file.write_text("old\n")
    assert secret.resolve() == "old"
    file.write_text(f"{KEY}\n")
    assert secret.resolve() == KEY


def test_what_is_no_key_is_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\nand more")
    with pytest.raises(MissingSecret) as failure:
        Secret("file", str(file)).resolve()
    assert KEY not in str(failure.value)


def test_neither_repr_nor_pickle_has_a_key_that_was_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOP_KEY", KEY)
    (tmp_path / "key").write_text(KEY)
    for name, where in (("tokenEnv", "SHOP_KEY"), ("tokenFile", str(tmp_path / "key"))):
        options = ReadOptions.parsed({"url": "http://127.0.0.1:4000", "topic": "t", name: where})
        assert options.daemon is not None
        with options.daemon.connect() as client:
            assert KEY not in repr(client)
        assert KEY.encode() not in pickle.dumps(options)
        assert KEY not in repr(options)


def test_a_literal_key_is_in_no_repr() -> None:
    assert KEY not in repr(ReadOptions.parsed({"url": "http://127.0.0.1:4000", "topic": "t", "token": KEY}))


def test_the_environment_of_the_driver_is_no_secret_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_TOKEN", KEY)
    options = ReadOptions.parsed({"url": "http://127.0.0.1:4000", "topic": "t"})
    assert options.daemon is not None
    with options.daemon.connect() as client:
        assert client.connection.token is None


PROGRAM = """\
import contextlib, io, json, os, sys, urllib.request
from pathlib import Path
from pyspark.sql import SparkSession

url, key_file, settings, bucket = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
builder = SparkSession.builder.master("local[2]").appName("secrets")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
said = io.StringIO()


def processes():
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                said.write((entry / "cmdline").read_text(errors="replace") + "\\n")


def read(**options):
    return spark.read.format("topics").options(url=url, topic="orders", **options)


def of_bucket(path):
    return spark.read.format("topics").options(path=path, topic="quick")


for loaded in (read(tokenEnv="SHOP_KEY"), read(tokenFile=key_file), of_bucket(bucket)):
    frame = loaded.load()
    with contextlib.redirect_stdout(said):
        frame.explain(True)
        frame.explain("formatted")
    print("rows", frame.count())
    processes()
others = (of_bucket(bucket + "/none"), of_bucket(bucket.replace("s3://", "s3://no-")))
for wrong in (read(tokenEnv="WRONG_KEY"), read(tokenEnv="NOT_SET"), read(), *others):
    try:
        wrong.load().count()
    except Exception as error:
        print("failed", str(error).replace("\\n", " "))
ui = spark.sparkContext.uiWebUrl
api = f"{ui}/api/v1/applications/{spark.sparkContext.applicationId}"
for page in ("/jobs/", "/SQL/", "/SQL/execution/?id=0", "/environment/", "/executors/", "/stages/"):
    said.write(urllib.request.urlopen(ui + page, timeout=30).read().decode())
for page in ("/environment", "/sql?details=true&planDescription=true", "/jobs", "/stages?details=true"):
    said.write(urllib.request.urlopen(api + page, timeout=30).read().decode())
spark.stop()
assert "BatchScan topics" in said.getvalue()
print(said.getvalue())
"""


@pytest.mark.slow
def test_spark_shows_a_named_key_nowhere(start_daemon: StartDaemon, tmp_path: Path, left: Path, moto: S3Server) -> None:
    """A session with its UI and its event log, that reads with a key in the environment, with one in a file, and a
    bucket with the credentials in the environment."""
    daemon = start_daemon(api_keys=f"{KEY}")
    (tmp_path / "key").write_text(KEY)
    events = tmp_path / "events"
    events.mkdir()
    settings = settings_of_a_session(tmp_path) | {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{events}",
        "spark.eventLog.compress": "false",
    }
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = httpx.post(f"{daemon.url}/v0/topics/orders", json={"records": [{"data": 1}]}, headers=headers)
    assert answer.status_code == 201
    prefix = fresh_prefix()
    put_all(objects_of_left(left), moto.objects(prefix))
    bucket = f"s3://{moto.bucket}/{prefix}"
    (tmp_path / "program.py").write_text(PROGRAM)
    run = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), daemon.url, str(tmp_path / "key"), json.dumps(settings), bucket],
        env=os.environ
        | moto.variables(AWS_SESSION_TOKEN=TOKEN)
        | {
            "SHOP_KEY": KEY,
            "WRONG_KEY": "k-wrong-9e1",
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert run.stdout.count("rows 1\n") == 2
    assert run.stdout.count("rows 215\n") == 1
    wrong, missing, none, nothing, nowhere = re.findall(r"^failed (.*)$", run.stdout, re.MULTILINE)
    assert "(401 unauthorized)" in wrong
    assert "tokenEnv: the variable NOT_SET is not set in the process that needs it" in missing
    assert "(401 unauthorized)" in none
    assert f"{bucket}/none/FORMAT: it is missing" in nothing
    assert "s3://no-bucket" in nowhere
    written = "".join(file.read_text() for file in events.rglob("*") if file.is_file())
    assert "SparkListenerSQLExecutionStart" in written
    for text in (run.stdout, run.stderr, written):
        assert KEY not in text
        assert "k-wrong-9e1" not in text
        assert SECRET not in text
        assert TOKEN not in text
        assert "AWS4-HMAC" not in text
