"""The same bytes for two servers: one that serves plain HTTP/1.1 requests on the lane, and one whose requests hypercorn
serves all. They give the same answers.

Both stand in this process, around fake engines and with a clock that stands still, so that their answers are the same
to the byte, but for dates and ids. The bytes come in the same segments, and after each segment both have been read,
handled and answered before anything is compared: how many answers there are then, what they say, and whether the
connection is open. One of three inputs comes in other segments for each, and only what comes of all of them is
compared. Then time passes, another request or the end of the input is sent, time passes again, and what has become of
the engines is compared; or the clients leave at once.

    python -m tests.fuzz.lane_differences --requests 1000000 --seed 1

runs for long. `scripts/fuzz lane` has atheris look for bytes.
"""

from __future__ import annotations

import argparse
import re
import socket
import struct
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import zip_longest
from random import Random
from typing import Any, Final

import trio
import trio.testing

from tests.fuzz.connection_bytes import drawn_bytes, drawn_cuts
from tests.fuzz.requests import CORPUS
from tests.fuzz.served import FAILED
from tests.fuzz.target import Target
from tests.http.conftest import SMALL
from tests.http.fake_engine import FakeEngine
from tests.simulation.world import quiet
from topics.auth.keys import parse_keys
from topics.config import Settings
from topics.http.app import make_app
from topics.http.connections.server import Server, open_listener, port_of, serve

OPEN: Final = replace(SMALL, max_body_bytes=16 << 10, max_record_bytes=4096, allowed_hosts=("a", "x"))
KEYED: Final = replace(OPEN, api_keys=parse_keys("secret:rw:a|b|q,other:a"))

SHORT_S: Final = 5.0
"""Longer than any wait that is asked for, and shorter than any timeout of the server."""
LONG_S: Final = 120.0
"""Longer than all timeouts of a connection: for a body, for a head, and for the next request."""

AFTERWARDS: Final = b"GET /v0/topics/a/diff?limit=1 HTTP/1.1\r\nhost: a\r\nx-request-id: afterwards\r\n\r\n"

UNEXPECTED: Final = FAILED - {"request_failed", "socket_failed"}
"""The fake engine has no streams, so that requests for them fail, both ways alike."""

# What may differ: dates, ids that the server makes, and the place of one field among the others.
_MASKED: Final = re.compile(rb"(?m)^(?:date: [^\r]*|x-request-id: [0-9a-f]{16})\r\n")
_SWITCH: Final = b"HTTP/1.1 101 "
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
_CHUNKED: Final = re.compile(rb"(?m)^transfer-encoding: chunked\r\n", re.IGNORECASE)


class StillClock:
    """A clock that stands still, so that the answers of two servers have the same figures."""

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic_ms(self) -> int:
        return 0

    def boottime_ms(self) -> int:
        return 0

    def perf_ns(self) -> int:
        return 0


@dataclass
class Side:
    """One of the two servers, and what its client has seen."""

    settings: Settings
    engine: FakeEngine = field(init=False)
    gate: Any = field(init=False)
    server: Server = field(init=False)
    port: int = 0
    client: socket.socket = field(init=False)
    unsent: bytes = b""
    answer: bytes = b""
    """What was received and not compared yet."""
    closed: str = ""
    """How the connection was closed."""

    def __post_init__(self) -> None:
        self.engine = FakeEngine(self.settings)
        self.engine.clock = StillClock()  # type: ignore[assignment]
        self.gate = make_app(self.engine.as_engine())
        self.forget()

    def forget(self) -> None:
        """Make the engine what it was at first, with a topic in it."""
        fresh = FakeEngine(self.settings)
        for name in ("topics", "routers", "appends", "reads", "holds", "asked", "given_back"):
            kept: Any = getattr(self.engine, name)
            kept.clear()
        self.engine.entered = self.engine.cancelled_reads = self.engine.waiting_reads = 0
        self.engine.changed = fresh.changed
        self.engine.status.started_ms = 0
        self.gate.figures.requests.clear()
        self.answer = self.unsent = b""
        self.closed = ""

    def connect(self) -> None:
        self.client = socket.create_connection(("127.0.0.1", self.port))
        self.client.setblocking(False)
        self.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def push(self) -> None:
        """Send what can be sent now."""
        try:
            while self.unsent and not self.closed:
                self.unsent = self.unsent[self.client.send(self.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent = b""

    def pull(self) -> bytes:
        """What has come."""
        parts = []
        try:
            while not self.closed:
                part = self.client.recv(1 << 20)
                if not part:
                    self.closed = "closed"
                parts.append(part)
        except BlockingIOError:
            pass
        except OSError:
            self.closed = "reset"
        return b"".join(parts)

    def end_input(self) -> None:
        try:
            self.client.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def reset(self) -> None:
        """Leave without a word."""
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client.close()

    def state(self) -> dict[str, Any]:
        """What has become of the engine, and what was counted."""
        engine = self.engine
        return {
            "topics": {
                name: (topic.config, topic.records, topic.head_seq, topic.stages)
                for name, topic in engine.topics.items()
            },
            "routers": engine.routers,
            "appends": engine.appends,
            "reads": _ADDRESS.sub("", str(engine.reads)),
            "asked": engine.asked,
            "given back": engine.given_back,
            "holds": engine.holds,
            "entered": engine.entered,
            "cancelled": engine.cancelled_reads,
            "requests": dict(self.gate.figures.requests),
            "held": self.gate._reader.budget.used,
            "answering": len(self.server.answering),
            "idle": len(self.server.idle),
            "connections": len(self.server.connections),
        }


class Pair:
    """Both servers, which differ in whether there is a lane."""

    def __init__(self, settings: Settings) -> None:
        self.sides = [Side(replace(settings, http_lane=lane)) for lane in (True, False)]
        self.answers = 0
        """How many answers were compared."""
        self.is_apart = False
        """The bytes come in other segments for each."""
        self.has_switched = False
        """The connection speaks HTTP/2 now, or is a WebSocket: that is no affair of the lane."""

    async def serve(self, nursery: trio.Nursery) -> None:
        """Start both in this nursery."""
        for side in self.sides:
            sockets = open_listener("127.0.0.1", 0)
            lane = side.gate.handle if side.settings.http_lane else None
            side.server = await nursery.start(serve, side.gate, sockets, side.settings, lane)
            side.port = port_of(sockets)

    async def talk(self, data: bytes, chance: Random) -> None:
        """Send bytes to both. Raises AssertionError for a difference."""
        for side in self.sides:
            side.forget()
            side.connect()
        self.has_switched = False
        # What is answered to an expectation may depend on whether the body is there already.
        self.is_apart = chance.random() < 0.3 and b"expect" not in data.lower()
        try:
            if self.is_apart:
                await self._send_apart(data, chance)
            else:
                segments = drawn_cuts(chance, data)
                # Whether a refusal or the end within a body comes first is a matter of luck.
                has_body = any(word in data.lower() for word in (b"content-length", b"transfer-encoding"))
                with_end = len(segments) - 1 if chance.random() < 0.2 and not has_body else -1
                for number, segment in enumerate(segments):
                    await self._send(segment, segment, end=number == with_end)
                    await self._settle(f"{len(segment)} bytes more")
            ending = chance.randrange(6)
            if ending:
                await self._end(ending)
            else:
                for side in self.sides:
                    side.reset()
        finally:
            for side in self.sides:
                side.client.close()
        await self._settled()
        if not self.has_switched:
            self._compare_states()
        for side in self.sides:
            assert not side.server.connections, "a connection stays"
            assert not side.gate._reader.budget.used, "bytes of bodies stay"

    async def _end(self, ending: int) -> None:
        """Let time pass, send another request or the end of the input, and let all timeouts pass."""
        await self._pass(SHORT_S)
        await self._settle("a short time")
        if ending <= 2:
            await self._send(AFTERWARDS, AFTERWARDS)
            await self._settle("another request")
        if ending >= 2:
            for side in self.sides:
                side.end_input()
            await self._settle("the end of the input")
        await self._pass(SHORT_S)
        await self._pass(LONG_S)
        await self._settle("a long time")

    async def _send_apart(self, data: bytes, chance: Random) -> None:
        """Send bytes to both, to each in segments of its own. What they have answered is compared later."""
        for segments in zip_longest(drawn_cuts(chance, data), drawn_cuts(chance, data), fillvalue=b""):
            await self._send(*segments)

    async def _send(self, *segments: bytes, end: bool = False) -> None:
        """Send a segment to each, and let them do what is to be done, as long as one of them reads on. `end`: the end
        of the input comes together with it."""
        left: list[bytes] = []
        for side, segment in zip(self.sides, segments, strict=True):
            side.unsent += segment
            if end:
                side.push()
                side.end_input()
        while left != (left := [side.unsent for side in self.sides]):
            for side in self.sides:
                side.push()
            await self._settled()

    async def _pass(self, seconds: float) -> None:
        """Let time pass."""
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        for _ in range(2):  # the server looks for what is due once a second, and answers behind that
            clock.jump(seconds / 2)
            await self._settled()

    async def _settled(self) -> None:
        await trio.testing.wait_all_tasks_blocked(0.0)

    async def _settle(self, after: str) -> None:
        """Let both servers do what is to be done, and compare what they have answered since the last time."""
        await self._settled()
        if self.has_switched:
            return
        if not self._look():
            await trio.testing.wait_all_tasks_blocked(0.05)  # if this process had to wait for the kernel
            self._look()
        ours, theirs = (self._answers(side) for side in self.sides)
        assert ours == theirs, f"after {after} the lane answers\n{ours!r}\nand hypercorn\n{theirs!r}"
        self.has_switched = any(_SWITCH in side.answer for side in self.sides)
        if self.has_switched:
            return
        closed = [side.closed or "open" for side in self.sides]
        assert closed[0] == closed[1], f"after {after} the lane is {closed[0]}, and hypercorn {closed[1]}"
        idle = [len(side.server.idle) for side in self.sides]
        assert idle[0] == idle[1], f"after {after} {idle[0]} connections of the lane are idle, {idle[1]} of hypercorn"
        self.answers += ours.count(b"HTTP/1.1 ")
        for side in self.sides:
            side.answer = b""

    def _look(self) -> bool:
        """Receive what there is. Return True if both have sent the same."""
        for side in self.sides:
            side.answer += side.pull()
        return self._answers(self.sides[0]) == self._answers(self.sides[1])

    def _answers(self, side: Side) -> bytes:
        answers = _MASKED.sub(b"", _CHUNKED.sub(b"", side.answer.partition(_SWITCH)[0]))
        # Which fault of a head is seen first depends on what of it is there.
        return answers.replace(b"HTTP/1.1 431 ", b"HTTP/1.1 400 ") if self.is_apart else answers

    def _compare_states(self) -> None:
        ours, theirs = (side.state() for side in self.sides)
        for name, value in ours.items():
            assert value == theirs[name], f"{name}: with the lane {value}, without it {theirs[name]}"


# ----------------------------------------------------------------- one input


@cache
def pair(*, keyed: bool) -> Pair:
    """The servers, with or without keys."""
    return Pair(KEYED if keyed else OPEN)


@contextmanager
def heard() -> Iterator[list[dict[str, Any]]]:
    """What the servers say; what nobody thought of is a finding."""
    events: list[dict[str, Any]] = []
    with quiet(events):
        yield events
    for event in events:
        assert event["event"] not in UNEXPECTED, f"{event['event']}: {event}"


async def _compare(inputs: Sequence[tuple[bytes, int]], keyed: bool) -> int:
    """Give inputs to the servers, each with a number that decides about segments. Returns how many answers were
    compared."""
    both = pair(keyed=keyed)
    both.answers = 0
    async with trio.open_nursery() as nursery:
        await both.serve(nursery)
        for data, number in inputs:
            try:
                with heard():
                    await both.talk(data, Random(number))
            except AssertionError as error:
                error.add_note(f"input: {data!r}, number {number}, keyed {keyed}")
                raise
        nursery.cancel_scope.cancel()
    return both.answers


def compare(inputs: Sequence[tuple[bytes, int]], *, keyed: bool) -> int:
    """Run `_compare` on a clock that stands still between the steps. Raises AssertionError for the first difference."""
    try:
        return trio.run(partial(_compare, inputs, keyed), clock=trio.testing.MockClock(rate=0.0))
    except* AssertionError as group:
        raise _first(group) from None


def _first(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def take(data: bytes) -> None:
    """One input; its own bytes decide how it is cut."""
    number = zlib.crc32(data)
    compare([(data, number)], keyed=number % 4 == 0)


def _seeds() -> Sequence[bytes]:
    drawn = [drawn_bytes(Random(seed)) for seed in range(40)]
    return [*CORPUS.values(), *drawn]


def _vary(data: bytes, where: int, what: int) -> bytes:
    """Another connection's bytes behind these."""
    return data + drawn_bytes(Random(where << 16 | what))


TARGETS: Final[tuple[Target, ...]] = (
    Target(
        "lane",
        "HTTP/1.1 with the lane beside the same by hypercorn alone",
        take,
        _seeds,
        vary=_vary,
        most_bytes=16 << 10,
        base_bytes=16 << 20,
        factor=1000,
        examples=40,
        modules=("topics.http.connections",),
        slow=True,
    ),
)


# ----------------------------------------------------------------- long runs

BATCH: Final = 200


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare drawn inputs until so many requests were answered, or so many seconds are over."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.lane_differences")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    began, answers, inputs = time.monotonic(), 0, 0
    batch = 0
    while answers < options.requests and time.monotonic() - began < options.seconds:
        numbers = [options.seed << 40 | batch * BATCH + i for i in range(BATCH)]
        batch += 1
        try:
            answers += compare([(drawn_bytes(Random(number)), number) for number in numbers], keyed=batch % 4 == 0)
        except AssertionError as error:
            print(error, *error.__notes__, sep="\n", flush=True)
            return 1
        inputs += BATCH
        rate = answers / (time.monotonic() - began)
        print(f"{inputs:,} connections, {answers:,} answers, {rate:.0f} a second", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
