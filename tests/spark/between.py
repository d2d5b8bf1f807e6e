"""Somebody between Spark and the daemon who sees every call, and may do something at that moment.

It forwards whole requests and whole answers of HTTP/1.1, so a test can say "when the commit has been answered" where
`tests.client.proxy` could only count bytes. What breaks on one side breaks on the other.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

SILENCE_S = 120.0


@dataclass
class Exchange:
    """A request, and its answer when there is one. `number` counts requests from 0."""

    number: int
    method: str
    path: str
    body: bytes
    status: int = 0
    answer: bytes = b""

    @property
    def is_commit(self) -> bool:
        return self.path.endswith("/commit")

    @property
    def said(self) -> Any:
        return json.loads(self.answer)


class Refused(Exception):
    """An answer that the daemon did not give."""

    def __init__(self, status: int, code: str, retry_after_ms: int) -> None:
        super().__init__(code)
        self.status = status
        self.answer = json.dumps(
            {"error": {"code": code, "message": "not now", "detail": {"retry_after_ms": retry_after_ms}}}
        ).encode()


def _nothing(_: Exchange) -> None:
    return None


class Between:
    """Listens from `with` to its end and forwards to the port that `port()` returns at the moment.

    `asked` is called before a request goes on, `answered` before its answer does; both in the thread of that
    connection, which waits for them. `asked` may raise Refused, which is the answer then. An answer goes nowhere if
    `answered` raises ConnectionError.
    """

    def __init__(self, port: Callable[[], int]) -> None:
        self.asked: Callable[[Exchange], None] = _nothing
        self.answered: Callable[[Exchange], None] = _nothing
        self.exchanges: list[Exchange] = []
        """What was answered, in that order."""
        self._count = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = SILENCE_S

            def log_message(self, format: str, *args: object) -> None:
                return None

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (OSError, http.client.HTTPException):
                    self.close_connection = True

            def _forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with outer._lock:
                    exchange = Exchange(outer._count, self.command, self.path, body)
                    outer._count += 1
                try:
                    outer.asked(exchange)
                except Refused as refusal:
                    self._send(refusal.status, "application/json", refusal.answer)
                    return
                headers = {name: text for name, text in self.headers.items() if name.lower() != "host"}
                with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port(), timeout=SILENCE_S)) as daemon:
                    daemon.request(exchange.method, exchange.path, exchange.body, headers)
                    response = daemon.getresponse()
                    exchange.status, exchange.answer = response.status, response.read()
                with outer._lock:
                    outer.exchanges.append(exchange)
                outer.answered(exchange)
                self._send(response.status, response.headers["Content-Type"], exchange.answer)

            def _send(self, status: int, kind: str, answer: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_PUT = do_DELETE = _forward

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, name="between", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def commits(self) -> list[Exchange]:
        """Those that were answered with a success."""
        with self._lock:
            return [one for one in self.exchanges if one.is_commit and one.status == 200]

    def stages(self) -> set[str]:
        """The names of all stages to which anything was uploaded."""
        with self._lock:
            return {one.path.partition("stage=")[2] for one in self.exchanges if "stage=" in one.path}
