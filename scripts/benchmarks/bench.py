"""What all parts of the benchmark share: how long, how often, where, and the few calls on the control plane.

`Bench.repeat` is the one way in which anything is measured more than once, `Part` what the harness knows of a part.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import msgspec
from rich.console import Console

from benchmarks.client import Answer, Connection, WrongAnswer, request_bytes
from benchmarks.figures import Figure
from daemon_process import DaemonProcess

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


@dataclass(frozen=True, slots=True)
class Bench:
    """One part of one run of `scripts/bench`."""

    directory: Path
    console: Console
    quick: bool
    many: bool = False
    """A part of many cases, each of them shorter, and repeated less often."""
    absent: dict[str, str] = field(default_factory=dict)
    """Keys of figures that cannot be measured here, and why: a program that is not installed."""

    @property
    def repetitions(self) -> int:
        return 2 if self.quick else 3 if self.many else 5

    @property
    def few(self) -> int:
        """Repetitions of what takes long, or has no target."""
        return 1 if self.quick else 2 if self.many else 3

    @property
    def warm_up_s(self) -> float:
        return 0.3 if self.quick else 0.5

    @property
    def measured_s(self) -> float:
        return 0.7 if self.quick else 1.5 if self.many else 2.0

    def repeat(
        self, measure: Callable[[*Arguments], T], *arguments: *Arguments, times: int | None = None, warm_up: int = 0
    ) -> list[T]:
        """What comes of each repetition of a call: `repetitions` of them unless it is said how many.

        Loops warm up by the clock within each repetition (`warm_up_s`); of anything else that must, the first
        `warm_up` results are thrown away.
        """
        for _ in range(warm_up):
            measure(*arguments)
        return [measure(*arguments) for _ in range(self.repetitions if times is None else times)]

    def in_turn(self, measures: Mapping[str, Callable[[], T]], times: int | None = None) -> dict[str, list[T]]:
        """The same of several that are to be compared, each once and then each again: a machine whose speed changes
        says nothing for any of them."""
        results: dict[str, list[T]] = {name: [] for name in measures}
        for _ in range(self.repetitions if times is None else times):
            for name, measure in measures.items():
                results[name].append(measure())
        return results

    def say(self, text: str) -> None:
        self.console.print(f"[dim]{text}[/]", highlight=False)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A directory of our own beside the others, gone afterwards."""
        directory = Path(tempfile.mkdtemp(dir=self.directory))
        try:
            yield directory
        finally:
            _remove(directory)

    @contextmanager
    def daemon(self, **settings: object) -> Iterator[DaemonProcess]:
        """A daemon on an empty directory, started; it is stopped in order at the end."""
        with self.scratch() as scratch, DaemonProcess(scratch / "data", **quiet(settings)) as daemon:
            daemon.start()
            yield daemon
            daemon.stop()


REMOVERS = 16


def _remove(directory: Path) -> None:
    """With all that is in it. Where blocks are discarded as soon as they are free, each directory waits for the disk,
    and those of 100,000 topics would take ten minutes one after the other."""
    leaves = [path for path, below, _ in os.walk(directory) if not below and Path(path) != directory]
    with ThreadPoolExecutor(REMOVERS) as pool:
        for _ in pool.map(partial(shutil.rmtree, ignore_errors=True), leaves):
            pass
    shutil.rmtree(directory)


@dataclass(frozen=True, slots=True)
class Part:
    """One chapter of the benchmark."""

    name: str
    title: str
    sentence: str
    run: Callable[[Bench], list[Figure]]
    shown: tuple[str, ...]
    """Keys of the figures that the document shows, in its order. All of them have to be measured, or be absent."""
    minutes: float
    """Roughly, on two cores that are otherwise idle."""

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(f"{self.name}/{key}" for key in self.shown)


NEVER_MS = 31_536_000_000
"""An interval that is not over before any benchmark."""

HOLD_MS = 600_000
"""The longest hold there is: as long as it lasts, no file is checkpointed, reclaimed or moved."""

METRICS_REQUEST = b"GET /v0/metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\r\n"

_SEGMENTS = re.compile(rb'^topics_segments\{tier="([a-z]+)"\} ([0-9.]+)', re.MULTILINE)


def quiet(settings: dict[str, object]) -> dict[str, object]:
    """The settings of every daemon here: the defaults, a quieter log, no worry about the size of a scratch disk, and
    the hosts that requests made beforehand name."""
    return {"log_level": "warning", "min_free_bytes": 0, "allowed_hosts": "bench,x", **settings}


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
