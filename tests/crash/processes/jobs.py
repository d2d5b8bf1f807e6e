"""What workers were told about the jobs of a queue (`docs/spec/semantics.md` 6 and 8.9), on top of what is known of its
records.

A `QueueLedger` is the ledger of a queue's topic, in which acks and dead letters are what deletions are elsewhere. It
knows who holds which job until when, and that a job has one holder at a time: within a life of the daemon, and over
all of them where leases are durable. Times are those of the wall clock in ms, as in the answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.crash.processes.ledger import Fate, Numbering, TopicLedger, View, require

SLACK_MS: Final = 30.0
"""By how much a deadline may differ for a clock that was stepped a little, or rounded."""


@dataclass(slots=True)
class Holding:
    """What a worker was told of a job by one claim."""

    worker: str
    seq: int
    lease_id: str
    life: int
    deliveries: int
    came: float
    deadline: float
    released: float | None = None
    """When it was asked to give it back, if that may have been heard."""
    acks: int = 0
    """How often it was asked to ack it."""


class QueueLedger(TopicLedger):
    """What was told about a queue. `max_deliveries` 0: without limit."""

    def __init__(
        self, name: str, durability: str, numbering: Numbering, *, leases_durable: bool, max_deliveries: int = 0
    ) -> None:
        super().__init__(name, durability, numbering)
        self.is_counted = False
        self.leases_durable = leases_durable
        self.max_deliveries = max_deliveries
        self.claims = 0
        self.done = 0
        self._floor = 1
        """Every job below is over."""
        self._done: set[int] = set()
        """Jobs that are over, from there on."""
        self._acked_as: dict[int, tuple[int, int]] = {}
        """In this life: which delivery it was that was acked."""
        self._asked: Counter[int] = Counter()
        """Acks without an answer, or those whose answer is yes, by job."""
        self._buried: set[int] = set()
        """Jobs that the dead-letter topic had when it was last read."""
        self._missed: set[int] = set()
        """Jobs that a stream has left out without a reason that was known then."""
        self._holdings: dict[int, Holding] = {}
        """The latest of each job."""

    # -- as records ----------------------------------------------------------------------------------------------------

    @property
    def base(self) -> int:
        return self._floor

    @property
    def backlog(self) -> int:
        """Jobs that are not known to be over."""
        return self.max_seq - self._floor + 1 - len(self._done)

    def is_deleted(self, seq: int, number: int | None) -> bool:
        return seq < self._floor or seq in self._done

    def may_be_deleted(self, seq: int, number: int | None) -> bool:
        return self.is_deleted(seq, number) or self._asked[seq] > 0 or seq in self._buried

    def check_silence(self, first: int, last: int, delivered: Iterable[int]) -> None:
        """As of any topic. But jobs become dead letters at any time, some after a delivery that nobody heard of: for
        what is missing without a reason that is known, the next judgement has to find one."""
        with self.lock:
            silent = set(range(first, last + 1)).difference(delivered)
            odd = {seq for seq in silent if not self.may_be_deleted(seq, None)}
            require(bool(self.max_deliveries) or not odd, self.name, "a silent gap in a stream:", sorted(odd)[:10])
            self._missed |= odd

    def bury(self, letters: Iterable[Mapping[str, Any]]) -> None:
        """All that is in the dead-letter topic, read after the queue was."""
        with self.lock:
            before, self._buried = self._buried, set()
            for record in letters:
                seq = int(record["meta"]["$dead_letter_src_seq"])
                origin, deliveries = record["meta"]["$dead_letter_from"], int(record["meta"]["$dead_letter_deliveries"])
                require(origin == self.name, self.name, "a stranger among the dead:", record)
                require(deliveries >= self.max_deliveries, self.name, "a dead letter too early:", record)
                known = self.number_at(seq)
                require(known in (None, record["data"]["n"]), self.name, "a dead letter of another job:", known, record)
                acked = seq not in before and self.is_deleted(seq, known)
                require(not acked, self.name, "a dead letter of a job that was over:", record)
                self._buried.add(seq)

    def _settle_deletions(self, view: View, found: Mapping[int, int], fate: Fate) -> None:
        back = [seq for seq in found if self.is_deleted(seq, None)]
        require(not back, self.name, "jobs that were over are back:", back[:10])
        self._done |= {seq for seq in (*(+self._asked), *self._buried) if seq not in found and seq >= self._floor}
        self._asked.clear()
        left_out = [seq for seq in self._missed if seq in found]
        require(not left_out, self.name, "a stream has left out jobs that are there:", left_out[:10])
        self._missed.clear()
        self._acked_as.clear()
        self._holdings = {seq: holding for seq, holding in self._holdings.items() if seq in found}

    def forget(self) -> None:
        super().forget()
        while self._floor in self._done:
            self._done.remove(self._floor)
            self._floor += 1

    # -- as jobs -------------------------------------------------------------------------------------------------------

    def claimed(self, worker: str, job: Mapping[str, Any], life: int, came: float) -> Holding:
        """A claim was answered with this job."""
        number = self.saw(job)
        seq = job["$seq"]
        holding = Holding(worker, seq, job["lease_id"], life, job["deliveries"], came, job["deadline"])
        with self.lock:
            self.claims += 1
            limit = self.max_deliveries
            require(not limit or holding.deliveries <= limit, self.name, "delivered too often:", job)
            if self.is_deleted(seq, number):
                # An answer that was late to be noted is no delivery after the end.
                ended = self._acked_as.get(seq)
                earlier = ended is not None and self._order(holding) < ended
                require(earlier, self.name, "a job was claimed that was over:", holding, ended)
                return holding
            known = self._holdings.get(seq)
            if known is not None:
                require(self._order(known) != self._order(holding), self.name, "two holders:", known, holding)
                first, second = sorted((known, holding), key=self._order)
                self._check_over(first, second)
                if second is known:
                    return holding
            self._holdings[seq] = holding
            return holding

    def _order(self, holding: Holding) -> tuple[int, int]:
        return (0 if self.leases_durable else holding.life, holding.deliveries)

    def _check_over(self, first: Holding, second: Holding) -> None:
        """The second had no right to it before the first had none."""
        over = second.came >= first.deadline - SLACK_MS
        over = over or (first.released is not None and first.released <= second.came)
        over = over or (not self.leases_durable and first.life != second.life)
        require(over, self.name, "two holders:", first, second)

    def ask_release(self, holdings: Collection[Holding], at: float) -> None:
        """They are about to be given back."""
        with self.lock:
            for holding in holdings:
                holding.released = at

    def ask_extension(self, holdings: Collection[Holding], deadline: float) -> None:
        """Their deadline is about to be set: until there is an answer it may be the old one or the new one."""
        with self.lock:
            for holding in holdings:
                holding.deadline = min(holding.deadline, deadline)

    def extended(self, holdings: Collection[Holding], deadlines: Mapping[str, int]) -> None:
        with self.lock:
            for holding in holdings:
                holding.deadline = deadlines.get(str(holding.seq), holding.deadline)

    def ask_ack(self, holdings: Collection[Holding]) -> None:
        """They are about to be acked."""
        with self.lock:
            for holding in holdings:
                holding.acks += 1
                self._asked[holding.seq] += 1

    def ack_answered(
        self, holdings: Collection[Holding], skipped: Collection[int], life: int, asked: float, came: float
    ) -> None:
        """What it did: those that were not skipped are over for good."""
        with self.lock:
            for holding in holdings:
                latest = self._holdings.get(holding.seq)
                if holding.seq in skipped:
                    self._check_skip(holding, latest, life, came)
                    continue
                taken = latest is not None and self._order(latest) > self._order(holding) and latest.came < asked
                require(not taken, self.name, "acked by one who does not hold it:", holding, latest)
                self._done.add(holding.seq)
                self._acked_as[holding.seq] = self._order(holding)
                self._holdings.pop(holding.seq, None)
                self.done += 1

    def _check_skip(self, holding: Holding, latest: Holding | None, life: int, came: float) -> None:
        """An ack of what one surely holds is not skipped."""
        if holding.acks == 1:
            # Nothing of it is in doubt: it was asked for once, and answered.
            self._asked[holding.seq] -= 1
        is_held = latest is holding and holding.released is None and came < holding.deadline - SLACK_MS
        same = self.leases_durable or holding.life == life
        require(not (is_held and same and holding.acks == 1), self.name, "an ack was skipped for no reason:", holding)
