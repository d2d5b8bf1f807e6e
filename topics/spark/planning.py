"""Which seqs a query reads: its partitions, the offsets of a stream, and what of it is loss.

Pure: what the daemon knows of its topics is handed in, nothing is asked for.

A partition is a range of one instance of one topic, `(after, last]`, fixed when it is planned: whatever happens to the
topic later, the task delivers exactly what is in that range, and what has gone from it is loss. A stream's offset says
for each topic the last seq that was read and the epoch of the instance it was read from, so the same two offsets are
the same partitions, at any time. Three things that can happen to a topic of a stream show in the offsets alone:

- It is in the end but not in the start: it has joined. It is read from its beginning, or from after `from`, which the
  end says where retention had taken seqs before the stream knew of the topic: those were never the stream's to lose.
- It has another epoch in the end, or a smaller seq: it was deleted and made again, or the daemon has gone back to a
  backup. What was to come is loss, and what there is now is read like a topic that has joined.
- It is as it was: it has nothing new, or is gone. That somebody has deleted it is no loss (`docs/spec/semantics.md`
section 3),
  and if it comes back, it comes with another epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from topics.spark.options import Bound, Edge

RECREATED: Final = "recreated"
DELETED: Final = "deleted"
"""The reason, beside those of `docs/spec/api.md` section 5, for a topic that was there when the range was planned."""


class Known(NamedTuple):
    """What the daemon says of a topic: the instance, its last seq, and its first live one."""

    epoch: int
    head: int
    earliest: int


class Gap(NamedTuple):
    """Seqs that are gone and that nobody has deleted. `last` is None where nobody knows how far they went."""

    first: int
    last: int | None
    reason: str


@dataclass(frozen=True)
class Part(InputPartition):
    """One task: the seqs `(after, last]` of one instance of a topic, and before them a gap that the plan itself
    knows of."""

    topic: str
    after: int
    last: int
    epoch: int
    gap: Gap | None = None


Offsets = dict[str, dict[str, int]]
"""How far a stream is: for each topic `seq`, `epoch`, and `from` (see above), until something was read of it."""


# --- batches ---------------------------------------------------------------------------------------------------------


def batch(known: Mapping[str, Known], starting: Bound, ending: Bound, size: int) -> list[Part]:
    """The partitions of a batch, of at most `size` seqs each. An end beyond the head is the head."""
    parts: list[Part] = []
    for topic, state in known.items():
        after = beginning(starting.of(topic), state)
        end = ending.of(topic)
        last = state.head if end == "latest" else min(_seq(end), state.head)
        parts.extend(pieces(topic, after, last, state.epoch, size))
    return parts


def beginning(edge: Edge, state: Known) -> int:
    """After which seq a range begins. What retention had taken before `earliest` was asked for is not in it; before a
    seq that somebody names it is, if it is not less."""
    if edge == "earliest":
        return state.earliest - 1
    return state.head if edge == "latest" else _seq(edge) - 1


def _seq(edge: Edge) -> int:
    assert isinstance(edge, int)
    return edge


def pieces(topic: str, after: int, last: int, epoch: int, size: int) -> Iterator[Part]:
    """`(after, last]` in parts of at most `size` seqs."""
    for begin in range(after, last, size):
        yield Part(topic, begin, min(begin + size, last), epoch)


# --- streams ---------------------------------------------------------------------------------------------------------


def initial(known: Mapping[str, Known], starting: Bound) -> Offsets:
    """Where a new query begins. One that begins at a seq that is still to come has that in `from`."""
    offsets: Offsets = {}
    for topic, state in known.items():
        after = beginning(starting.of(topic), state)
        offsets[topic] = {"seq": min(after, state.head), "epoch": state.epoch}
        if after > state.head:
            offsets[topic]["from"] = after
    return offsets


def latest(start: Offsets, known: Mapping[str, Known], limit: int | None) -> Offsets:
    """How far the next batch goes, by at most `limit` seqs over all topics (None: to the heads).

    What is allowed is divided evenly among the topics that have something, and what one does not need goes to the
    others. Where there is less than one seq for each, they take turns.
    """
    end = {topic: dict(offset) for topic, offset in start.items()}
    begins: dict[str, int] = {}
    for topic, state in known.items():
        before = start.get(topic)
        if before is not None and _goes_on(before, state.epoch, state.head):
            begins[topic] = _read_after(before)
            continue
        begin = state.earliest - 1
        begins[topic] = begin
        end[topic] = {"seq": begin, "epoch": state.epoch} | ({"from": begin} if begin else {})
    backlogs = {topic: known[topic].head - begin for topic, begin in begins.items() if known[topic].head > begin}
    turn = sum(offset["seq"] for offset in start.values())
    for topic, count in shares(backlogs, limit, turn).items():
        end[topic]["seq"] = begins[topic] + count
        before = start.get(topic)
        if before is not None and _goes_on(before, end[topic]["epoch"], known[topic].head):
            end[topic].pop("from", None)
    return end


def _goes_on(before: Mapping[str, int], epoch: int, seq: int) -> bool:
    """Return True if an offset is of this epoch, and its seq does not lie behind `seq`."""
    return before["epoch"] == epoch and before["seq"] <= seq


def _read_after(offset: Mapping[str, int]) -> int:
    return max(offset["seq"], offset.get("from", 0))


def shares(backlogs: Mapping[str, int], limit: int | None, turn: int) -> dict[str, int]:
    """How many of its seqs each topic gets, at most `limit` in all. `turn` says whose turn it is where one has to get
    more than another: it moves on with what was read, so that each topic has its turn."""
    if limit is None or sum(backlogs.values()) <= limit:
        return dict(backlogs)
    given = dict.fromkeys(backlogs, 0)
    waiting = sorted(backlogs)
    while waiting and limit >= len(waiting):
        even = limit // len(waiting)
        for topic in waiting:
            more = min(even, backlogs[topic] - given[topic])
            given[topic] += more
            limit -= more
        waiting = [topic for topic in waiting if given[topic] < backlogs[topic]]
    for place in range(min(limit, len(waiting))):
        given[waiting[(turn + place) % len(waiting)]] += 1
    return {topic: count for topic, count in given.items() if count}


def capped(known: Mapping[str, Known], target: Mapping[str, Known]) -> dict[str, Known]:
    """What is known, as if nothing had come since `target` was: neither records nor topics nor instances."""
    return {
        topic: state._replace(head=min(state.head, target[topic].head))
        for topic, state in known.items()
        if topic in target and target[topic].epoch == state.epoch
    }


def between(start: Offsets, end: Offsets, size: int) -> list[Part]:
    """The partitions between two offsets of a stream, from nothing but these."""
    parts: list[Part] = []
    for topic, offset in end.items():
        before = start.get(topic)
        if before is not None and _goes_on(before, offset["epoch"], offset["seq"]):
            after = _read_after(before)
        else:
            after = offset.get("from", 0)
            if before is not None:
                gap = Gap(before["seq"] + 1, None, RECREATED)
                parts.append(Part(topic, after, after, offset["epoch"], gap))
        parts.extend(pieces(topic, after, offset["seq"], offset["epoch"], size))
    return parts
