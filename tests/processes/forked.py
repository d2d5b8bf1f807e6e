"""Daemons and commands of tests, forked from a process that has imported their code already.

To start `python -m topics` takes 0.5 s of processor, most of it for imports, and the tests start thousands of daemons.
So each worker of pytest has one process (`tests.processes.forking`) that forks them. A forked daemon is a process of
its own, with its own environment, descriptors and signals, and runs the same `main`. It differs in that all modules
are imported at its start. Tests that are about the start, or about terminals and pipes, start Python.

With `TOPICS_TEST_EVERYTHING=1`, and while `scripts/coverage` measures, nothing is forked.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from tempfile import TemporaryFile
from typing import IO, Any, Final, Protocol

from tests.everything import EVERYTHING

PROGRAM: Final = (sys.executable, "-m", "topics")
ANSWER_BYTES: Final = 1000

READ_AT_START: Final = ("LANG", "LC_ALL", "LC_CTYPE", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONPATH", "PYTHONWARNINGS")
"""Variables that Python itself reads when it starts."""


class Process(Protocol):
    """What `subprocess.Popen` and `Forked` have in common, as far as tests need it."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


def start_daemon(environ: Mapping[str, str], log: IO[bytes]) -> Process:
    """Start `python -m topics` with this environment and both outputs in `log`."""
    with open(os.devnull, "rb") as nothing:
        if not _may_fork(environ):
            return subprocess.Popen([*PROGRAM], env=environ, stdin=nothing, stdout=log, stderr=log)
        return _Forking.of_this_process().start([], environ, [nothing, log, log])


def run_command(
    arguments: Sequence[str], environ: Mapping[str, str], given: bytes, timeout_s: float
) -> subprocess.CompletedProcess[bytes]:
    """Run `python -m topics` with these arguments to its end, with `given` on its standard input. Raises
    subprocess.TimeoutExpired."""
    if not _may_fork(environ):
        command = [*PROGRAM, *arguments]
        return subprocess.run(command, env=environ, input=given, capture_output=True, timeout=timeout_s, check=False)
    with TemporaryFile() as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
        stdin.write(given)
        stdin.seek(0)
        process = _Forking.of_this_process().start(arguments, environ, [stdin, stdout, stderr])
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(["topics", *arguments], code, stdout.read(), stderr.read())


def _may_fork(environ: Mapping[str, str]) -> bool:
    """Return False if everything is to be as it is for users, or the interpreter would start in another way."""
    if EVERYTHING or any(name.startswith("COVERAGE_") for name in os.environ):
        return False
    return all(environ.get(name) == os.environ.get(name) for name in READ_AT_START)


class Forked:
    """A child of the forking process, with the calls of `subprocess.Popen`."""

    def __init__(self, forking: _Forking, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._forking = forking
        self._descriptor = os.pidfd_open(pid)
        """It can be read when the process has ended."""
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return how it has ended, or None if it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return how it has ended, when it has. Raises subprocess.TimeoutExpired."""
        code = self._look(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("topics", timeout)
        return code

    def _look(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            if poll.poll(None if timeout_s is None else 1000 * timeout_s):
                with self._lock:
                    if self.returncode is None:
                        self.returncode = self._forking.reap(self.pid)
                        os.close(self._descriptor)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._descriptor, sig)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)


class _Forking:
    """The forking process of this process. It ends when its socket is closed, which is when this process ends."""

    _one: _Forking | None = None
    _owner = 0
    _making = threading.Lock()

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            environ = {name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")}
            command = [sys.executable, "-m", "tests.processes.forking", str(other.fileno())]
            self._process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, pass_fds=[other.fileno()], cwd=os.getcwd()
            )
        self._lock = threading.Lock()

    @classmethod
    def of_this_process(cls) -> _Forking:
        with cls._making:
            if cls._one is None or cls._owner != os.getpid():
                cls._one, cls._owner = cls(), os.getpid()
            return cls._one

    def start(self, arguments: Sequence[str], environ: Mapping[str, str], files: Sequence[IO[bytes]]) -> Forked:
        """Start a child whose standard input, output and error are these files."""
        request = {"arguments": arguments, "environ": dict(environ), "directory": os.getcwd()}
        return Forked(self, int(self._ask(request, [file.fileno() for file in files])))

    def reap(self, pid: int) -> int:
        """How a child that has ended has ended."""
        return int(self._ask({"child": pid}, []))

    def _ask(self, request: Mapping[str, Any], descriptors: list[int]) -> Any:
        blob = json.dumps(request).encode()
        with self._lock:
            socket.send_fds(self._socket, [blob], descriptors)
            answer = self._socket.recv(ANSWER_BYTES)
        if not answer:
            raise RuntimeError(f"the process that forks has ended with {self._process.wait(10)}")
        return json.loads(answer)
