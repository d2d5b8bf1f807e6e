"""What the clients of an owner and its standbys know, and the promises that hold under every owner
(`docs/spec/bucket.md` section 7).

A record is a number, and its content follows from that. Everybody tells what he has seen: acks, watchers, readers. So
two contents of one seq are noticed wherever they show, also if one of them was lost in between.

`remote`: an acked record is there for ever, at its seq, once; seqs have no holes. The other classes: a takeover may
take records, which are then announced as `lost`; what a new owner has shown stays, because it has it from the bucket.

Nothing here talks to a daemon.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.crash.processes.ledger import require
from topics.model import Durability


@dataclass(slots=True)
class ReplicaView:
    """A complete read of a topic."""

    records: dict[int, int]
    """Numbers by seq."""
    gaps: list[tuple[int, int, str]]
    head: int


class ReplicaLedger:
    """One topic that clients append to, and from which nothing is deleted. For any number of threads."""

    def __init__(self, name: str, durability: Durability) -> None:
        self.name = name
        self.durability = durability
        self.lost = 0
        """Acked records of a class other than `remote` that a takeover has taken."""
        self._lock = threading.Lock()
        self._next = 0
        self._seen: dict[int, int] = {}
        """The number that anybody has ever seen at a seq."""
        self._places: dict[int, int] = {}
        """The seq of a number; of `remote` topics only."""
        self._acked: dict[int, int] = {}
        """Numbers by seq."""
        self._settled: set[int] = set()
        """Seqs that an owner has shown after a takeover."""

    @property
    def is_remote(self) -> bool:
        return self.durability == "remote"

    @property
    def head(self) -> int:
        """The highest seq that anybody has seen."""
        with self._lock:
            return max(self._seen, default=0)

    @property
    def count_acked(self) -> int:
        return len(self._acked)

    def take(self, count: int) -> range:
        """Numbers for an append."""
        with self._lock:
            self._next += count
            return range(self._next - count, self._next)

    def saw(self, seq: int, number: int, by: str) -> None:
        """Somebody has seen a record. Raises Fault."""
        with self._lock:
            before = self._seen.setdefault(seq, number)
            require(before == number, self.name, f"seq {seq} has two contents:", before, number, "seen by", by)
            if self.is_remote:
                where = self._places.setdefault(number, seq)
                require(where == seq, self.name, f"record {number} is there twice: seqs", where, seq, "seen by", by)

    def acked(self, first_seq: int, numbers: Sequence[int]) -> None:
        """An append was acked. Raises Fault."""
        for seq, number in enumerate(numbers, first_seq):
            self.saw(seq, number, "an ack")
            with self._lock:
                self._acked[seq] = number

    def acked_before(self) -> Mapping[int, int]:
        """What has been acked up to now: a read that begins later shows it."""
        with self._lock:
            return dict(self._acked)

    def judge(self, view: ReplicaView, acked: Mapping[int, int], *, is_last: bool = False) -> None:
        """Compare a complete read with what was acked before it began. `is_last`: nothing is appended any more. Raises
        Fault."""
        for seq, number in view.records.items():
            self.saw(seq, number, "a read")
        numbers = list(view.records.values())
        require(len(set(numbers)) == len(numbers), self.name, "records are there twice:", _doubles(numbers))
        missing = [seq for seq in acked if seq not in view.records]
        if self.is_remote:
            require(not missing, self.name, "acked records are lost: seqs", missing[:10], "of", len(acked))
            require(not view.gaps, self.name, "tombstones:", view.gaps[:5])
            expected = range(1, len(view.records) + 1)
            require(list(view.records) == [*expected], self.name, "seqs have holes")
        else:
            taken = [seq for seq in missing if not any(first <= seq <= last for first, last, _ in view.gaps)]
            require(not taken, self.name, "acked records are gone, and nobody says so: seqs", taken[:10])
            wrong = [gap for gap in view.gaps if gap[2] != "lost"]
            require(not wrong, self.name, "tombstones of another kind:", wrong[:5])
            back = [seq for seq in sorted(self._settled) if seq not in view.records]
            require(not back, self.name, "what an owner has shown from the bucket is lost: seqs", back[:10])
        require(not is_last or view.head >= self.head, self.name, "the head went back:", view.head, self.head)
        with self._lock:
            self._settled |= view.records.keys()
            self.lost += len(missing)
            for seq in missing:
                self._acked.pop(seq, None)


def _doubles(numbers: Iterable[int]) -> list[int]:
    seen: set[int] = set()
    return [number for number in numbers if number in seen or seen.add(number)][:10]  # type: ignore[func-returns-value]


@dataclass(slots=True)
class ReplicaJob:
    """What is known of one job."""

    holder: str = ""
    lease_id: str = ""
    held_from: float = 0.0
    """When the claim was sent that has leased it (`time.monotonic`)."""
    is_over: bool = False
    """Its ack was answered."""
    acks: int = 0


@dataclass(slots=True)
class ReplicaJobs:
    """A queue of the class `remote` with durable leases: never two holders, and an acked job never comes back."""

    name: str
    lease_s: float
    jobs: dict[int, ReplicaJob] = field(default_factory=dict)
    claims: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def claimed(self, holder: str, seq: int, lease_id: str, sent: float, came: float) -> None:
        """A claim that was sent at `sent` was answered at `came`. Raises Fault."""
        with self.lock:
            self.claims += 1
            job = self.jobs.setdefault(seq, ReplicaJob())
            require(not job.is_over, self.name, f"job {seq} was acked, and comes again to", holder)
            until = job.held_from + self.lease_s
            require(
                not job.holder or came >= until,
                self.name,
                f"job {seq} has two holders: {job.holder} until {until - came:.3f} s from now, and",
                holder,
            )
            require(not job.lease_id or job.lease_id != lease_id, self.name, f"a lease id of job {seq} comes again")
            job.holder, job.lease_id, job.held_from = holder, lease_id, sent

    def acked(self, seq: int, holder: str) -> None:
        """An ack was answered, and not skipped. Raises Fault."""
        with self.lock:
            job = self.jobs[seq]
            require(job.holder == holder, self.name, f"an ack of job {seq} counts, which {job.holder} has, for", holder)
            job.is_over, job.acks = True, job.acks + 1

    @property
    def done(self) -> int:
        with self.lock:
            return sum(job.is_over for job in self.jobs.values())
