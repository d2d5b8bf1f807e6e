"""The daemon as a process, and a client that knows only what the wire contract says."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx

from tests.processes.forked import Process, start_daemon

CLASSES = ["ephemeral", "memory", "disk", "fsync"]
JSON_TYPE = "application/json"

_numbers = itertools.count(1)


def fresh_name(stem: str = "t") -> str:
    """A name that no other test uses."""
    return f"{stem}-{next(_numbers)}"


class Daemon:
    """A daemon on a directory of its own; it may be ended and started again."""

    defaults: ClassVar[dict[str, object]] = {}
    """Settings of every daemon that does not set them itself."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.root = root
        self.port = 0
        self._process: Process | None = None
        self._environ = {name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")}
        self._environ |= {"TOPICS_DATA_DIR": str(root / "data"), "TOPICS_PORT": "0", "TOPICS_MIN_FREE_BYTES": "0"}
        self._environ |= {"TOPICS_ALLOWED_HOSTS": "x"}  # what requests that are written by hand call it
        settings = self.defaults | settings
        self._environ |= {f"TOPICS_{name.upper()}": str(value) for name, value in settings.items()}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Start it and return when it listens, which may be before it is ready."""
        assert self._process is None
        port_file = self.root / "port"
        port_file.unlink(missing_ok=True)
        with (self.root / "log").open("ab") as log:
            self._process = start_daemon(self._environ | {"TOPICS_PORT_FILE": str(port_file)}, log)
        until(lambda: self._read_port(port_file), within_s=60)

    def _read_port(self, port_file: Path) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the daemon has ended: {self._end_of_log()}")
        text = port_file.read_text().strip() if port_file.exists() else ""
        if text:
            self.port = int(text)
        return bool(text)

    def start(self) -> Client:
        """Start it and return a client once it is ready."""
        self.launch()
        client = Client(self)
        until(lambda: client.get("/v0/ready").status_code == 200, within_s=60)
        return client

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it by its pid and wait until it is gone."""
        assert self._process is not None
        self.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait until it is gone, and say how it ended."""
        assert self._process is not None
        code = self._process.wait(60)
        self._process = None
        return code

    def restart(self, number: signal.Signals) -> Client:
        self.end(number)
        return self.start()

    def kill(self) -> None:
        """End it if it runs, and see that it did not end by itself."""
        if self._process is not None:
            code = self._process.poll()
            self._process.kill()
            self.wait()
            assert code is None, f"the daemon ended with {code}: {self._end_of_log()}"

    def _end_of_log(self) -> str:
        return (self.root / "log").read_text(errors="replace")[-3000:]


@contextmanager
def running(root: Path, **settings: object) -> Iterator[Client]:
    """A client of a daemon that is started for it and ended after it."""
    daemon = Daemon(root, **settings)
    try:
        yield daemon.start()
    finally:
        daemon.kill()


class Client(httpx.Client):
    """httpx with the calls of the contract; each call returns the body of its success."""

    def __init__(self, daemon: Daemon, *, http2: bool = False) -> None:
        # Nothing is encrypted, and to load certificates takes longer than most tests.
        super().__init__(base_url=daemon.url, trust_env=False, verify=False, timeout=60, http1=not http2, http2=http2)
        self.daemon = daemon

    def put_topic(self, topic: str, **config: Any) -> Any:
        return body_of(self.put(f"/v0/topics/{topic}", json=config), 200, 201)

    def state(self, topic: str, **query: Any) -> Any:
        return body_of(self.get(f"/v0/topics/{topic}", params=query))

    def send_append(self, topic: str, *data: Any, **fields: Any) -> httpx.Response:
        fields.setdefault("records", [{"data": value} for value in data])
        return self.post(f"/v0/topics/{topic}", json=fields)

    def append(self, topic: str, *data: Any, **fields: Any) -> Any:
        return body_of(self.send_append(topic, *data, **fields), 200, 201)

    def append_raw(self, topic: str, data: bytes) -> httpx.Response:
        """Append one record whose `data` is exactly these bytes."""
        content = b'{"records":[{"data":' + data + b"}]}"
        return self.post(f"/v0/topics/{topic}", content=content, headers={"content-type": JSON_TYPE})

    def read(self, topic: str, from_seq: int = 0, **fields: Any) -> Any:
        return body_of(self.post(f"/v0/topics/{topic}/diff", json={"from_seq": from_seq, **fields}))

    def delete_records(self, topic: str, **fields: Any) -> Any:
        return body_of(self.post(f"/v0/topics/{topic}/delete", json=fields))

    def delete_topic(self, topic: str, **query: Any) -> Any:
        return body_of(self.delete(f"/v0/topics/{topic}", params=query))

    def tagged(self, topic: str, *tags: str | None) -> None:
        """Append a record for each tag, untagged for None, with the tag as data."""
        self.append(topic, records=[{"data": tag} if tag is None else {"data": tag, "tag": tag} for tag in tags])


def body_of(response: httpx.Response, *statuses: int) -> Any:
    assert response.status_code in (statuses or (200,)), (response.status_code, response.text[:2000])
    assert response.headers["content-type"].split(";")[0] == JSON_TYPE
    return response.json()


def error_of(response: httpx.Response, status: int, *codes: str) -> Any:
    """The inner object of the error envelope, after everything that holds for every failure was checked."""
    assert response.status_code == status, (response.status_code, response.text[:2000])
    assert response.headers["content-type"].split(";")[0] == JSON_TYPE
    return envelope(response.json(), *codes)


def envelope(body: Any, *codes: str) -> Any:
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) <= {"code", "message", "detail"}
    assert {"code", "message"} <= set(error)
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error.get("detail", {}), dict)
    if codes:
        assert error["code"] in codes, error
    return error


def invalid(response: httpx.Response, field: str = "") -> None:
    """It is 400 `invalid_request` and names the field."""
    error = error_of(response, 400, "invalid_request")
    assert field in json.dumps(error, ensure_ascii=False), error


def seqs_of(answer: Any) -> list[int]:
    return [record["$seq"] for record in answer["records"]]


def data_of(answer: Any) -> list[Any]:
    return [record["data"] for record in answer["records"]]


def has_data(response: httpx.Response, data: bytes) -> bool:
    """Whether the answer holds a record whose `data` is written as exactly these bytes."""
    return re.search(rb'"data"\s*:\s*' + re.escape(data) + rb"\s*[,}]", response.content) is not None


def until(condition: Callable[[], bool], *, within_s: float = 40) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it has not come to pass"
        time.sleep(0.01)


def checkpoint(client: Client) -> None:
    """Returns when the checkpoint is on disk."""
    body_of(client.post("/v0/admin/checkpoint"))


class RawConnection:
    """HTTP/1.1 by hand, for what a client library would not send."""

    def __init__(self, client: Client) -> None:
        self.socket = socket.create_connection(("127.0.0.1", client.daemon.port), timeout=40)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_head(self, method: str, target: str, **headers: str) -> None:
        lines = [f"{method} {target} HTTP/1.1", "host: localhost"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def send_until_refused(self, chunk: bytes, most: int) -> None:
        """Send until the other side answers or hangs up, but no more than `most` bytes."""
        self.socket.setblocking(False)
        sent = 0
        deadline = time.monotonic() + 40
        try:
            while sent < most:
                assert time.monotonic() < deadline
                try:
                    sent += self.socket.send(chunk)
                except BlockingIOError:
                    time.sleep(0.001)
                try:
                    if self.socket.recv(1, socket.MSG_PEEK):
                        break
                except BlockingIOError:
                    continue
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            self.socket.settimeout(40)

    def receive(self) -> tuple[int, dict[str, str], bytes]:
        response = http.client.HTTPResponse(self.socket)
        response.begin()
        body = response.read()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, body

    def receive_error(self, status: int, *codes: str) -> Any:
        got, headers, body = self.receive()
        assert got == status, (got, body[:2000])
        assert headers["content-type"].split(";")[0] == JSON_TYPE
        return envelope(json.loads(body), *codes)
