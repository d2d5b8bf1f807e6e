"""Watchers without a network: a `Transport` that keeps what it was sent, served by a task as `topics.http` does it.

A watcher may stop reading, and be cut off at any moment, between the arrival of a frame and its confirmation too.
Frames are lines of JSON, with a line of their own for the id before those that have one, so that a test reads back
exactly what was sent; the bytes of a record's `data` are kept as they are.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import trio

from tests.engine.life import Life, settings
from topics.engine.delivery.feed import ConnectionEnd, Feed
from topics.engine.delivery.outbox import Outbox
from topics.engine.delivery.watch_session import WatchSession
from topics.engine.engine import Engine
from topics.model import Tombstone, WatchedTopic, WatchRequest, WatchStart

HEARTBEAT_S: Final = 15.0

MOSTLY_COLD: Final = settings(
    cache_bytes=4000,
    segment_max_events=8,
    segment_max_age_ms=0,
    hot_retain_segments=1,
    cold_dir=Path("/cold"),
    session_ttl_ms=3_600_000,
)
"""Settings with which hardly anything stays in memory, and most of the rest is soon in the cold store."""


class Record(msgspec.Struct, frozen=True):
    """A record as it was sent."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: msgspec.Raw
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)


class Frame(msgspec.Struct, frozen=True):
    """A frame as it was sent. Of the fields those have a value that its kind has."""

    kind: str
    topic: str = ""
    records: list[Record] = []
    from_seq: int = 0
    to_seq: int = 0
    head_seq: int = 0
    earliest_seq: int = 0
    gap_from: int = 0
    gap_to: int = 0
    reason: str = ""
    topics: list[str] = []
    count: int = 0
    epoch: int = 0
    status: int = 0
    code: str = ""

    @property
    def seqs(self) -> list[int]:
        """Of its records."""
        return [record.seq for record in self.records]


class LineFormat:
    """`topics.engine.delivery.feed.FrameFormat` as lines; counts how often a frame of each kind was made."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()

    def record(self, topic: str, records: bytes, from_seq: int, to_seq: int, head_seq: int) -> bytes:
        self.made["record"] += 1
        return b'{"kind":"record","topic":"%b","records":[%b],"from_seq":%d,"to_seq":%d,"head_seq":%d}\n' % (
            topic.encode(),
            records,
            from_seq,
            to_seq,
            head_seq,
        )

    def tombstone(self, topic: str, tombstone: Tombstone, reason: str) -> bytes:
        fields = msgspec.structs.asdict(tombstone)
        return self._line("tombstone", **{**fields, "reason": reason, "topic": topic})

    def caught_up(self, topic: str, head_seq: int) -> bytes:
        return self._line("caught_up", topic=topic, head_seq=head_seq)

    def topic_added(self, topic: str, at: WatchedTopic) -> bytes:
        return self._line("topic_added", topic=topic, **msgspec.structs.asdict(at))

    def left_out(self, topics: list[str], count: int, most: int) -> bytes:
        assert count >= len(topics) > 0
        return self._line("left_out", topics=topics, count=count)

    def topic_deleted(self, topic: str, head_seq: int) -> bytes:
        return self._line("topic_deleted", topic=topic, head_seq=head_seq)

    def paced(self, topics: list[str], retry_after_ms: int) -> bytes:
        return self._line("paced", topics=topics)

    def held_up(self, topics: list[str], why: str, retry_after_ms: int) -> bytes:
        assert why
        assert retry_after_ms > 0
        return self._line("held_up", topics=topics)

    def final(self, why: ConnectionEnd) -> bytes:
        return self._line("final", status=why.status, code=why.code)

    @staticmethod
    def answer(kind: str, topics: list[str]) -> bytes:
        """Of a command, as it is put among the frames of a socket."""
        return json.dumps({"kind": kind, "topics": topics}).encode() + b"\n"

    def _line(self, kind: str, **fields: Any) -> bytes:
        self.made[kind] += 1
        return json.dumps({"kind": kind, **fields}).encode() + b"\n"


_decoder = msgspec.json.Decoder(Frame)


def decoded(data: bytes) -> tuple[str, Frame]:
    """The line before a frame (empty where there is none), and the frame."""
    first, _, rest = data.partition(b"\n")
    if rest:
        return first.decode(), _decoder.decode(rest)
    return "", _decoder.decode(first)


def positions_of(event_id: str, order: Iterable[str]) -> dict[str, int]:
    """What an id says, as the specification has it; one of a large session is a list in the order of its topics,
    with nothing for those that were deleted."""
    said = json.loads(urlsafe_b64decode(event_id + "=" * (-len(event_id) % 4)))
    if isinstance(said, list):
        said = {name: seq for name, seq in zip(order, said, strict=True) if seq is not None}
    return dict(said)


class Received(NamedTuple):
    """A frame that has arrived, with the line before it, and when."""

    line: str
    frame: Frame
    at: float


class Connection:
    """One connection: a `Transport`, and the task that serves it. What the transport takes, the client has read.

    `direct` connections take frames in the step in which they are put in, as far as `share` says; the others leave all
    of it to the task. `closed` is called when it has ended, however it has.
    """

    def __init__(
        self,
        *,
        direct: bool = True,
        whole_frames: bool = False,
        share: Callable[[], float] | None = None,
        on_frame: Callable[[Received], None] | None = None,
    ) -> None:
        self.whole_frames = whole_frames
        self.outbox: Outbox
        self.received: list[Received] = []
        self.open = False
        self.aborted = False
        self.complete = False
        """Ended by the daemon, in order."""
        self.unconfirmed = False
        """Cut off after something had arrived that the daemon does not know to have arrived."""
        self.late_confirmation = False
        """Let time for a cut pass between what arrives and its being confirmed."""
        self._direct = direct
        self._share = share
        self.on_frame = on_frame
        self._scope = trio.CancelScope()
        self._may_read = trio.Event()
        self._may_read.set()
        self._unread = b""
        self._acked = 0

    # -- what a test does with it ------------------------------------------------------------------------------------

    def stop_reading(self) -> None:
        """Nothing is taken from here on."""
        if self._may_read.is_set():
            self._may_read = trio.Event()

    def go_on_reading(self) -> None:
        self._may_read.set()

    @property
    def stopped(self) -> bool:
        return not self._may_read.is_set()

    def acknowledge(self, count: int) -> None:
        """The peer's kernel has taken something, though the sender cannot go on yet."""
        self._acked += count

    def cut(self) -> None:
        """The client goes away."""
        self._scope.cancel()

    @property
    def frames(self) -> list[Frame]:
        return [received.frame for received in self.received]

    def of(self, topic: str, *kinds: str) -> list[Frame]:
        """The frames of one topic."""
        return [frame for frame in self.frames if frame.topic == topic and (not kinds or frame.kind in kinds)]

    def seqs(self, topic: str) -> list[int]:
        """Of the records of one topic that have arrived, in order."""
        return [seq for frame in self.of(topic, "record") for seq in frame.seqs]

    def kinds(self, topic: str | None = None) -> list[str]:
        return [frame.kind for frame in self.frames if topic is None or frame.topic == topic]

    def ids(self) -> list[str]:
        return [received.line for received in self.received if received.line]

    # -- the transport -----------------------------------------------------------------------------------------------

    def wrap(self, stamp: bytes, data: bytes) -> tuple[bytes, bytes]:
        return b"%x\n%b" % (len(stamp) + len(data), stamp), b""

    def try_send(self, wire: bytes) -> int:
        if self.stopped or not self._direct:
            return 0
        taken = len(wire) if self._share is None else int(len(wire) * self._share())
        self._arrive(wire[:taken])
        return taken

    async def send(self, wire: bytes) -> None:
        await self._may_read.wait()
        self._arrive(wire)
        if self.late_confirmation:
            try:
                await trio.sleep(0.05)
            except trio.Cancelled:
                self.unconfirmed = True
                raise

    def done(self) -> None:
        assert not self._unread, "half a frame"

    def acked(self) -> int:
        return self._acked

    def abort(self) -> None:
        self.aborted = True
        self._scope.cancel()

    def _arrive(self, wire: bytes) -> None:
        self._acked += len(wire)
        self._unread += wire
        while self._unread:
            size, newline, rest = self._unread.partition(b"\n")
            if not newline or len(rest) < int(size, 16):
                return
            self._unread = rest[int(size, 16) :]
            received = Received(*decoded(rest[: int(size, 16)]), trio.current_time())
            self.received.append(received)
            if self.on_frame is not None:
                self.on_frame(received)

    # -- the task ----------------------------------------------------------------------------------------------------

    def start(self, nursery: trio.Nursery, outbox: Outbox, closed: Callable[[], None]) -> None:
        self.outbox = outbox
        self.open = True
        nursery.start_soon(self._run, closed)

    async def _run(self, closed: Callable[[], None]) -> None:
        try:
            with self._scope:
                await self.outbox.send_all(HEARTBEAT_S, lambda: b'{"kind":"heartbeat"}\n')
                self.complete = True
        finally:
            self.open = False
            closed()


def with_id(cursors: bytes) -> bytes:
    return cursors + b"\n"


class Streams:
    """Opens sessions and connections of one engine, in one nursery."""

    def __init__(self, life: Life, nursery: trio.Nursery) -> None:
        self.engine: Engine = life.engine
        self.nursery = nursery
        self.form = LineFormat()

    def session(self, *names: str, **options: Any) -> tuple[WatchSession, dict[str, WatchedTopic]]:
        """Begin a session; `start` says where, for all topics or for each."""
        return self.engine.watch_sessions.open(request(*names, **options))

    async def connect(
        self,
        session: WatchSession,
        last_event_id: str | None = None,
        *,
        stopped: bool = False,
        stamp: Callable[[bytes], bytes] = with_id,
        **options: Any,
    ) -> Connection:
        """Show a session on a new connection; `options` are the connection's."""
        connection = Connection(**options)
        if stopped:
            connection.stop_reading()
        watch_sessions = self.engine.watch_sessions
        outbox = await watch_sessions.connect(session, self.form, stamp, connection, last_event_id)
        connection.start(self.nursery, outbox, lambda: watch_sessions.disconnect(session, outbox))
        return connection

    async def watch(self, *names: str, stopped: bool = False, **options: Any) -> Connection:
        """A session that is shown at once."""
        session, _ = self.session(*names, **options)
        return await self.connect(session, stopped=stopped)

    def socket(self, slots: int = 4, **options: Any) -> Connection:
        """A connection whose feeds come and go."""
        connection = Connection(**options)
        watch_sessions = self.engine.watch_sessions
        outbox = watch_sessions.open_socket(self.form, connection, slots)
        connection.start(self.nursery, outbox, lambda: watch_sessions.close_socket(outbox))
        return connection

    def resolve(self, socket: Connection, *names: str, **options: Any) -> list[Feed]:
        """Feeds for `subscribe`."""
        return [feed for feed, _ in self.engine.watch_sessions.resolve(socket.outbox, request(*names, **options))]

    def subscribe(self, socket: Connection, feeds: list[Feed]) -> None:
        """What the command does when there is room for its answer."""
        socket.outbox.put(LineFormat.answer("subscribed", [feed.name for feed in feeds]))
        for feed in feeds:
            self.engine.watch_sessions.subscribe(socket.outbox, feed)

    def subscribe_prefix(self, socket: Connection, prefix: str, **options: Any) -> list[str]:
        """The same of a prefix. Returns the topics in the answer."""
        asked = request(prefixes=(prefix,), **options)
        wish, found = self.engine.watch_sessions.resolve_prefix(socket.outbox, asked)
        names = [feed.name for feed, _ in found]
        socket.outbox.put(LineFormat.answer("subscribed", names))
        self.engine.watch_sessions.subscribe_prefix(socket.outbox, wish, [feed for feed, _ in found])
        return names

    def unsubscribe_prefix(self, socket: Connection, prefix: str) -> list[str]:
        left = self.engine.watch_sessions.unsubscribe_prefix(socket.outbox, prefix)
        socket.outbox.put(LineFormat.answer("unsubscribed", left))
        return left

    def unsubscribe(self, socket: Connection, *names: str) -> list[str]:
        left = [name for name in names if self.engine.watch_sessions.unsubscribe(socket.outbox, name)]
        socket.outbox.put(LineFormat.answer("unsubscribed", left))
        return left


def request(*names: str, start: int | None = 0, **options: Any) -> WatchRequest:
    """A watch request; `start` None is the tail."""
    begin = WatchStart(tail=True) if start is None else WatchStart(from_seq=start)
    if "nodes" in options:
        options["nodes"] = frozenset(options["nodes"])
    options["prefixes"] = dict.fromkeys(options.get("prefixes", ()), begin)
    return WatchRequest(topics=dict.fromkeys(names, begin), **options)


def held_bytes(outbox: Outbox) -> int:
    """Encoded bytes that wait for a connection."""
    return sum(entry.size for entry in (*outbox._queue, *outbox._flight))


def held_messages(outbox: Outbox) -> int:
    return len(outbox._queue) + len(outbox._flight)
