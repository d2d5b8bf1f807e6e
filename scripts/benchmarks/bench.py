"""What all benchmarks share: how long, how often, where, and the few calls on the control plane."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from benchmarks.client import Answer, Connection, WrongAnswer, request_bytes
from daemon_process import DaemonProcess


@dataclass(frozen=True, slots=True)
class Bench:
    """One run of `scripts/bench`."""

    directory: Path
    console: Console
    quick: bool
    many: bool = False
    """A benchmark of many cases, each of them shorter."""

    @property
    def repetitions(self) -> int:
        return 2 if self.quick else 3 if self.many else 5

    @property
    def warm_up_s(self) -> float:
        return 0.3 if self.quick else 0.5 if self.many else 1.0

    @property
    def measured_s(self) -> float:
        return 0.7 if self.quick else 1.5 if self.many else 3.0

    def say(self, text: str) -> None:
        self.console.print(f"[dim]{text}[/]", highlight=False)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A directory of our own beside the others, gone afterwards."""
        with tempfile.TemporaryDirectory(dir=self.directory) as name:
            yield Path(name)

    @contextmanager
    def daemon(self, **settings: object) -> Iterator[DaemonProcess]:
        """A daemon on an empty directory, started; it is stopped in order at the end."""
        with self.scratch() as scratch, DaemonProcess(scratch / "data", **quiet(settings)) as daemon:
            daemon.start()
            yield daemon
            daemon.stop()


NEVER_MS = 31_536_000_000
"""An interval that is not over before any benchmark."""

HOLD_MS = 600_000
"""The longest hold there is: as long as it lasts, no file is checkpointed, reclaimed or moved."""

METRICS_REQUEST = b"GET /v0/metrics HTTP/1.1\r\nHost: bench\r\nAccept: application/json\r\n\r\n"

_SEGMENTS = re.compile(rb'^topics_segments\{tier="([a-z]+)"\} ([0-9.]+)', re.MULTILINE)


def quiet(settings: dict[str, object]) -> dict[str, object]:
    """The settings of every daemon here: the defaults, a quieter log, and no worry about the size of a scratch disk."""
    return {"log_level": "warning", "min_free_bytes": 0, **settings}


class Control:
    """Rare calls, made one by one."""

    def __init__(self, port: int) -> None:
        self._connection = Connection(port)

    def call(self, method: str, target: str, body: object = None, *, expect: tuple[int, ...] = (200, 201)) -> Any:
        encoded = b"" if body is None else msgspec.json.encode(body)
        return msgspec.json.decode(self._connection.call(request_bytes(method, target, encoded)).expect(*expect).body)

    def create(self, topic: str, **config: object) -> None:
        self.call("PUT", f"/v0/topics/{topic}", config, expect=(201,))

    def delete(self, topic: str) -> None:
        self.call("DELETE", f"/v0/topics/{topic}", expect=(200,))

    def state(self, topic: str) -> Any:
        return self.call("GET", f"/v0/topics/{topic}?touch=false", expect=(200,))

    def checkpoint(self, hold_ms: int = 0) -> float:
        """Have a checkpoint taken. Returns the seconds that took, the answer with its list of files included."""
        request = request_bytes("POST", f"/v0/admin/checkpoint?hold_ms={hold_ms}")
        began = time.perf_counter()
        answer = self._connection.call(request)
        seconds = time.perf_counter() - began
        answer.expect(200)
        return seconds

    def segments(self) -> dict[str, int]:
        """How many segments there are, by tier."""
        text = self._connection.call(request_bytes("GET", "/v0/metrics")).expect(200).body
        return {tier.decode(): int(float(count)) for tier, count in _SEGMENTS.findall(text)}

    def metrics(self) -> Any:
        """All of them, as JSON."""
        return msgspec.json.decode(self._connection.call(METRICS_REQUEST).expect(200).body)

    def expect_count(self, topic: str, count: int, *, crashed: bool = False) -> None:
        """The daemon must have what it acknowledged, no more and no less.

        After a crash the head of a `disk` topic may stand higher: at the ceiling below which seqs were given out.
        """
        state = self.state(topic)
        if state["count"] != count or state["head_seq"] < count or (state["head_seq"] > count and not crashed):
            raise WrongAnswer(f"{topic}: count {state['count']}, head {state['head_seq']}; acknowledged were {count}")

    def close(self) -> None:
        self._connection.close()


PLAIN_DATA = '"' + "x" * 98 + '"'
"""100 bytes."""


def plain_record(_number: int) -> str:
    return f'{{"data":{PLAIN_DATA}}}'


def full_record(number: int) -> str:
    """Tag, node and meta too."""
    meta = '{"source":"bench","version":"1"}'
    return f'{{"data":{PLAIN_DATA},"tag":"tag-{number:06}","node":"node-{number % 8}","meta":{meta}}}'


def append_request(topic: str, records: list[str]) -> bytes:
    body = ('{"records":[' + ",".join(records) + "]}").encode()
    return request_bytes("POST", f"/v0/topics/{topic}?return_seqs=false", body)


class CountAppended:
    """Checks that every append stored its whole batch; `total` counts warm-up and all."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._expected = b'"count":%d,' % batch
        self.total = 0

    def __call__(self, _connection: int, answer: Answer) -> int:
        answer.expect(200)
        if self._expected not in answer.body.replace(b": ", b":"):
            raise WrongAnswer(f"expected {self._expected!r} in {answer.body[:300]!r}")
        self.total += self._batch
        return self._batch
