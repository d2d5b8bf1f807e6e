"""Servers that speak S3, on loopback, in processes of their own: moto, and versitygw where there is Go."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import pytest

from topics.bucket.bucket_location import open_objects, parse_location
from topics.bucket.object_store import ObjectStore

ROOT: Final = Path(__file__).resolve().parents[2]

BUCKET: Final = "bucket"
ACCESS: Final = "an-access-key"
SECRET: Final = "a-secret-that-nobody-may-see"
TOKEN: Final = "a-session-token-that-nobody-may-see"

START_S: Final = 60.0
TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server with one bucket."""

    endpoint: str
    bucket: str = BUCKET

    def variables(self, **changes: str) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        } | changes

    def objects(self, prefix: str, timeout_s: float = TIMEOUT_S, **changes: str) -> ObjectStore:
        """The objects below a prefix; `changes` are of the variables."""
        return opened(f"s3://{self.bucket}/{prefix}", self.variables(**changes), timeout_s)


def opened(url: str, variables: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> ObjectStore:
    """The store at a URL, with these variables of the provider and no others."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
                patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        return open_objects(parse_location(url, os.environ), timeout_s)


@contextmanager
def moto_server() -> Iterator[S3Server]:
    """Moto, which checks no credentials."""
    port = _free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, port, {}) as endpoint:
        httpx.put(f"{endpoint}/{BUCKET}", timeout=START_S).raise_for_status()
        yield S3Server(endpoint)


@contextmanager
def versity_server(root: Path) -> Iterator[S3Server]:
    """versitygw over a directory, with its metadata in files beside, so that any file system will do."""
    program = versity_program()
    port = _free_port()
    data, sidecar = root / "data", root / "sidecar"
    (data / BUCKET).mkdir(parents=True)
    sidecar.mkdir()
    command = [program, "--port", f"127.0.0.1:{port}", "--quiet", "posix", "--sidecar", str(sidecar), str(data)]
    with _running(command, port, {"ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET}) as endpoint:
        yield S3Server(endpoint)


def versity_program() -> str:
    """The path of versitygw, which is built once for the virtual environment. Skips the test where there is no Go."""
    if shutil.which("go") is None:
        pytest.skip("versitygw is built with Go, which is not here")
    done = subprocess.run(
        [ROOT / "scripts" / "versitygw", Path(sys.prefix) / "share" / "versitygw"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    )
    return done.stdout.strip()


def fresh_prefix() -> str:
    return f"tests/{secrets.token_hex(6)}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def _running(command: Sequence[str], port: int, variables: Mapping[str, str]) -> Iterator[str]:
    """A server in a session of its own, until the end of the context, or until the thread that began it is killed."""
    until_death = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
    server = subprocess.Popen(
        [*until_death, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | dict(variables),
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + START_S
        while not _listens(port):
            assert server.poll() is None, f"{command[0]} has ended"
            assert time.monotonic() < deadline, f"{command[0]} does not listen"
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
