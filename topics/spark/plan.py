"""Which seqs a query reads: its partitions, the offsets of a stream, and the seqs that count as lost.

Pure: the facts about topics are handed in, the daemon is not asked.

A partition is a range of one instance of one topic, `(after, last]`, fixed when it is planned. Later changes of the
topic do not move it: the task delivers the records of that range, and records that are gone from it are loss. A
stream's offset holds for each topic the last seq that was read and the epoch of its instance, so two offsets make the
same partitions at any time. Three things that can happen to a topic of a stream show in the offsets alone:

- It is in the end but not in the start: it has joined. It is read from its beginning, or from after `from`, which the
  end says where retention had taken seqs before the stream knew of the topic: those were never the stream's to lose.
- It has another epoch in the end, or a smaller seq: it was deleted and made again, or the daemon has gone back to a
  backup. Records that were to come are loss, and the present ones are read like those of a topic that has joined.
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


class KnownTopic(NamedTuple):
    """The facts about a topic: its instance, its last seq, and its first live seq."""

    epoch: int
    head: int
    earliest: int


class SeqGap(NamedTuple):
    """Seqs that are gone and that no call has deleted. `last` is None where it is not known how far they went."""

    first: int
    last: int | None
    reason: str


@dataclass(frozen=True)
class RestPart(InputPartition):
    """A partition: the seqs `(after, last]` of one instance of a topic, and a gap before them if the plan has found
    one."""

    topic: str
    after: int
    last: int
    epoch: int
    gap: SeqGap | None = None


Offsets = dict[str, dict[str, int]]
"""How far a stream is: for each topic `seq`, `epoch`, and `from` (see above), until something was read of it."""


# --- batches ---------------------------------------------------------------------------------------------------------


def batch(known: Mapping[str, KnownTopic], starting: Bound, ending: Bound, size: int) -> list[RestPart]:
    """The partitions of a batch, of at most `size` seqs each. An end beyond the head is the head."""
    parts: list[RestPart] = []
    for topic, state in known.items():
        after = beginning(starting.of(topic), state)
        end = ending.of(topic)
        last = state.head if end == "latest" else min(_seq(end), state.head)
        parts.extend(pieces(topic, after, last, state.epoch, size))
    return parts


def beginning(edge: Edge, state: KnownTopic) -> int:
    """The seq after which a range begins. With `earliest` it is that before the first live record, so records that
    retention has removed are not in the range; with a seq it is that seq, and they may be."""
    if edge == "earliest":
        return state.earliest - 1
    return state.head if edge == "latest" else _seq(edge) - 1


def _seq(edge: Edge) -> int:
    assert isinstance(edge, int)
    return edge


def pieces(topic: str, after: int, last: int, epoch: int, size: int) -> Iterator[RestPart]:
    """`(after, last]` in parts of at most `size` seqs."""
    for begin in range(after, last, size):
        yield RestPart(topic, begin, min(begin + size, last), epoch)


# --- streams ---------------------------------------------------------------------------------------------------------


def initial(known: Mapping[str, KnownTopic], starting: Bound) -> Offsets:
    """The offset at which a new query begins. A seq beyond the head is in `from`."""
    offsets: Offsets = {}
    for topic, state in known.items():
        after = beginning(starting.of(topic), state)
        offsets[topic] = {"seq": min(after, state.head), "epoch": state.epoch}
        if after > state.head:
            offsets[topic]["from"] = after
    return offsets


def latest(start: Offsets, known: Mapping[str, KnownTopic], limit: int | None) -> Offsets:
    """The offset at which the next batch ends, at most `limit` seqs further over all topics (None: the heads).

    The limit is divided evenly among the topics with new seqs; a topic that does not need its share leaves it to the
    others. Where the limit is less than one seq for each, the topics take turns.
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
    """How many seqs of each topic are read, at most `limit` in all. Where a topic must get more than another, `turn`
    decides: it grows with the seqs that were read, so that each topic has its turn."""
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


def capped(known: Mapping[str, KnownTopic], target: Mapping[str, KnownTopic]) -> dict[str, KnownTopic]:
    """The facts about topics without all records, topics and instances that are newer than `target`."""
    return {
        topic: state._replace(head=min(state.head, target[topic].head))
        for topic, state in known.items()
        if topic in target and target[topic].epoch == state.epoch
    }


def between(start: Offsets, end: Offsets, size: int) -> list[RestPart]:
    """The partitions between two offsets of a stream. They depend on the offsets alone."""
    parts: list[RestPart] = []
    for topic, offset in end.items():
        before = start.get(topic)
        if before is not None and _goes_on(before, offset["epoch"], offset["seq"]):
            after = _read_after(before)
        else:
            after = offset.get("from", 0)
            if before is not None:
                gap = SeqGap(before["seq"] + 1, None, RECREATED)
                parts.append(RestPart(topic, after, after, offset["epoch"], gap))
        parts.extend(pieces(topic, after, offset["seq"], offset["epoch"], size))
    return parts
