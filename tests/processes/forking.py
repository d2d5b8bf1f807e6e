"""The process that forks daemons and commands for one worker of pytest (`tests.processes.forked`). It has imported what
these import, and does nothing but fork and say how its children have ended. It has one thread and no state of a daemon.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import time
from importlib import import_module
from typing import Any, Final, NoReturn

REQUEST_BYTES: Final = 1 << 20

LIBC: Final = ctypes.CDLL(None)
PR_SET_PDEATHSIG: Final = 1

MODULES: Final = (
    "topics.cli.app",
    "topics.daemon",
    "topics.http.answers.metrics",
    "topics.http.connections.protocols.asgi_exchange",
    "topics.http.connections.protocols.handed_over",
    "topics.http.handlers.quart_app",
    "topics.http.handlers.websocket",
    "topics.client",
    "topics.cli.records.append_command",
    "topics.storage.offline.verify",
)
"""Everything that a daemon has imported soon after its start, and most of what commands import."""


def main() -> None:
    """Serve requests from the socket whose descriptor is the first argument, until it is closed."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    for name in MODULES:
        import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page of these objects
    while True:
        blob, descriptors, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 3)
        if not blob:
            return
        request = json.loads(blob)
        if "child" in request:
            _, status = os.waitpid(request["child"], 0)
            connection.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
            continue
        child = os.fork()
        if child == 0:
            connection.close()
            _become_program(request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(json.dumps(child).encode())


def _become_program(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Be what `python -m topics` is with these arguments, this environment and these three descriptors. Unlike that it
    ends with its parent, so a worker that crashes leaves no daemons."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["directory"])
    time.tzset()
    sys.argv = ["topics", *request["arguments"]]
    gc.unfreeze()
    sys.modules["topics.__main__"].main(["serve"])
    raise AssertionError("the command line has returned")


if __name__ == "__main__":
    import_module("topics.__main__")
    main()
