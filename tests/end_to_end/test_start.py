"""What a start does not wait for: libraries that only some calls need are imported when the daemon is ready."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.cli.command_line import environment
from tests.conformance.client import until

LATE = {
    "hypercorn": "connections that the lane hands over",
    "h2": "hypercorn",
    "h11": "hypercorn, and clients",
    "wsproto": "hypercorn",
    "rich": "tracebacks that the log does not show",
    "quart": "most calls of the control plane",
    "flask": "Quart",
    "werkzeug": "Quart",
    "jinja2": "the page of the interface",
    "prometheus_client": "scrapes",
    "httpx": "clients",
    "pyarrow": "exports as Arrow streams",
    "obstore": "a bucket in S3, GCS or Azure",
    "topics.client": "clients",
    "topics.storage.offline": "inspect and verify",
}
"""Modules, and what needs them."""

SCRIPT = """
import gc, sys, threading
from topics.cli.app import run

def show():  # the daemon calls gc.freeze when it has recovered, right before it is ready
    print(*sorted(LATE & set(sys.modules)), flush=True)
    freeze()

freeze, gc.freeze = gc.freeze, show
code = run(["serve", "--data-dir", sys.argv[1], "--port", "0", "--port-file", sys.argv[1] + ".port", *sys.argv[2:]])
print(*sorted(LATE & set(sys.modules)))
sys.exit(code)
""".replace("LATE", repr(set(LATE)))


@contextmanager
def daemon(data: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A daemon that prints which of these modules it has imported: a line before it is ready, and one at its end."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(data), *options],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_start_imports_none_of_what_only_some_calls_need(tmp_path: Path) -> None:
    with daemon(tmp_path / "data") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"


@pytest.mark.parametrize("target", ["/v0/health", "/v0/topics", "/v0/metrics", "/v0/docs"])
def test_the_first_call_of_each_kind_is_answered_whatever_has_been_imported(tmp_path: Path, target: str) -> None:
    with daemon(tmp_path / "data") as process:
        assert process.stdout is not None
        process.stdout.readline()
        url = f"http://127.0.0.1:{int((tmp_path / 'data.port').read_text())}"
        until(lambda: httpx.get(f"{url}/v0/ready").status_code == 200)
        assert httpx.get(url + target).status_code == 200
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait(20) == 0
    assert {"quart", "prometheus_client", "jinja2", "hypercorn", "wsproto"} <= set(rest.split())


@pytest.mark.parametrize("lane", ["1", "0"])
def test_the_first_connection_that_the_lane_does_not_take_is_served(tmp_path: Path, lane: str) -> None:
    with daemon(tmp_path / "data", "--http-lane", lane) as process:
        assert process.stdout is not None
        port_file = tmp_path / "data.port"
        until(port_file.exists)
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port_file.read_text().strip()}", http1=False, http2=True
        ) as client:
            until(lambda: client.get("/v0/ready").status_code == 200)
            assert client.get("/v0/topics").http_version == "HTTP/2"
