"""The command line as an operator meets it: help, versions, starts that are refused, and a daemon driven by nothing
else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine
from tests.conformance.client import until
from topics import __version__
from topics.config import SETTINGS


def topics(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m topics` to its end with no settings in its environment but `environ`."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")}
    return subprocess.run(
        [sys.executable, "-m", "topics", *arguments],
        cwd=cwd,
        env=inherited | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("arguments", [("--help",), ("serve", "--help"), ("-h",)])
def test_the_help_lists_every_setting_with_its_flag_variable_and_default(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    done = topics(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for setting in SETTINGS.values():
        flag = "" if setting.secret else f"{setting.flag}, "
        assert f"  {flag}{setting.variable}  [{setting.default or 'not set'}]" in done.stdout


def test_the_version(tmp_path: Path) -> None:
    assert __version__ in topics("--version", cwd=tmp_path).stdout


@pytest.mark.parametrize("command", [(), ("serve",)])
def test_a_refused_start_names_all_mistakes_exits_2_and_leaves_nothing_behind(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    done = topics(*command, "--port", "70000", cwd=tmp_path, TOPICS_RECOVERY="hope", TOPICS_PORT="x")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--port=70000: must be an integer from 0 to 65535" in done.stderr
    assert "TOPICS_RECOVERY=hope: must be one of strict, salvage" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_bind_that_others_can_reach_is_refused(tmp_path: Path) -> None:
    done = topics("--host", "0.0.0.0", cwd=tmp_path)
    assert done.returncode == 2
    assert "--host" in done.stderr or "TOPICS_HOST" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_malformed_api_keys_refuse_the_start_and_are_not_printed(tmp_path: Path) -> None:
    done = topics(cwd=tmp_path, TOPICS_API_KEYS="s3cr3t:everything")
    assert done.returncode == 2
    assert "TOPICS_API_KEYS" in done.stderr
    assert "s3cr3t" not in done.stdout + done.stderr


def test_there_is_no_flag_for_a_secret(tmp_path: Path) -> None:
    done = topics("--api-keys", "s3cr3t", cwd=tmp_path)
    assert done.returncode == 2
    assert "s3cr3t" not in done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [("--no-such-flag", "1"), ("no-such-command",)])
def test_what_is_not_understood_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = topics(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "no-such" in done.stderr


# ----------------------------------------------------------------- a daemon, driven by the command line alone

KEYS = {"all": "key-of-everything", "reader": "key-of-a-reader"}


@pytest.mark.slow
def test_a_daemon_from_its_start_to_its_end_by_commands_alone(tmp_path: Path) -> None:
    served = {
        "TOPICS_DATA_DIR": str(tmp_path / "data"),
        "TOPICS_API_KEYS": f"{KEYS['all']},{KEYS['reader']}:read",
        "TOPICS_MIN_FREE_BYTES": "0",
    }
    (tmp_path / "key").write_text(KEYS["all"] + "\n")
    with serving(tmp_path, served) as process:
        line = CommandLine(TOPICS_URL=url_of(tmp_path), TOPICS_TOKEN=KEYS["all"])
        nobody = CommandLine(TOPICS_URL=url_of(tmp_path))
        said = [nobody("ls"), line("ls", TOPICS_TOKEN="wrong"), line("create", "x", TOPICS_TOKEN=KEYS["reader"])]
        assert [done.returncode for done in said] == [4, 4, 4]
        assert not any(key in done.stdout + done.stderr for done in said for key in (*KEYS.values(), "wrong"))

        assert nobody("create", "orders", "--ttl", "7d", "--token-file", str(tmp_path / "key")).returncode == 0
        assert line("create", "jobs", "--type", "queue").returncode == 0
        assert line("router", "create", "work", "orders", "jobs", "--tag", "todo").returncode == 0
        lines = "".join(f'{{"n":{n}}}\n' for n in range(300))
        assert line("append", "orders", "--ndjson", "--tag", "todo", input=lines).returncode == 0
        assert line("append", "orders", "the end").returncode == 0
        assert line("read", "orders", "--data-only").stdout == lines + '"the end"\n'
        shown = line.json("show", "orders")
        assert (shown["count"], shown["routers_out"][0]["forwarded_total"]) == (301, 300)

        claimed = line.json("queue", "claim", "jobs", "--node", "me", "--max", "2")["claimed"]
        assert line("queue", "ack", "jobs", "--node", "me", *(str(job["$seq"]) for job in claimed)).returncode == 0
        done = line("queue", "work", "jobs", "--once", "--concurrency", "2", "--max-jobs", "2", "--exec", "cat")
        assert sorted(done.stdout.split()) == ['{"n":2}', '{"n":3}']
        assert line.json("show", "jobs")["queue"]["ready"] == 296

        assert line("delete", "orders", "--before-seq", "100").returncode == 0
        assert line("verify", "--in-use", str(tmp_path / "data")).returncode == 0
        assert line("inspect", str(tmp_path / "data")).returncode == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0

    assert line("ls").returncode == 6
    assert line("verify", str(tmp_path / "data")).returncode == 0
    assert [found["name"] for found in line.json("inspect", str(tmp_path / "data"))["topics"]] == ["jobs", "orders"]

    with serving(tmp_path, served):
        line = CommandLine(TOPICS_URL=url_of(tmp_path), TOPICS_TOKEN=KEYS["all"])
        records = [json.loads(text) for text in line("read", "orders").stdout.splitlines()]
        assert [record["$seq"] for record in records] == list(range(100, 302))
        assert line("rm", "orders", "jobs").returncode == 0
        assert line.json("ls") == {"topics": []}


@contextmanager
def serving(root: Path, settings: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """`topics serve` until the block ends, ready at its beginning; killed if it still runs."""
    port_file = root / "port"
    port_file.unlink(missing_ok=True)
    line = CommandLine(**settings)
    with (root / "log").open("ab") as log:
        flags = ("serve", "--port", "0", "--port-file", str(port_file))
        process = line.start(*flags, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(lambda: port_file.exists() and bool(port_file.read_text().strip()), within_s=60)
        asking = CommandLine(TOPICS_URL=url_of(root), TOPICS_TOKEN=KEYS["all"])
        until(lambda: asking("ls").returncode == 0, within_s=60)
        yield process
    finally:
        process.kill()
        process.wait()


def url_of(root: Path) -> str:
    return f"http://127.0.0.1:{(root / 'port').read_text().strip()}"
