"""A daemon of one's own, for the demonstration and the benchmarks: a child process on a free port."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


class DaemonProcess:
    """`python -m topics` on `data_dir`, from `start()` (returns when it is ready) to `stop()` or `kill()`.

    `settings` are `TOPICS_*` values by lower-case name. As a context manager it is killed at the end if it still runs.
    `program` is what `python -m` runs at the next start: anything that behaves like the daemon. `code` is the directory
    whose modules it has then; None for that of this process. `variables` are further ones of its environment, such as
    those of the provider of a bucket.
    """

    def __init__(self, data_dir: Path, **settings: object) -> None:
        self.data_dir = data_dir
        self.program: tuple[str, ...] = ("topics", "serve")
        self.code: Path | None = None
        self.variables: dict[str, str] = {}
        self.log_path = data_dir.with_name(data_dir.name + ".log")
        self._port_file = data_dir.with_name(data_dir.name + ".port")
        self._environ = {name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")}
        self._environ |= {f"TOPICS_{name.upper()}": str(value) for name, value in settings.items()}
        self._environ |= {
            "TOPICS_DATA_DIR": str(data_dir),
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": str(self._port_file),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> float:
        """Start it and wait until it is ready. Returns the seconds that took."""
        assert self._process is None
        self._port_file.unlink(missing_ok=True)
        began = time.perf_counter()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self.program],
                cwd=self.code,
                env=self._environ | self.variables,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        while not self._is_ready():
            if self._process.poll() is not None:
                raise RuntimeError(f"the daemon ended with {self._process.returncode}:\n{self._end_of_log()}")
            if time.perf_counter() - began > START_TIMEOUT_S:
                raise RuntimeError(f"the daemon is not ready after {START_TIMEOUT_S:.0f} s:\n{self._end_of_log()}")
            time.sleep(0.005)
        return time.perf_counter() - began

    def stop(self) -> float:
        """Ask it to stop, and see that it stopped in order. Returns the seconds that took."""
        began = time.perf_counter()
        code = self._end(signal.SIGTERM)
        if code != 0:
            raise RuntimeError(f"the daemon did not stop in order, but with {code}:\n{self._end_of_log()}")
        return time.perf_counter() - began

    def kill(self) -> None:
        """What a crash would do."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(how)
        code = self._process.wait(STOP_TIMEOUT_S)
        self._process = None
        return code

    def _is_ready(self) -> bool:
        if not self.port_is_known():
            return False
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/v0/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def port_is_known(self) -> bool:
        try:
            text = self._port_file.read_text()
        except FileNotFoundError:
            return False
        if not text.strip():
            return False
        self.port = int(text)
        return True

    def _end_of_log(self) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-20:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
