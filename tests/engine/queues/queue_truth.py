"""What the jobs of a queue have been through, as its callers were told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pytest

from tests.engine.walks import Wrong
from topics.engine.registry import Registry
from topics.engine.topic import Topic
from topics.job_model import HeldRequest, HeldResult, Job
from topics.log.topic_log import Extent, TopicLog

LEASES_MS: Final = (300, 2500)
"""What the topic says, at one time or another."""


def sure(truth: object, *said: object) -> None:
    if not truth:
        raise Wrong(*said)


class Told:
    """A lease as its holder knows it; times are true ones."""

    def __init__(self, node: str, lease_id: int, until: int, at_most: int, forward: int) -> None:
        self.node = node
        self.lease_id = lease_id
        self.until = until
        """Certain up to and including it."""
        self.at_most = at_most
        """Over after it."""
        self.over = False
        """It may be, by what its holder has sent."""
        self.busy = 0
        """Calls about it on their way."""
        self.forward = forward


class Said(NamedTuple):
    """A call about jobs, on its way: which leases were the caller's when it was sent, and which of them nobody had said
    anything else about."""

    request: HeldRequest
    theirs: dict[int, Told]
    sent: dict[int, Told]

    def alone(self) -> dict[int, Told]:
        """Those that nothing else is said about either by now."""
        return {seq: lease for seq, lease in self.sent.items() if lease.busy == 1}


class Truth:
    """See the module."""

    def __init__(self, *, counts_all: bool) -> None:
        self.counts_all = counts_all
        """Nothing is done that a client is not told of, but what vanished ones have asked for."""
        self.log: TopicLog | None = None
        self.dead_letters: TopicLog | None = None
        self.dead_letters_evicted = 0
        self.live: set[int] = set()
        """Jobs that are there."""
        self.removed: set[int] = set()
        self.added: set[int] = set()
        """Those that have gone, and come, in this life."""
        self.known: set[int] = set()
        self.leases: dict[int, Told] = {}
        self.acked: set[int] = set()
        """As told."""
        self.acks_sent: dict[int, set[str]] = {}
        self.not_before: dict[int, int] = {}
        self.told: dict[int, int] = {}
        """How often each was claimed, as told."""
        self.deliveries: dict[int, int] = {}
        self.ghosts = 0
        """Claims that nobody was told of, at most."""
        self.deletes: list[list[int]] = []
        """Deletions on their way: before which seq."""
        self.taken: set[int] = set()
        """Evicted, or perhaps deleted by somebody."""
        self.unexplained: set[int] = set()
        """Deleted by nobody we know of: they have to be in the dead-letter topic."""
        self.forward_ms = 0
        self.forward_before = 0
        """`forward_ms` at the start of this life. Within a life the daemon does not look at the wall clock. After a
        loss of power it does, and then all steps since the start count, also those before a lease."""
        self.base_ms = 0
        self.claims = 0

    # -- what the log says -------------------------------------------------------------------------------------------

    def begin_deletion(self, before: int | None) -> list[int]:
        """Somebody deletes; which tags there are is not known here."""
        self.deletes.append([before if before is not None else 1 << 62])
        return self.deletes[-1]

    def _may_be_deleted(self, seq: int) -> bool:
        return any(seq < before for (before,) in self.deletes)

    def _deleted(self, seqs: Sequence[int], reason: str) -> None:
        for seq in seqs:
            if seq not in self.live:
                continue
            self.live.remove(seq)
            self.removed.add(seq)
            if reason == "evicted" or self._may_be_deleted(seq):
                self.taken.add(seq)
                continue
            if reason == "seqs" and seq in self.acks_sent:
                continue
            sure(reason == "seqs", seq, "was deleted without a reason")
            self.unexplained.add(seq)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear of everything that happens to the jobs."""
        truth = self
        extend, below, seqs_, evict = TopicLog.extend, TopicLog.delete_below, TopicLog.delete_seqs, TopicLog.evict_below
        hole, add = TopicLog.add_hole, Registry.add

        def hear_add(registry: Registry, topic: Topic) -> None:
            if topic.name == "q":
                truth.log = topic.log
                truth.removed = set()
                truth.added = set()
            elif topic.name == "dlq":
                truth.dead_letters = topic.log
            add(registry, topic)

        def hear_extend(log: TopicLog, extent: Extent) -> None:
            extend(log, extent)
            if log is truth.log:
                for seq in range(extent.first_seq, extent.first_seq + len(extent.flags)):
                    truth.live.add(seq)
                    truth.added.add(seq)
                    truth.known.add(seq)

        def hear_below(log: TopicLog, before_seq: int, bound: int) -> int:
            result = below(log, before_seq, bound)
            if log is truth.log:
                truth._deleted([seq for seq in truth.live if seq < before_seq and seq <= bound], "below")
            return result

        def hear_seqs(log: TopicLog, gone: Sequence[int]) -> int:
            result = seqs_(log, gone)
            if log is truth.log:
                truth._deleted(gone, "seqs")
            return result

        def hear_evict(log: TopicLog, seq: int, reason: Any) -> int:
            result = evict(log, seq, reason)
            if log is truth.log:
                truth._deleted([other for other in truth.live if other < seq], "evicted")
            elif log is truth.dead_letters:
                truth.dead_letters_evicted += result
            return result

        def hear_hole(log: TopicLog, first: int, last: int, reason: Any) -> None:
            hole(log, first, last, reason)
            if log is truth.log:
                sure(reason == "source_trim", f"a {reason} hole at {first} to {last}")

        with pytest.MonkeyPatch.context() as patch:
            for owner, name, hear in (
                (Registry, "add", hear_add),
                (TopicLog, "extend", hear_extend),
                (TopicLog, "delete_below", hear_below),
                (TopicLog, "delete_seqs", hear_seqs),
                (TopicLog, "evict_below", hear_evict),
                (TopicLog, "add_hole", hear_hole),
            ):
                patch.setattr(owner, name, hear)
            yield

    # -- what clients say and are told -------------------------------------------------------------------------------

    def claimed(self, node: str, jobs: Sequence[Job], began: int, now: int, lease_ms: int | None) -> None:
        seqs = [job.seq for job in jobs]
        sure(seqs == sorted(set(seqs)), "not ascending", seqs)
        least, most = (lease_ms, lease_ms) if lease_ms is not None else (min(LEASES_MS), max(LEASES_MS))
        for job in jobs:
            seq = job.seq
            self.claims += 1
            sure(seq in self.known, seq, "was never appended")
            sure(seq not in self.acked, seq, "was acked, and is given to", node)
            before = self.leases.get(seq)
            if before is not None and not before.over:
                sure(now > before.until, seq, "has two holders:", before.node, node, f"{now} <= {before.until}")
            sure(
                now >= self.not_before.get(seq, 0), seq, "was delayed until", self.not_before.get(seq), "and it is", now
            )
            last = self.deliveries.get(seq, 0)
            self.told[seq] = self.told.get(seq, 0) + 1
            sure(last < job.deliveries, seq, f"delivery {job.deliveries} after {last}")
            if self.counts_all:
                sure(job.deliveries <= self.told[seq] + self.ghosts, seq, job.deliveries, self.told[seq], self.ghosts)
                if not self.ghosts:
                    sure(job.deliveries == self.told[seq], seq, job.deliveries, self.told[seq])
            self.deliveries[seq] = job.deliveries
            self.leases[seq] = Told(node, job.lease_id, began + least, now + most, self.forward_before)

    def rightful(self, node: str, seq: int, lease_id: int | None) -> Told | None:
        lease = self.leases.get(seq)
        if lease is None or lease.node != node or (lease_id is not None and lease.lease_id != lease_id):
            return None
        return lease

    def judge(self, said: Said, answer: HeldResult, now: int) -> None:
        """The answer to an ack, nack or extend."""
        seqs = said.request.seqs
        sure(set(answer.done) | set(answer.skipped) == set(seqs), "not all were answered for", seqs, answer)
        sure(len(answer.done) + len(answer.skipped) == len(set(seqs)), "some were answered for twice", seqs, answer)
        sure(answer.done == sorted(answer.done), answer)
        sure(min(answer.ready, answer.in_flight) >= 0, answer)
        for seq in answer.done:
            sure(seq in said.theirs, seq, "was not its caller's", said.request)
        for seq, lease in said.alone().items():
            if seq in self.live and lease is self.leases.get(seq) and now <= lease.until:
                sure(seq in answer.done, seq, "is its caller's, and was skipped", said.request, now, lease.until)

    def restarted(self, live: set[int], *, keeps_leases: bool, keeps_jobs: bool, exact: bool) -> None:
        """Another life has begun, with these jobs."""
        if keeps_jobs:
            lost = self.live - live
            # An ack, a move or a deletion may have been on its way.
            self.unexplained |= {seq for seq in lost if seq not in self.acks_sent and not self._may_be_deleted(seq)}
            self.deletes.clear()
            sure(not live & self.acked, live & self.acked, "were acked and are back")
        if exact:
            sure(live == self.live, "other jobs than before", live ^ self.live)
        self.live = live
        self.known |= live
        if not keeps_jobs:
            self.acked.clear()
        for lease in self.leases.values():
            lease.busy = 0
            if not keeps_leases:
                lease.over = True
            else:
                lease.until -= self.forward_ms - lease.forward
                lease.forward = self.forward_ms
        self.forward_before = self.forward_ms
        if not keeps_leases:
            self.deliveries.clear()
        self.not_before.clear()
        self.ghosts += 20  # for workers that were there before
