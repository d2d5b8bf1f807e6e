"""The consumers of one topic: their positions, their owners, and every decision about them (`docs/spec/consumers.md`
section 3). Pure.

A `decide_` method decides on the published state and returns the event. The caller makes sure that the consumer has no
unpublished event. `apply` carries the event out at its commit point.

*Ownership.* The first `acquire` gives a consumer an owner and a generation. From then on until `release`, only calls
with this generation move the consumer. This also holds after the deadline: another process may acquire the consumer
then, but until it does, the owner may still be at work. Generations are counted per topic, not per consumer. So a
consumer that is deleted and created again never has a generation that its old owner knows.

*Dumps.* A checkpoint asks for all consumers of each topic that has changed. The consumers are divided by name into
`BUCKETS` buckets. A bucket is encoded again only if one of its consumers has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from zlib import crc32

from sortedcontainers import SortedDict

from topics.consumers.consumer_events import (
    AcquireEvent,
    CommitEvent,
    ConsumerEvent,
    DeleteEvent,
    DisownEvent,
    PutEvent,
    SeekEvent,
    check_filter_text,
)
from topics.errors import ApiError, invalid
from topics.filters.record_filter import Filter, parse_filter

BUCKETS: Final = 64
"""How many buckets a dump has. Each is encoded separately."""


def consumer_not_found(topic: str, consumer: str) -> ApiError:
    """`404 consumer_not_found`."""
    return ApiError(
        "consumer_not_found",
        f"topic {topic!r} has no consumer {consumer!r}",
        detail={"topic": topic, "consumer": consumer},
    )


class Consumer:
    """One consumer as it is published. Times are ms of the window clock unless stated otherwise."""

    __slots__ = (
        "deadline",
        "filter",
        "generation",
        "last_commit_ts",
        "name",
        "owner",
        "seq",
        "ttl_ms",
        "used_at",
    )

    def __init__(self, name: str, seq: int) -> None:
        self.name = name
        self.seq = seq
        """The consumer has finished all records up to this seq."""
        self.ttl_ms = 0
        """The consumer is deleted if no call has named it for longer than this; 0: never."""
        self.filter: str | None = None
        """The JSON of its filter; None for all records. Stored as text, so that numbers stay as the client wrote
        them."""
        self.last_commit_ts: int | None = None
        """Epoch ms."""
        self.owner: str | None = None
        self.generation = 0
        """The generation of the present owner, or of the last one; 0 if there was none."""
        self.deadline = 0
        """Until then no other owner may take the consumer. Meaningless without an owner."""
        self.used_at = 0
        """When a call last named the consumer."""

    def dump(self) -> list[Any]:
        """Return all fields, for `load`."""
        return [
            self.name,
            self.seq,
            self.ttl_ms,
            self.filter,
            self.last_commit_ts,
            self.owner,
            self.generation,
            self.deadline,
            self.used_at,
        ]

    @classmethod
    def load(cls, value: object) -> Consumer:
        """Rebuild from what `dump` returned. Raises ValueError if `value` is no such dump."""
        match value:
            case [
                str(name),
                int(seq),
                int(ttl_ms),
                (str() | None) as kept,
                (int() | None) as last_commit_ts,
                (str() | None) as owner,
                int(generation),
                int(deadline),
                int(used_at),
            ] if min(seq, ttl_ms, generation, deadline, used_at, last_commit_ts or 0) >= 0:
                check_filter_text(kept)
                consumer = cls(name, seq)
                consumer.ttl_ms, consumer.filter, consumer.last_commit_ts = ttl_ms, kept, last_commit_ts
                consumer.owner, consumer.generation, consumer.deadline = owner, generation, deadline
                consumer.used_at = used_at
                return consumer
        raise ValueError(f"consumers: bad entry {value!r}")

    @property
    def filter_size(self) -> int:
        """Characters of its filter."""
        return len(self.filter or "")

    @property
    def wanted(self) -> Filter | None:
        """Its filter, ready for use; None for all records."""
        return None if self.filter is None else parse_filter(self.filter)

    def is_unused(self, now: int) -> bool:
        """Return True if its ttl has passed without use."""
        return self.ttl_ms > 0 and now - self.used_at > self.ttl_ms


class Consumers:
    """The consumers of one topic."""

    __slots__ = ("_buckets", "_by_name", "filter_size", "last_generation", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        """The name of the topic, for errors."""
        self.last_generation = 0
        """The highest generation that any consumer of the topic has had."""
        self.filter_size = 0
        """Characters of the filters of all consumers together."""
        self._by_name: SortedDict[str, Consumer] = SortedDict()
        self._buckets: list[bytes | None] = [b""] * BUCKETS
        """The last encoding of each bucket; None if the bucket has changed since."""

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self._by_name.values())

    @property
    def last_at(self) -> int:
        """The latest time of the window clock at which any of the consumers was used; 0 without consumers."""
        return max((consumer.used_at for consumer in self), default=0)

    @property
    def lowest_seq(self) -> int | None:
        """Return the lowest position of all consumers; None without consumers. Costs a step for each consumer."""
        return min((consumer.seq for consumer in self), default=None)

    def find(self, name: str) -> Consumer | None:
        """Return the consumer of a name."""
        return self._by_name.get(name)

    def get(self, name: str) -> Consumer:
        """Return the consumer of a name. Raises `404 consumer_not_found`."""
        consumer = self._by_name.get(name)
        if consumer is None:
            raise consumer_not_found(self.topic, name)
        return consumer

    def page(self, prefix: str, after: str | None, most: int) -> tuple[list[Consumer], bool]:
        """Return at most `most` consumers whose names begin with `prefix` and come after `after`, in the order of their
        names, and True if there are more."""
        exclusive = after is not None and after >= prefix
        found: list[Consumer] = []
        for name in self._by_name.irange(after if exclusive else prefix, inclusive=(not exclusive, True)):
            if not name.startswith(prefix):
                break
            if len(found) == most:
                return found, True
            found.append(self._by_name[name])
        return found, False

    # -- decisions ---------------------------------------------------------------------------------------------------

    def decide_put(
        self, name: str, start: Callable[[], int], ttl_ms: int | None, kept: str | None, now: int, *, keeps_filter: bool
    ) -> PutEvent | None:
        """Decide to create a consumer with these settings, at the position `start()`, or to change it; None if it has
        these settings already. `kept` is the text of its filter. With a `ttl_ms` of None an existing consumer keeps its
        ttl, with `keeps_filter` its filter."""
        consumer = self._by_name.get(name)
        if consumer is None:
            return PutEvent(name, now, start(), ttl_ms or 0, None if keeps_filter else kept)
        ttl_ms = consumer.ttl_ms if ttl_ms is None else ttl_ms
        kept = consumer.filter if keeps_filter else kept
        if (ttl_ms, kept) == (consumer.ttl_ms, consumer.filter):
            return None
        return PutEvent(name, now, consumer.seq, ttl_ms, kept)

    def decide_commit(
        self, name: str, seq: int, generation: int | None, head_seq: int, now: int, ts: int
    ) -> CommitEvent | None:
        """Decide that the consumer has finished all records up to `seq`; None if it had before.

        Raises 404, `409 fenced`, and 400 for a seq beyond the head.
        """
        consumer = self.get(name)
        self.check_generation(consumer, generation)
        _check_seq(seq, head_seq)
        return CommitEvent(name, now, seq, ts) if seq > consumer.seq else None

    def decide_seek(self, name: str, seq: int, generation: int | None, head_seq: int, now: int) -> SeekEvent | None:
        """Decide to move the consumer to `seq`; None if it is there already. Raises like `decide_commit`."""
        consumer = self.get(name)
        self.check_generation(consumer, generation)
        _check_seq(seq, head_seq)
        return SeekEvent(name, now, seq) if seq != consumer.seq else None

    def decide_acquire(self, name: str, owner: str, lease_ms: int, now: int) -> AcquireEvent:
        """Decide that `owner` owns the consumer for `lease_ms` from now. If it owns the consumer already, it keeps its
        generation.

        Raises 404. While another owner's lease runs: `409 consumer_owned`, with its `deadline` by the window clock.
        """
        consumer = self.get(name)
        if consumer.owner == owner:
            return AcquireEvent(name, now, owner, consumer.generation, now + lease_ms)
        if consumer.owner is not None and now <= consumer.deadline:
            raise ApiError(
                "consumer_owned",
                f"consumer {name!r} is owned by {consumer.owner!r}",
                detail={"owner": consumer.owner, "deadline": consumer.deadline},
            )
        return AcquireEvent(name, now, owner, self.last_generation + 1, now + lease_ms)

    def decide_release(self, name: str, generation: int, now: int) -> DisownEvent | None:
        """Decide that the owner of this generation gives the consumer up; None if it does not own it. Raises 404."""
        consumer = self.get(name)
        if consumer.owner is None or consumer.generation != generation:
            return None
        return DisownEvent(name, now)

    def decide_delete(self, name: str, now: int) -> DeleteEvent | None:
        """Decide to delete the consumer; None if it does not exist."""
        return DeleteEvent(name, now) if name in self._by_name else None

    def check_generation(self, consumer: Consumer, generation: int | None) -> None:
        """Check that a call with this generation (None: the call names none) may move the consumer. Raises `409
        fenced`."""
        if generation == consumer.generation or (generation is None and consumer.owner is None):
            return
        detail = {"consumer": consumer.name, "generation": consumer.generation, "owner": consumer.owner}
        raise ApiError("fenced", f"consumer {consumer.name!r} is at generation {consumer.generation}", detail=detail)

    # -- events ------------------------------------------------------------------------------------------------------

    def apply(self, event: ConsumerEvent) -> Consumer | None:
        """Carry out an event. Return the changed consumer, None if it is deleted. Does nothing if the consumer does not
        exist: replay may meet an event of a consumer whose creation salvage has given up."""
        self._buckets[_bucket_of(event.consumer)] = None
        if isinstance(event, AcquireEvent):
            self.last_generation = max(self.last_generation, event.generation)
        if isinstance(event, DeleteEvent):
            gone = self._by_name.pop(event.consumer, None)
            self.filter_size -= gone.filter_size if gone is not None else 0
            return None
        consumer = self._by_name.get(event.consumer)
        if consumer is None:
            if not isinstance(event, PutEvent):
                return None
            consumer = self._by_name[event.consumer] = Consumer(event.consumer, event.seq)
        consumer.used_at = max(consumer.used_at, event.at)
        if isinstance(event, PutEvent):
            self.filter_size -= consumer.filter_size
            consumer.ttl_ms, consumer.filter = event.ttl_ms, event.filter
            self.filter_size += consumer.filter_size
        elif isinstance(event, CommitEvent):
            consumer.seq, consumer.last_commit_ts = event.seq, event.ts
        elif isinstance(event, SeekEvent):
            consumer.seq = event.seq
        elif isinstance(event, AcquireEvent):
            consumer.owner, consumer.generation, consumer.deadline = event.owner, event.generation, event.deadline
        else:
            consumer.owner = None
        return consumer

    def use(self, consumer: Consumer, now: int) -> None:
        """Note that a call has named the consumer: its ttl begins again. Not logged, because every consumer counts as
        used at a start."""
        consumer.used_at = max(consumer.used_at, now)

    # -- dumps -------------------------------------------------------------------------------------------------------

    def dump(self, encode: Callable[[Any], bytes]) -> list[Any]:
        """Return the consumers for `load`: the last generation, and the buckets that have consumers."""
        stale = {at: [] for at, encoded in enumerate(self._buckets) if encoded is None}  # type: dict[int, list[Any]]
        if stale:
            for name, consumer in self._by_name.items():
                rows = stale.get(_bucket_of(name))
                if rows is not None:
                    rows.append(consumer.dump())
            for at, rows in stale.items():
                self._buckets[at] = encode(rows) if rows else b""
        return [self.last_generation, [encoded for encoded in self._buckets if encoded]]

    @classmethod
    def load(cls, topic: str, value: object, decode: Callable[[bytes], Any]) -> Consumers:
        """Rebuild the consumers of `topic` from what `dump` returned. Raises ValueError if `value` is no such dump."""
        match value:
            case [int(last_generation), list(buckets)] if last_generation >= 0:
                consumers = cls(topic)
                consumers.last_generation = last_generation
                for encoded in buckets:
                    rows: Sequence[object] = decode(encoded)
                    for consumer in map(Consumer.load, rows):
                        if consumer.name in consumers._by_name or consumer.generation > last_generation:
                            raise ValueError(f"consumers: {consumer.name!r} twice, or of a generation to come")
                        consumers._by_name[consumer.name] = consumer
                        consumers.filter_size += consumer.filter_size
                        consumers._buckets[_bucket_of(consumer.name)] = None
                return consumers
        raise ValueError("consumers: not a dump")


def _bucket_of(name: str) -> int:
    return crc32(name.encode()) % BUCKETS


def _check_seq(seq: int, head_seq: int) -> None:
    if seq > head_seq:
        raise invalid("seq", f"is beyond the head, which is {head_seq}", head_seq=head_seq)
