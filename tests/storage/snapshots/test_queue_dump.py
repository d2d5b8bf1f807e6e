"""The jobs of a queue in a snapshot: what a checkpoint writes is what a start reads, compressed or not."""

from __future__ import annotations

import zlib
from array import array
from typing import Any

import cbor2
import pytest

from topics.queue.lease_events import ClaimEvent, EnqueueEvent
from topics.queue.leases import Leases
from topics.runtime.instant import Instant
from topics.storage.snapshots import queue_dump
from topics.storage.snapshots.queue_dump import FrozenQueue, load_queue

NOW = Instant(1000, 5000, 9000)
JOBS = 100_000


@pytest.fixture
def frozen() -> FrozenQueue:
    leases = Leases()
    seqs = array("Q", range(1, JOBS + 1))
    times = array("Q", [10_000_000 + seq * 7919 % 100_000 for seq in seqs])
    leases.apply(EnqueueEvent(seqs, times, bytes([5]) * JOBS))
    leases.apply(ClaimEvent("n", array("Q", [7, 5000]), array("Q", [1, 2]), NOW.after(60_000)))
    return FrozenQueue(NOW.window, leases.freeze(NOW))


def stored(dumped: Any) -> Any:
    return cbor2.loads(cbor2.dumps(dumped))


def test_pages_are_the_same_compressed_or_not(frozen: FrozenQueue) -> None:
    assert frozen.is_large
    plain, deflated = frozen.dump(), frozen.dump(deflates=True)
    assert len(cbor2.dumps(deflated)) < 0.5 * len(cbor2.dumps(plain))
    one, other = load_queue(stored(plain), NOW), load_queue(stored(deflated), NOW)
    assert one.dump(NOW) == other.dump(NOW) == frozen.leases.dump()
    assert (other.in_flight, other.delayed) == (2, JOBS - 2)


def test_what_is_longer_than_a_load_takes_is_not_compressed(
    frozen: FrozenQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_dump, "DEFLATED_BYTES", 1000)
    dumped = frozen.dump(deflates=True)
    assert dumped == frozen.dump()
    assert load_queue(dumped, NOW).delayed == JOBS - 2


@pytest.mark.parametrize(
    "chunk",
    [
        zlib.compress(cbor2.dumps([]))[:-1],
        zlib.compress(cbor2.dumps([])) + b"x",
        zlib.compress(bytes(queue_dump.DEFLATED_BYTES + 1)),
        b"\x78\x01" + bytes(100),
        zlib.compress(b"\xff"),
        7,
    ],
    ids=["cut off", "longer", "too large", "garbage", "no CBOR", "a number"],
)
def test_other_bytes_are_refused(chunk: Any) -> None:
    as_of, jobs = FrozenQueue(NOW.window, Leases().freeze(NOW)).dump()
    with pytest.raises(ValueError, match=r"(?i)jobs|pages|bytes|queue"):
        load_queue([as_of, {**jobs, "pages": [chunk]}], NOW)
