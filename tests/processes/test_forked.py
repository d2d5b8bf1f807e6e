"""A forked daemon or command is what Python would have started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.client import Daemon, until
from tests.everything import EVERYTHING_VARIABLE
from tests.processes.forked import PROGRAM, run_command

COMMANDS = [
    (["--version"], b""),
    (["topic", "nonsense"], b""),
    (["inspect", "/nowhere"], b""),
    (["evidence", "check", "-"], b"1\n"),
]


@pytest.mark.parametrize(("arguments", "given"), COMMANDS, ids=str)
def test_a_command_says_the_same_and_ends_the_same(arguments: list[str], given: bytes) -> None:
    environ = os.environ | {"TOPICS_URL": "http://127.0.0.1:9"}
    forked = run_command(arguments, environ, given, 60)
    started = subprocess.run(
        [*PROGRAM, *arguments], env=environ, input=given, capture_output=True, timeout=60, check=False
    )
    assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)


def test_a_command_that_goes_on_for_too_long_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_command(["tail", "a"], os.environ | {"TOPICS_URL": "http://127.0.0.1:9"}, b"", 0.0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_daemons_have_their_own_settings_and_ends(tmp_path: Path, number: signal.Signals, code: int) -> None:
    roots = [tmp_path / name for name in ("a", "b")]
    for root in roots:
        root.mkdir()
    one, other = (Daemon(root, max_record_bytes=size) for root, size in zip(roots, (2000, 1000), strict=True))
    try:
        first, second = one.start(), other.start()
        first.append("t", "x" * 1500)
        assert second.post("/v0/topics/t", json={"records": [{"data": "x" * 1500}]}).status_code == 400
        assert one.end(number) == code
        second.append("t", 1)
    finally:
        one.kill()
        other.kill()
    assert "Traceback" not in (roots[0] / "log").read_text()


def test_daemons_end_with_the_process_that_has_started_them(tmp_path: Path) -> None:
    program = f"""
import os, pathlib
from tests.conformance.client import Daemon, until
from tests.everything import EVERYTHING_VARIABLE
daemon = Daemon(pathlib.Path({str(tmp_path)!r}))
daemon.start()
print(daemon._process.pid, flush=True)
os._exit(1)
"""
    environ = {
        name: text for name, text in os.environ.items() if not name.startswith((EVERYTHING_VARIABLE, "COVERAGE_"))
    }
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, timeout=60, check=False)
    pid = int(done.stdout)
    until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])


def test_each_daemon_draws_its_own_lease_ids(tmp_path: Path) -> None:
    """What is drawn when a module is imported would be the same in all."""
    leases = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        daemon = Daemon(tmp_path / name)
        try:
            client = daemon.start()
            client.put_topic("jobs", type="queue")
            client.append("jobs", 1)
            claimed = client.post("/v0/topics/jobs/claim", json={"node": "n"}).json()
            leases.append(claimed["claimed"][0]["lease_id"])
        finally:
            daemon.kill()
    assert leases[0] != leases[1]
