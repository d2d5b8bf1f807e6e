"""A daemon that gives the answers it was told to give, and commands that run in this process and ask it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from topics.cli.app import run


class Asked(NamedTuple):
    """One request as it arrived."""

    method: str
    target: str
    body: Any
    token: str | None


class CannedDaemon:
    """Answers are given in the order in which they were put down for a method and path; the last one stays."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._answers: dict[tuple[str, str], list[tuple[int, bytes, dict[str, str]]]] = {}
        self.url = ""

    def on(self, method: str, path: str, answer: Any, *, status: int = 200, **headers: str) -> None:
        """Put down an answer: what is JSON for it, or the bytes themselves."""
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self._answers.setdefault((method, path), []).append((status, body, headers))

    def refuse(self, method: str, path: str, status: int, code: str, message: str, **detail: Any) -> None:
        """Put down a refusal."""
        self.on(method, path, {"error": {"code": code, "message": message, "detail": detail}}, status=status)

    def answer(self, asked: Asked) -> tuple[int, bytes, dict[str, str]]:
        self.asked.append(asked)
        found = self._answers[asked.method, asked.target.partition("?")[0]]
        return found.pop(0) if len(found) > 1 else found[0]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    daemon: CannedDaemon

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = Asked(self.command, self.path, json.loads(body) if body else None, self.headers.get("Authorization"))
        status, answer, headers = self.daemon.answer(asked)
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json", "Content-Length": str(len(answer))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_POST = do_DELETE = handle_any

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@contextmanager
def canned_daemon() -> Iterator[CannedDaemon]:
    daemon = CannedDaemon()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"daemon": daemon}))
    server.daemon_threads = True
    daemon.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield daemon
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Ended(NamedTuple):
    """What a command has come to."""

    code: int
    out: str
    err: str


class InProcess:
    """Runs commands in this process, against a canned daemon."""

    def __init__(self, daemon: CannedDaemon, capture: pytest.CaptureFixture[str]) -> None:
        self.daemon = daemon
        self._capture = capture

    def __call__(self, *arguments: str) -> Ended:
        self._capture.readouterr()
        code = run(arguments)
        return Ended(code, *self._capture.readouterr())
