"""Records that wait to be sent, by topic: which batch is sent next, and the outcome of each record.

Pure: nothing is sent here, no clock is read (`now` is given, in seconds, and never goes back), nothing waits. A caller
that has to wait leaves a function, which is called when the wait is over; such a function must not block, and must not
call the buffer. A `Buffer` may be used in many threads: each call holds one lock for a moment.

**Order.** Each topic has a line of batches. Only the last of them takes records; the others are full. At most one batch
of a line is in flight, and it is always the first. A batch in flight never changes: neither its records nor its
idempotency key, however often it is sent. So a topic gets the records in the order in which they were put, each once,
even if answers are lost. A batch that fails for good is left out, and the next one of its line is sent.

**When.** A batch is due when it is full, when `linger` seconds have passed since its first record, when a flush is
asked for, or when a sender waits for room. Lines whose first batch is due take turns, so that a busy topic does not
hold up the others; at most `max_in_flight` lines are in flight.

**Room.** Records that were put and have no outcome yet take room, in flight or not. A sender that finds no room takes a
place in a queue. Room goes to the first of the queue, so that small records do not overtake a large one for ever.

**Failures** are counted until somebody sees them: by asking for the outcome of the record, or in a report.
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
"""Bytes that a record takes in a body besides its own."""


class BufferFull(TopicsError):
    """The buffer of a producer had no room for a record within `send_timeout`. The record was not taken."""

    code = "buffer_full"


class ProducerClosed(TopicsError):
    """The producer is closed. Raised by `send`: the record was not taken. As the outcome of a record: it was not sent,
    or it is not known whether it was appended; the message says which."""

    code = "producer_closed"


class DeliveryFailed(TopicsError):
    """`records` records were not delivered, and nobody has asked for their outcomes one by one. `error` is the failure
    of the first of them."""

    code = "delivery_failed"

    def __init__(self, records: int, error: Exception) -> None:
        what = "1 record was" if records == 1 else f"{records} records were"
        super().__init__(f"{what} not delivered: {error}")
        self.records = records
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferLimits:
    """The bounds of a buffer. Raises ValueError for a bound that lets no record through."""

    batch_records: int
    batch_bytes: int
    """Bytes of the encoded records of a batch. A record that is larger has a batch of its own."""
    linger: float
    """How long after its first record a batch is due, in seconds."""
    max_in_flight: int
    """How many topics may have a batch in flight."""
    max_buffered_records: int
    max_buffered_bytes: int

    def __post_init__(self) -> None:
        for name in ("batch_records", "batch_bytes", "max_in_flight", "max_buffered_records", "max_buffered_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1")
        if not self.linger >= 0:
            raise ValueError("linger: must not be negative")


class ProducerBatch:
    """Records of one topic that are sent together. Only the Buffer changes it."""

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
        """The idempotency key."""
        self.records: list[bytes] = []
        """Encoded records; empty once the batch is finished."""
        self.count = 0
        self.size = 0
        self.due_at = due_at
        self.full = False
        self.done = False
        """The outcome is known: `first_seq` and `error` are set."""
        self.finished = False
        """The batch has left the buffer, and its watchers were called."""
        self.first_seq = 0
        self.error: Exception | None = None
        self.deliveries: list[Any] | None = None
        """The deliveries that `put` has returned for its records, with `keep_deliveries`."""
        self.asked: set[int] | None = None
        """The indexes of the records whose outcome somebody has asked for."""
        self.report = 0
        self.watchers: list[Callable[[], None]] = []


class _TopicBatches:
    """The batches of one topic."""

    __slots__ = ("batches", "filling", "queued", "sent", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.batches: deque[ProducerBatch] = deque()
        """The batches that are not in flight; the last may be `filling`."""
        self.filling: ProducerBatch | None = None
        self.sent: ProducerBatch | None = None
        self.queued = False
        """The line is among the ready lines. Never while a batch of it is in flight."""


class RoomRequest:
    """A place in the queue for room. Taken with `Buffer.wait_for_room`, left with `Buffer.leave`."""

    __slots__ = ("granted", "size", "wake")

    def __init__(self, size: int, wake: Callable[[], None]) -> None:
        self.size = size
        self.wake = wake
        self.granted = False
        """Room is kept for the record."""


D = TypeVar("D")


class Buffer(Generic[D]):
    """The records that were put and have no outcome yet.

    `delivery` makes the result of `put` out of a batch and the index of the record in it. `news` is called when `take`
    may return more, or `next_at` an earlier time, than before; once, until the next `take`. `key_prefix` is the
    beginning of all idempotency keys, and must not be that of another buffer. With `keep_deliveries` a batch keeps the
    results of `put`; then failures count as seen, because the caller reports each delivery.
    """

    def __init__(
        self,
        limits: BufferLimits,
        *,
        key_prefix: str,
        delivery: Callable[[ProducerBatch, int], D],
        news: Callable[[], None],
        keep_deliveries: bool = False,
    ) -> None:
        self._limits = limits
        self._key_prefix = key_prefix
        self._delivery = delivery
        self._news = news
        self._keep_deliveries = keep_deliveries
        self._lock = threading.Lock()
        self._lines: dict[str, _TopicBatches] = {}
        """The lines that are not empty."""
        self._ready: deque[_TopicBatches] = deque()
        """Lines with a batch that is due and none in flight, in the order of their turns."""
        self._lingering: OrderedDict[_TopicBatches, ProducerBatch] = OrderedDict()
        """Batches that take records and are not due, the first to be due first."""
        self._turns: deque[RoomRequest] = deque()
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

    def put(self, topic: str, record: bytes, now: float, turn: RoomRequest | None = None) -> D | None:
        """Take an encoded record. Returns its delivery; None if there is no room, or if others wait for room. With a
        `turn` that was granted it uses the room of that. Raises ProducerClosed after `close`, and ValueError for a
        record that is larger than the whole buffer."""
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
                line = self._lines[topic] = _TopicBatches(topic)
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

    def wait_for_room(self, record: bytes, wake: Callable[[], None]) -> RoomRequest:
        """Queue for room for a record. `wake` is called, in any thread and perhaps at once, when the turn is granted or
        the buffer is closed. Then call `put` with the turn, and in any case `leave`."""
        turn = RoomRequest(len(record) + _COMMA, wake)
        with self._lock:
            if self._closed:
                wake()
                return turn
            self._turns.append(turn)
            self._grant()
            # A sender that waits for room must not wait for a linger.
            tell = bool(self._turns) and self._hurry()
        if tell:
            self._news()
        return turn

    def leave(self, turn: RoomRequest) -> None:
        """Give up a turn. Room that was granted and not used goes to the next turn."""
        with self._lock:
            if turn.granted:
                turn.granted = False
                self._records -= 1
                self._bytes -= turn.size
            elif turn in self._turns:
                self._turns.remove(turn)
            self._grant()

    def flush(self) -> list[ProducerBatch]:
        """Make all batches due. Returns the last batch of each topic: when these have outcomes, all records that were
        put before the call have."""
        with self._lock:
            tell = self._hurry()
            last = [line.batches[-1] if line.batches else line.sent for line in self._lines.values()]
        if tell:
            self._news()
        return [batch for batch in last if batch is not None]

    def close(self) -> None:
        """Take no more records, and wake all senders that wait for room. Records that were taken can still be sent."""
        with self._lock:
            self._closed = True
            for turn in self._turns:
                turn.wake()
            self._turns.clear()

    # -- what the one who sends does ---------------------------------------------------------------------------------

    def take(self, now: float) -> ProducerBatch | None:
        """Return the batch to be sent next, which is in flight until `finish`; None if no batch is due, or as many are
        in flight as may be."""
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
        """The time at which the next batch is due; inf if there is none. Call it after `take` has returned None, and
        call `take` again at that time or on `news`."""
        with self._lock:
            self._next_at = next(iter(self._lingering.values())).due_at if self._lingering else math.inf
            return self._next_at

    def settle(self, batch: ProducerBatch, *, first_seq: int = 0, error: Exception | None = None) -> None:
        """Set the outcome of a batch in flight: the first seq, or the error."""
        with self._lock:
            self._settle(batch, first_seq, error)

    def finish(self, batch: ProducerBatch, now: float) -> None:
        """Remove a batch whose outcome is set, let its topic send the next one, and call the batch's watchers."""
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

    def abandon(self, error: Exception) -> list[ProducerBatch]:
        """Close, and set `error` as the outcome of all batches that are not in flight. Returns them; the caller must
        pass each to `finish_abandoned`."""
        self.close()
        with self._lock:
            abandoned: list[ProducerBatch] = []
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

    def finish_abandoned(self, batch: ProducerBatch) -> None:
        """Remove a batch that `abandon` has returned, and call its watchers."""
        with self._lock:
            watchers = self._forget(batch)
        for wake in watchers:
            wake()

    # -- outcomes ----------------------------------------------------------------------------------------------------

    def watch(self, batch: ProducerBatch, wake: Callable[[], None]) -> bool:
        """Have `wake` called when a batch is finished. Return False if it is finished already; then `wake` is not
        called."""
        with self._lock:
            if batch.finished:
                return False
            batch.watchers.append(wake)
            return True

    def unwatch(self, batch: ProducerBatch, wake: Callable[[], None]) -> None:
        """Undo `watch`, unless the batch is finished."""
        with self._lock:
            if not batch.finished:
                batch.watchers.remove(wake)

    def ask(self, batch: ProducerBatch, index: int, wake: Callable[[], None]) -> bool:
        """Wait for the outcome of one record: as `watch`, and a failure of the record counts as seen."""
        with self._lock:
            if batch.finished:
                return False
            batch.watchers.append(wake)
            self._see(batch, index)
            return True

    def unask(self, batch: ProducerBatch, index: int, wake: Callable[[], None]) -> bool:
        """Undo `ask`. Return False if the outcome is known by now."""
        with self._lock:
            if batch.finished:
                return False
            batch.watchers.remove(wake)
            if batch.done:
                return False
            if batch.asked is not None:
                batch.asked.discard(index)
            return True

    def outcome(self, batch: ProducerBatch, index: int) -> int:
        """The seq of a record, whose batch must be done. Raises the error of the batch; it counts as seen then."""
        assert batch.done
        if batch.error is None:
            return batch.first_seq + index
        with self._lock:
            self._see(batch, index)
        raise batch.error.with_traceback(None)

    def failures(self) -> DeliveryFailed | None:
        """Report the failures that nobody has seen since the last report; None if there are none."""
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
        """Give room to the turns that wait for it, the first first."""
        while self._turns and self._has_room(self._turns[0].size):
            turn = self._turns.popleft()
            self._records += 1
            self._bytes += turn.size
            turn.granted = True
            turn.wake()

    def _open(self, line: _TopicBatches, now: float) -> ProducerBatch:
        """A new batch at the end of a line."""
        self._batches += 1
        batch = ProducerBatch(self, line.topic, f"{self._key_prefix}-{self._batches}", now + self._limits.linger)
        if self._keep_deliveries:
            batch.deliveries = []
        line.batches.append(batch)
        line.filling = batch
        self._lingering[line] = batch
        return batch

    def _seal(self, line: _TopicBatches, batch: ProducerBatch) -> bool:
        """Close the batch that takes records. Return True if `take` has a new batch to return."""
        batch.full = True
        line.filling = None
        self._lingering.pop(line, None)
        return self._queue(line) and self._in_flight < self._limits.max_in_flight

    def _queue(self, line: _TopicBatches) -> bool:
        """Put a line whose first batch is due among the ready lines. Return False if it is there already, or has a
        batch in flight: then `finish` will do so."""
        if line.queued or line.sent is not None:
            return False
        line.queued = True
        self._ready.append(line)
        return True

    def _hurry(self) -> bool:
        """Make the batches that take records due now. Return True if `news` must be called."""
        any_ready = False
        while self._lingering:
            line, batch = self._lingering.popitem(last=False)
            batch.due_at = -math.inf
            any_ready = self._queue(line) or any_ready
        tell = any_ready and not self._told
        self._told = self._told or tell
        return tell

    def _settle(self, batch: ProducerBatch, first_seq: int, error: Exception | None) -> None:
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

    def _forget(self, batch: ProducerBatch) -> list[Callable[[], None]]:
        """Free the room of a batch. Returns its watchers."""
        self._records -= batch.count
        self._bytes -= batch.size
        batch.records = []
        batch.deliveries = None
        batch.finished = True
        watchers, batch.watchers = batch.watchers, []
        return watchers

    def _see(self, batch: ProducerBatch, index: int) -> None:
        """Note that somebody asks for the outcome of a record. If its failure is counted, count it no more."""
        if batch.asked is None:
            batch.asked = set()
        if index in batch.asked:
            return
        batch.asked.add(index)
        if batch.error is not None and self._unseen and batch.report == self._report and not self._keep_deliveries:
            self._unseen -= 1
            if not self._unseen:
                self._first_unseen = None
