"""A client that asks for `/v0/health` over and over on one connection: `python -m benchmarks.health_probe PORT`.

It is a process of its own, so that nothing its parent does is taken for a hold of the daemon's loop. When its standard
input ends, it prints the longest time to an answer, in ms.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

from benchmarks.client import Connection, request_bytes

EVERY_S = 0.002
WARM_UP = 20


class HealthProbe:
    """The probe as seen by its parent. `longest_ms` is there after the end of the `with` block."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._process: subprocess.Popen[str] | None = None
        self.longest_ms = 0.0

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "benchmarks.health_probe", str(self._port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("the health probe did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        assert self._process is not None
        out, _ = self._process.communicate()
        if error is None:
            self.longest_ms = float(out)


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    request = request_bytes("GET", "/v0/health")
    for _ in range(WARM_UP):
        connection.call(request).expect(200)
    print("ready", flush=True)
    longest = 0.0
    while not select.select([0], [], [], EVERY_S)[0] or os.read(0, 1):
        began = time.perf_counter()
        connection.call(request).expect(200)
        longest = max(longest, time.perf_counter() - began)
    print(longest * 1000)


if __name__ == "__main__":
    main()
