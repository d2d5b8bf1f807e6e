"""A server that speaks S3, on loopback, in a process of its own: versitygw where there is one, else moto.

For the tests, the demonstration and the benchmarks of the bucket. It ends with the context that it was started in.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

BUCKET: Final = "bucket"
ACCESS: Final = "an-access-key"
SECRET: Final = "a-secret-that-nobody-may-see"

START_S: Final = 60.0
BUILD_S: Final = 600.0

PROVIDERS: Final = ("AWS_", "GOOGLE_", "AZURE_")
"""How the variables of providers begin."""


@dataclass(frozen=True, slots=True)
class S3Place:
    """A server with one bucket."""

    name: str
    """Of the program."""
    endpoint: str

    def variables(self) -> dict[str, str]:
        """What the daemon and the command need in their environment."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    def url(self, prefix: str) -> str:
        """What `TOPICS_BUCKET` is for a prefix."""
        return f"s3://{BUCKET}/{prefix}"


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process with these variables and without any other of a provider or of the daemon."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("TOPICS_", *PROVIDERS))}
    return kept | dict(variables)


@contextmanager
def s3_server(root: Path, wanted: str = "") -> Iterator[S3Place]:
    """A server with an empty bucket; versitygw keeps its files below `root`, which it makes.

    `wanted` is `versitygw` or `moto`; empty: versitygw if it is built or can be. Raises RuntimeError if there is none.
    """
    program = None if wanted == "moto" else versitygw_program()
    if program is None and wanted == "versitygw":
        raise RuntimeError("versitygw is built with Go, which is not here")
    port = _free_port()
    if program is None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        with _running(command, port, {}) as endpoint:
            httpx.put(f"{endpoint}/{BUCKET}", timeout=START_S).raise_for_status()
            yield S3Place("moto", endpoint)
        return
    data, sidecar = root / "data", root / "sidecar"
    (data / BUCKET).mkdir(parents=True)
    sidecar.mkdir()
    command = [program, "--port", f"127.0.0.1:{port}", "--quiet", "posix", "--sidecar", str(sidecar), str(data)]
    with _running(command, port, {"ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET}) as endpoint:
        yield S3Place("versitygw", endpoint)


def versitygw_program() -> str | None:
    """The path of versitygw, which is built once for the virtual environment; None without Go."""
    if shutil.which("go") is None:
        return None
    done = subprocess.run(
        [Path(__file__).with_name("versitygw"), Path(sys.prefix) / "share" / "versitygw"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=BUILD_S,
    )
    return done.stdout.strip() if done.returncode == 0 else None


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
        env=environment(variables),
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + START_S
        while not _listens(port):
            if server.poll() is not None:
                raise RuntimeError(f"{command[0]} has ended with {server.returncode}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not listen after {START_S:.0f} s")
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
