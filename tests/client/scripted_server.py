"""A server that answers from a script, so that a test knows what a client sent."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What the scripted server does with one request."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    """Break the connection after so many bytes of the body; -1: before the head."""


@dataclass(frozen=True)
class Sent:
    """A request as it arrived."""

    method: str
    target: str
    body: bytes
    headers: dict[str, str]


def failure(status: int, code: str, retry_after: str | None = "0", **detail: Any) -> Answer:
    body = json.dumps({"error": {"code": code, "message": "said so", "detail": detail}}).encode()
    return Answer(status, body, {} if retry_after is None else {"Retry-After": retry_after})


GONE = Answer(cut=-1)
HALF = Answer(body=b'{"topic":"a","first', cut=9)
HTML = b"<html><h1>Bad gateway</h1></html>"
SHUTTING_DOWN = failure(503, "shutting_down")
THROTTLED = failure(429, "throttled")


class Script:
    """A server that gives one answer after the other, the last one for ever, and keeps what it was sent."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.sent: list[Sent] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                script.sent.append(Sent(self.command, self.path, body, headers))
                answer = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
                if answer.cut is None or answer.cut >= 0:
                    self.send_response(answer.status)
                    for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(answer.body[: answer.cut])
                self.close_connection = answer.cut is not None

            do_GET = do_POST = do_PUT = do_DELETE = handle_any

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Script:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
