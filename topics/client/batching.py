"""Records that wait to be sent, by topic: what goes out next, and what became of it.

Pure: nothing is sent here, no clock is read (`now` is given, in seconds, and never goes back), nothing waits. Whoever
has to wait leaves a function that is called when it is time; such a function must not block and must not call back.
A `Buffer` may be used from many threads: each call holds one lock for a moment.

**Order.** Each topic has a line of batches. The last of them may be filling, all others are full; at most one batch of
a line is in flight, and it is always the first. A batch that is in flight never changes: not its records, not its
idempotency key, however often it is sent. So a topic has the records in the order in which they were put, each once,
whatever happens to the answers. A batch that fails for good is left out, and the next one goes on.

**When.** A batch is due when it is full, when `linger` is over since its first record, when somebody has asked for a
flush, or when somebody waits for room. Lines whose first batch is due take turns, so that a busy topic does not hold up
the others; at most `max_in_flight` lines are in flight.

**Room.** What counts is what was put and has no outcome yet, in flight or not. Who finds no room takes a place in a
queue: room goes to whoever has waited longest, so that a large record is not overtaken for ever by small ones.

**Failures** are counted until somebody sees them: by asking for the outcome of the very record, or in a report.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from topics.client.errors import TopicsError

_COMMA: Final = 1
"""What a record weighs in a body beside itself."""


class BufferFull(TopicsError):
    """There was no room for a record for as long as its sender would wait. The record was not taken."""

    code = "buffer_full"


class ProducerClosed(TopicsError):
    """The producer was closed: a record is not taken any more, or was taken and not delivered."""

    code = "producer_closed"


class DeliveryFailed(TopicsError):
    """`records` records were not delivered and nobody has asked for them one by one. `error` is the first reason."""

    code = "delivery_failed"

    def __init__(self, records: int, error: Exception) -> None:
        what = "1 record was" if records == 1 else f"{records} records were"
        super().__init__(f"{what} not delivered: {error}")
        self.records = records
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of a buffer. Raises ValueError for one that lets nothing through."""

    batch_records: int
    batch_bytes: int
    """Of the encoded records of a batch; one that is larger by itself has a batch of its own."""
    linger: float
    """Seconds from the first record of a batch to its being due."""
    max_in_flight: int
    """Topics."""
    max_buffered_records: int
    max_buffered_bytes: int

    def __post_init__(self) -> None:
        for name in ("batch_records", "batch_bytes", "max_in_flight", "max_buffered_records", "max_buffered_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1")
        if not self.linger >= 0:
            raise ValueError("linger: must not be negative")


class Batch:
    """Records of one topic that are sent together. What is public here is for reading."""

    __slots__ = (
        "asked",
        "buffer",
        "count",
        "deliveries",
        "done",
        "due_at",
        "error",
        "finished",
        "first_seq",
        "full",
        "key",
        "records",
        "report",
        "size",
        "topic",
        "watchers",
    )

    def __init__(self, buffer: Buffer[Any], topic: str, key: str, due_at: float) -> None:
        self.buffer = buffer
        self.topic = topic
        self.key = key
        """Its idempotency key."""
        self.records: list[bytes] = []
        """Encoded; empty once it is finished."""
        self.count = 0
        self.size = 0
        self.due_at = due_at
        self.full = False
        self.done = False
        """Whether the outcome is known. `first_seq` and `error` count from then on."""
        self.finished = False
        """Whether it has left the buffer, and its watchers were told."""
        self.first_seq = 0
        self.error: Exception | None = None
        self.deliveries: list[Any] | None = None
        """What `put` has returned for it, if the buffer keeps that."""
        self.asked: set[int] | None = None
        """Which of its records somebody has asked for, or does."""
        self.report = 0
        self.watchers: list[Callable[[], None]] = []


class _Line:
    """The batches of one topic."""

    __slots__ = ("batches", "filling", "queued", "sent", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.batches: deque[Batch] = deque()
        """What is not in flight; the last one may be `filling`."""
        self.filling: Batch | None = None
        self.sent: Batch | None = None
        self.queued = False
        """Whether it is among those that are ready. Never while a batch of it is in flight."""


class Turn:
    """A place in the queue for room. Taken with `Buffer.wait_for_room`, left with `Buffer.leave`."""

    __slots__ = ("granted", "size", "wake")

    def __init__(self, size: int, wake: Callable[[], None]) -> None:
        self.size = size
        self.wake = wake
        self.granted = False
        """Whether room is kept for it."""


D = TypeVar("D")


class Buffer(Generic[D]):
    """What was put and has no outcome yet.

    `delivery` makes what `put` returns out of a batch and an index. `news` is called when `take` may have more to give,
    or `next_at` may be earlier, than it was said last; once, until the next `take`. `key_prefix` makes the idempotency
    keys, and must be no other buffer's. `keep_deliveries`: batches know what `put` has returned for them, and the
    failures are seen by whoever is told of these.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        key_prefix: str,
        delivery: Callable[[Batch, int], D],
        news: Callable[[], None],
        keep_deliveries: bool = False,
    ) -> None:
        self._limits = limits
        self._key_prefix = key_prefix
        self._delivery = delivery
        self._news = news
        self._keep_deliveries = keep_deliveries
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}
        """Those with anything in them."""
        self._ready: deque[_Line] = deque()
        """Lines with a batch that is due and none in flight, in the order of their turns."""
        self._lingering: OrderedDict[_Line, Batch] = OrderedDict()
        """What is filling and not due, the first to be due first."""
        self._turns: deque[Turn] = deque()
        self._in_flight = 0
        self._records = 0
        self._bytes = 0
        self._batches = 0
        self._closed = False
        self._told = False
        self._next_at = math.inf
        self._unseen = 0
        self._first_unseen: Exception | None = None
        self._report = 0

    @property
    def records(self) -> int:
        """How many records have no outcome yet."""
        return self._records

    # -- what senders do ---------------------------------------------------------------------------------------------

    def put(self, topic: str, record: bytes, now: float, turn: Turn | None = None) -> D | None:
        """Take an encoded record; None if there is no room or others wait for some. With a `turn` that was granted
        its room is used. Raises ProducerClosed after `close`, ValueError for a record that never fits."""
        size = len(record) + _COMMA
        limits = self._limits
        with self._lock:
            if self._closed:
                raise ProducerClosed("the producer is closed")
            if turn is not None:
                assert turn.granted
                assert turn.size == size
                turn.granted = False
            elif self._turns or not self._has_room(size):
                self._check_size(size)
                return None
            else:
                self._records += 1
                self._bytes += size
            line = self._lines.get(topic)
            if line is None:
                line = self._lines[topic] = _Line(topic)
            batch = line.filling
            tell = False
            if batch is None or batch.size + size > limits.batch_bytes:
                if batch is not None:
                    tell = self._seal(line, batch)
                batch = self._open(line, now)
                tell = tell or (line.sent is None and batch.due_at < self._next_at)
            index = batch.count
            batch.records.append(record)
            batch.count = index + 1
            batch.size += size
            if batch.count >= limits.batch_records or batch.size >= limits.batch_bytes:
                tell = self._seal(line, batch) or tell
            delivery = self._delivery(batch, index)
            if batch.deliveries is not None:
                batch.deliveries.append(delivery)
            tell = tell and not self._told
            if tell:
                self._told = True
        if tell:
            self._news()
        return delivery

    def wait_for_room(self, record: bytes, wake: Callable[[], None]) -> Turn:
        """Queue for room for a record. `wake` is called, in any thread and perhaps at once, when the turn is granted
        or the buffer was closed; then `put` with it, and `leave` it in any case."""
        turn = Turn(len(record) + _COMMA, wake)
        with self._lock:
            if self._closed:
                wake()
                return turn
            self._turns.append(turn)
            self._grant()
            # Whoever waits for room is not to wait for a linger.
            tell = bool(self._turns) and self._hurry()
        if tell:
            self._news()
        return turn

    def leave(self, turn: Turn) -> None:
        """Give up a turn; room that was granted and not used goes to the next one."""
        with self._lock:
            if turn.granted:
                turn.granted = False
                self._records -= 1
                self._bytes -= turn.size
            elif turn in self._turns:
                self._turns.remove(turn)
            self._grant()

    def flush(self) -> list[Batch]:
        """Make everything due that was put so far. Returns the batches with whose outcome all of it has one."""
        with self._lock:
            tell = self._hurry()
            last = [line.batches[-1] if line.batches else line.sent for line in self._lines.values()]
        if tell:
            self._news()
        return [batch for batch in last if batch is not None]

    def close(self) -> None:
        """Take no more. Those who wait for room are woken, to find it closed; what was taken can still be sent."""
        with self._lock:
            self._closed = True
            for turn in self._turns:
                turn.wake()
            self._turns.clear()

    # -- what the one who sends does ---------------------------------------------------------------------------------

    def take(self, now: float) -> Batch | None:
        """The batch to be sent next, which is in flight until `finish`; None if there is none for now."""
        with self._lock:
            self._told = False
            while self._lingering:
                line, batch = next(iter(self._lingering.items()))
                if batch.due_at > now:
                    break
                del self._lingering[line]
                self._queue(line)
            if not self._ready or self._in_flight >= self._limits.max_in_flight:
                return None
            line = self._ready.popleft()
            line.queued = False
            batch = line.batches.popleft()
            if batch is line.filling:
                line.filling = None
                self._lingering.pop(line, None)
            assert line.sent is None
            line.sent = batch
            self._in_flight += 1
            return batch

    def next_at(self) -> float:
        """When to ask again if there is no news before: the time at which the next batch is due; inf if there is none.
        For after `take` has given nothing."""
        with self._lock:
            self._next_at = next(iter(self._lingering.values())).due_at if self._lingering else math.inf
            return self._next_at

    def settle(self, batch: Batch, *, first_seq: int = 0, error: Exception | None = None) -> None:
        """Say what became of a batch that was taken."""
        with self._lock:
            self._settle(batch, first_seq, error)

    def finish(self, batch: Batch, now: float) -> None:
        """A batch that is settled leaves the buffer, its topic may go on, and those who watch it are told."""
        with self._lock:
            line = self._lines[batch.topic]
            assert line.sent is batch
            assert batch.done
            line.sent = None
            self._in_flight -= 1
            if not line.batches:
                del self._lines[batch.topic]
            elif line.batches[0].full or line.batches[0].due_at <= now:
                self._queue(line)
            watchers = self._forget(batch)
            self._grant()
            tell, self._told = not self._told, True
        for wake in watchers:
            wake()
        if tell:
            self._news()

    def abandon(self, error: Exception) -> list[Batch]:
        """Close, and let everything that is not in flight fail; `finish_abandoned` is to follow for each batch."""
        self.close()
        with self._lock:
            abandoned: list[Batch] = []
            for line in list(self._lines.values()):
                abandoned += line.batches
                line.batches.clear()
                line.filling = None
                line.queued = False
                if line.sent is None:
                    del self._lines[line.topic]
            self._ready.clear()
            self._lingering.clear()
            for batch in abandoned:
                self._settle(batch, 0, error)
            return abandoned

    def finish_abandoned(self, batch: Batch) -> None:
        with self._lock:
            watchers = self._forget(batch)
        for wake in watchers:
            wake()

    # -- outcomes ----------------------------------------------------------------------------------------------------

    def watch(self, batch: Batch, wake: Callable[[], None]) -> bool:
        """Have `wake` called when a batch is finished. False if it is already, and `wake` is not called."""
        with self._lock:
            if batch.finished:
                return False
            batch.watchers.append(wake)
            return True

    def unwatch(self, batch: Batch, wake: Callable[[], None]) -> None:
        with self._lock:
            if not batch.finished:
                batch.watchers.remove(wake)

    def ask(self, batch: Batch, index: int, wake: Callable[[], None]) -> bool:
        """Wait for the outcome of a record: `watch`, and a failure will have been seen."""
        with self._lock:
            if batch.finished:
                return False
            batch.watchers.append(wake)
            self._see(batch, index)
            return True

    def unask(self, batch: Batch, index: int, wake: Callable[[], None]) -> bool:
        """Wait no longer. False if the outcome is there now."""
        with self._lock:
            if batch.finished:
                return False
            batch.watchers.remove(wake)
            if batch.done:
                return False
            if batch.asked is not None:
                batch.asked.discard(index)
            return True

    def outcome(self, batch: Batch, index: int) -> int:
        """The seq of a record of a batch that is done. Raises what the batch failed with, which is seen by that."""
        assert batch.done
        if batch.error is None:
            return batch.first_seq + index
        with self._lock:
            self._see(batch, index)
        raise batch.error.with_traceback(None)

    def failures(self) -> DeliveryFailed | None:
        """What has failed since the last report and was seen by nobody; it is seen by this."""
        with self._lock:
            if self._first_unseen is None:
                return None
            report = DeliveryFailed(self._unseen, self._first_unseen)
            self._unseen, self._first_unseen = 0, None
            self._report += 1
        report.__cause__ = report.error
        return report

    # -- under the lock ----------------------------------------------------------------------------------------------

    def _has_room(self, size: int) -> bool:
        limits = self._limits
        return self._records < limits.max_buffered_records and self._bytes + size <= limits.max_buffered_bytes

    def _check_size(self, size: int) -> None:
        if size > self._limits.max_buffered_bytes:
            raise ValueError(f"a record of {size} bytes never fits into {self._limits.max_buffered_bytes} bytes")

    def _grant(self) -> None:
        """Give room to those who wait for it, the first first."""
        while self._turns and self._has_room(self._turns[0].size):
            turn = self._turns.popleft()
            self._records += 1
            self._bytes += turn.size
            turn.granted = True
            turn.wake()

    def _open(self, line: _Line, now: float) -> Batch:
        """A new batch at the end of a line."""
        self._batches += 1
        batch = Batch(self, line.topic, f"{self._key_prefix}-{self._batches}", now + self._limits.linger)
        if self._keep_deliveries:
            batch.deliveries = []
        line.batches.append(batch)
        line.filling = batch
        self._lingering[line] = batch
        return batch

    def _seal(self, line: _Line, batch: Batch) -> bool:
        """Nothing more goes into the batch that was filling. True if `take` has something new by that."""
        batch.full = True
        line.filling = None
        self._lingering.pop(line, None)
        return self._queue(line) and self._in_flight < self._limits.max_in_flight

    def _queue(self, line: _Line) -> bool:
        """A line whose first batch is due takes its place among those that are ready. False if it is in flight, and
        will do so when it comes back, or has one."""
        if line.queued or line.sent is not None:
            return False
        line.queued = True
        self._ready.append(line)
        return True

    def _hurry(self) -> bool:
        """What is filling is due now. True if there is news to tell of."""
        any_ready = False
        while self._lingering:
            line, batch = self._lingering.popitem(last=False)
            batch.due_at = -math.inf
            any_ready = self._queue(line) or any_ready
        tell = any_ready and not self._told
        self._told = self._told or tell
        return tell

    def _settle(self, batch: Batch, first_seq: int, error: Exception | None) -> None:
        assert not batch.done
        batch.first_seq = first_seq
        batch.error = error
        batch.report = self._report
        if error is not None and batch.deliveries is None:
            unseen = batch.count - len(batch.asked or ())
            self._unseen += unseen
            if unseen and self._first_unseen is None:
                self._first_unseen = error
        batch.done = True

    def _forget(self, batch: Batch) -> list[Callable[[], None]]:
        """Its room is free again. Returns those who watch it."""
        self._records -= batch.count
        self._bytes -= batch.size
        batch.records = []
        batch.deliveries = None
        batch.finished = True
        watchers, batch.watchers = batch.watchers, []
        return watchers

    def _see(self, batch: Batch, index: int) -> None:
        """Somebody asks for a record. A failure that is counted is not any more."""
        if batch.asked is None:
            batch.asked = set()
        if index in batch.asked:
            return
        batch.asked.add(index)
        if batch.error is not None and self._unseen and batch.report == self._report and not self._keep_deliveries:
            self._unseen -= 1
            if not self._unseen:
                self._first_unseen = None
