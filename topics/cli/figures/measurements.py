"""The measurements of `topics bench` against a running daemon: on topics of its own, with threads of one client.

Responsible for the loads, their figures and the topics, which are removed in the end, also after a failure. The output
is the business of `topics.cli.figures.bench`. The figures are those of a Python client: what the daemon does for a
cheaper one is measured by `scripts/bench`.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
import uuid
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from topics.client import CaughtUp, Client, NewRecord, Record, TopicsError
from topics.client.calls import encode_record, encoded_append

Durability = Literal["ephemeral", "memory", "disk", "fsync"]

WARM_UP_SHARE: Final = 0.2
"""Of the time of a measurement, on top of it; not counted."""
JOIN_S: Final = 5.0
"""How long a thread that is to stop has for the call it is in. It is left behind then, and finds its topic gone."""
LOOK_S: Final = 0.1
BATCH_BYTES: Final = 8_000_000
"""Of one append: batches of large records have fewer of them."""
KEPT_BYTES: Final = 256_000_000
"""The cap of a topic here: a long measurement evicts what it has appended first."""
JOB_BYTES: Final = 16_000_000
JOBS: Final = 50_000
"""That wait to be claimed, fewer if they are large. A measurement that has claimed them all ends before its time."""
CLAIMED: Final = 100
"""Jobs of one claim, where many are claimed."""
DELIVERIES_PER_S: Final = 50
"""Records appended in a second while their delivery is timed."""
DELIVERY_WAIT_S: Final = 30.0
NOTHING: Final = "a measurement found nothing to do: somebody else has taken its jobs or removed its records"


@dataclass(frozen=True, slots=True)
class MeasurementSettings:
    """Of one run."""

    durability: Durability
    seconds: float
    """Of each measurement."""
    size: int
    """Bytes of a record's data."""
    connections: int


class Figure(msgspec.Struct, kw_only=True):
    """One line of the result."""

    name: str
    what: str
    value: float
    unit: str


class MeasurementFailure(Exception):
    """A measurement has no result, though no call has failed."""


@dataclass(slots=True)
class MeasuredLoad:
    """The work of one measurement, from the beginning of the first call that counts to the end of the last."""

    began: float = math.inf
    ended: float = -math.inf
    items: int = 0
    latencies_ms: array[float] = field(default_factory=lambda: array("d"))

    def count(self, began: float, ended: float, items: int) -> None:
        """Add one call. Not thread-safe."""
        self.began, self.ended = min(self.began, began), max(self.ended, ended)
        self.items += items
        self.latencies_ms.append((ended - began) * 1000)

    @property
    def per_s(self) -> float:
        """Items in a second. Raises Failed if there were none."""
        if not self.items:
            raise MeasurementFailure(NOTHING)
        return self.items / max(self.ended - self.began, 1e-9)

    def percentile_ms(self, share: float) -> float:
        """The latency that the share `share` (0 to 1) of all calls does not exceed, in ms. Raises Failed without
        calls."""
        ordered = sorted(self.latencies_ms)
        if not ordered:
            raise MeasurementFailure(NOTHING)
        return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


class Measurements:
    """All measurements. They run one after the other, each with the records of the ones before."""

    def __init__(self, client: Client, settings: MeasurementSettings) -> None:
        self._client = client
        self._settings = settings
        self.all: tuple[tuple[str, Callable[[], list[Figure]]], ...] = (
            ("appends of one record", self._one_record),
            ("appends of 100 records", lambda: self._batches(100)),
            ("appends of 1000 records", lambda: self._batches(1000)),
            ("reads", self._reads),
            ("appends to delivery", self._delivery),
            ("claims of one job", self._one_job),
            ("claims of many jobs", self._jobs),
        )
        """The name of each measurement, and the function that makes it, which raises a TopicsError or Failed."""
        name = f"bench-{secrets.token_hex(4)}"
        self._log, self._jobs_topic = name, f"{name}-jobs"
        self.left: list[str] = []
        """Topics that could not be removed."""

    @contextmanager
    def topics(self) -> Iterator[None]:
        """Create the topics, and remove them after the block. `left` are those that could not be removed."""
        made = (self._log, self._jobs_topic)
        try:
            durability = self._settings.durability
            self._client.create(self._log, durability=durability, cap_bytes=KEPT_BYTES)
            self._client.create(self._jobs_topic, type="queue", durability=durability, lease_ms=60_000)
            yield
        finally:
            self.left = list(made)
            for name in made:
                with suppress(TopicsError):
                    self._remove(name)
                    self.left.remove(name)

    def _remove(self, name: str) -> None:
        """Nobody else has a topic of that name, so that a removal whose outcome is unknown can be repeated."""
        for _ in range(3):
            with suppress(TopicsError):
                self._client.delete_topic(name)
                return
            time.sleep(LOOK_S)
        self._client.delete_topic(name)

    # -- append and read ---------------------------------------------------------------------------------------------

    def _one_record(self) -> list[Figure]:
        record = self._records(1)
        load = self._load(1, lambda: self._append(self._log, record))
        return _latencies("append_one", "append, one record, one connection", load)

    def _batches(self, count: int) -> list[Figure]:
        records = self._records(count)
        load = self._load(self._settings.connections, lambda: self._append(self._log, records))
        what = f"append, batches of {len(records)}, {_connections(self._settings.connections)}"
        return [
            _rate(f"append_{count}", what, "records/s", load.per_s),
            _rate(f"append_{count}_bytes", "... of data", "MB/s", load.per_s * self._settings.size / 1e6),
        ]

    def _reads(self) -> list[Figure]:
        client, topic = self._client, self._log

        def read() -> Callable[[], int]:
            position = 0

            def page() -> int:
                nonlocal position
                found = client.diff(topic, position, limit=1000)
                position = 0 if found.caught_up else found.next_from_seq
                return len(found.records)

            return page

        load = self._load_of(self._settings.connections, read)
        what = f"read, pages of up to 1000, {_connections(self._settings.connections)}"
        return [_rate("read", what, "records/s", load.per_s)]

    def _append(self, topic: str, records: list[bytes]) -> int:
        # Never creates: appends that are under way when the topics are removed must not create one again.
        rest = {"idempotency_key": uuid.uuid4().hex, "create": False}
        return self._client.run(encoded_append(topic, records, rest, return_seqs=False)).count

    def _records(self, count: int) -> list[bytes]:
        """Records with data of the size asked for, as an append holds them; encoded once."""
        size = self._settings.size
        data = msgspec.Raw(b'"' + b"x" * (size - 2) + b'"' if size > 1 else b"0")
        return [encode_record(NewRecord(data))] * max(1, min(count, BATCH_BYTES // size))

    # -- delivery ----------------------------------------------------------------------------------------------------

    def _delivery(self) -> list[Figure]:
        """Append records at a steady pace, without waiting for earlier ones. Each is timed from just before its append
        until the reader has it."""
        count = max(round(self._settings.seconds * DELIVERIES_PER_S), 1)
        sent: list[float] = []
        load = MeasuredLoad()
        follows, over = threading.Event(), threading.Event()
        failures: list[Exception] = []

        def follow() -> None:
            try:
                with self._client.tail(self._log, tail=True, caught_up=True) as following:
                    for event in following:
                        now = time.perf_counter()
                        if isinstance(event, CaughtUp):
                            follows.set()
                        elif isinstance(event, Record):
                            load.count(sent[event.data["n"]], now, 1)
                            if load.items == count:
                                return
                        else:
                            raise MeasurementFailure(
                                "the daemon lost records of the topic while their delivery was timed"
                            )
            except Exception as error:
                failures.append(error)
            finally:
                follows.set()
                over.set()

        # The removal of its topic ends it, if nothing else does.
        threading.Thread(target=follow, daemon=True).start()
        _wait_for(follows, DELIVERY_WAIT_S)
        padding = "x" * max(self._settings.size - len('{"n":0000,"x":""}'), 0)
        began = time.perf_counter()
        for number in range(count):
            wait = began + number / DELIVERIES_PER_S - time.perf_counter()
            if over.wait(max(wait, 0)):
                break
            sent.append(time.perf_counter())
            self._client.append(self._log, [{"n": number, "x": padding}], create=False, return_seqs=False)
        _wait_for(over, DELIVERY_WAIT_S)
        if failures:
            raise failures[0]
        return _latencies("delivery", f"append to delivery, {DELIVERIES_PER_S} records/s", load)

    # -- queues ------------------------------------------------------------------------------------------------------

    def _one_job(self) -> list[Figure]:
        load = self._job_load(1, 1)
        return _latencies("claim_ack_one", "claim and ack, one job, one connection", load)

    def _jobs(self) -> list[Figure]:
        load = self._job_load(self._settings.connections, CLAIMED)
        what = f"claim and ack, up to {CLAIMED} at a time, {_connections(self._settings.connections)}"
        return [_rate("claim_ack_100", what, "jobs/s", load.per_s)]

    def _work(self, most: int) -> int:
        """Claim and ack up to so many. Returns how many there were; 0: no more."""
        node = f"bench-{threading.get_ident()}"
        claimed = self._client.claim(self._jobs_topic, node, max=most).claimed
        if not claimed:
            return 0
        seqs, leases = [job.seq for job in claimed], [job.lease_id for job in claimed]
        return self._client.ack(self._jobs_topic, node, seqs, lease_ids=leases).acked

    def _job_load(self, connections: int, most: int) -> MeasuredLoad:
        """Claim and ack jobs that are appended before. No warm-up, which might use them up."""
        left = max(min(JOBS, JOB_BYTES // self._settings.size), 1)
        while left > 0:
            left -= self._append(self._jobs_topic, self._records(min(left, 1000)))
        return self._load_of(connections, lambda: lambda: self._work(most), warm_up=0.0)

    # -- closed loops ------------------------------------------------------------------------------------------------

    def _load(self, connections: int, work: Callable[[], int]) -> MeasuredLoad:
        return self._load_of(connections, lambda: work)

    def _load_of(
        self, connections: int, make: Callable[[], Callable[[], int]], *, warm_up: float = WARM_UP_SHARE
    ) -> MeasuredLoad:
        """Each connection does one call after the other until the time is over and one has counted, or a call returns
        0: there is no more to do. The first that fails ends it. KeyboardInterrupt ends it too, within `JOIN_S`."""
        load, lock, stop = MeasuredLoad(), threading.Lock(), threading.Event()
        failures: list[Exception] = []
        measure_from = time.perf_counter() + warm_up * self._settings.seconds
        end = measure_from + self._settings.seconds

        def run() -> None:
            counted = False
            try:
                work = make()
                while not stop.is_set():
                    began = time.perf_counter()
                    if counted and began >= end:
                        return
                    items = work()
                    ended = time.perf_counter()
                    if not items:
                        return
                    if began >= measure_from:
                        counted = True
                        with lock:
                            load.count(began, ended, items)
            except Exception as error:
                failures.append(error)
                stop.set()

        threads = [threading.Thread(target=run, daemon=True) for _ in range(connections)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(LOOK_S)
        finally:
            stop.set()
            give_up = time.perf_counter() + JOIN_S
            for thread in threads:
                thread.join(max(give_up - time.perf_counter(), 0))
        if failures:
            raise failures[0]
        return load


def _wait_for(event: threading.Event, seconds: float) -> None:
    if not event.wait(seconds):
        raise MeasurementFailure(f"a stream of the daemon said nothing for {seconds:.0f} s")


def _latencies(name: str, what: str, load: MeasuredLoad) -> list[Figure]:
    return [
        Figure(name=f"{name}_p50", what=f"{what}, p50", value=load.percentile_ms(0.5), unit="ms"),
        Figure(name=f"{name}_p99", what="... p99", value=load.percentile_ms(0.99), unit="ms"),
    ]


def _rate(name: str, what: str, unit: str, value: float) -> Figure:
    return Figure(name=name, what=what, value=value, unit=unit)


def _connections(count: int) -> str:
    return f"{count} connection{'' if count == 1 else 's'}"
