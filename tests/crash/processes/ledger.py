"""What clients were told about records, and what must, may and must not be there after a restart
(`docs/spec/semantics.md` 8).

A record is a number, and its content follows from that, so what is kept of a batch is its first number and first seq:
memory is bounded by what is live. `TopicLedger` is for topics that clients append to, `CopyLedger` for those that
routers fill. Both are told by any number of threads what was sent, answered and read, and judge a complete read (a
`View`) that was made of a daemon at rest, after its restart. Jobs have a ledger of their own (`jobs`), on top of this.

Nothing here talks to a daemon, and nothing knows how one works inside. The machine stays up in all that is judged
here: what a crash of the machine may take is for the simulator.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Literal

from sortedcontainers import SortedDict

SPAN: Final = 1 << 13
"""Numbers of a batch: those of batch i begin at i * SPAN. No batch is longer."""

TAGS: Final = ("t0", "t1", "t2")
SURVIVES: Final = ("disk", "fsync")
"""Classes whose acks survive a kill of the process."""

KEYS_KEPT: Final = 24
KEY_AGE_S: Final = 240.0
"""Keys are repeated for as long; the topics' windows are longer."""

Fate = Literal["kill", "stop"]
"""How the life before has ended: by SIGKILL, or by a clean stop."""


class Fault(AssertionError):
    """The daemon has not kept what it had promised."""


def require(condition: bool, topic: str, what: str, *facts: object) -> None:
    if not condition:
        raise Fault(f"{topic}: {what} {' '.join(map(str, facts))}"[:1500])


# ----------------------------------------------------------------- records


def tag_of(number: int) -> str:
    return TAGS[number % 3]


def record_of(number: int) -> dict[str, Any]:
    """The record with this number, as it is sent."""
    length = number * 2654435761 % 509
    record: dict[str, Any] = {"data": {"n": number, "x": chr(97 + number % 26) * length}, "tag": tag_of(number)}
    if number % 5 == 0:
        record["node"] = f"node-{number % 4}"
    if number % 7 == 0:
        record["meta"] = {"number": str(number)}
    return record


def number_in(topic: str, read: Mapping[str, Any]) -> int:
    """The number of a record that was read with its tag; all of its content is what was sent under that number."""
    data = read["data"]
    require(isinstance(data, dict) and isinstance(data.get("n"), int), topic, "a record that nobody sent:", read)
    number: int = data["n"]
    sent = record_of(number)
    added = ("$dead_letter_", "_topics_")
    meta = {name: value for name, value in read.get("meta", {}).items() if not name.startswith(added)}
    # A dead letter has no node: nobody wrote it.
    node = sent.get("node") if "$dead_letter_from" in read.get("meta", {}) else read.get("$node")
    found = (data, read.get("$tag"), node, meta)
    require(found == (sent["data"], sent["tag"], sent.get("node"), sent.get("meta", {})), topic, "changed:", read)
    return number


@dataclass(slots=True)
class View:
    """A complete read of a topic, from its beginning to its head."""

    records: dict[int, dict[str, Any]]
    """By seq, in order."""
    gaps: list[tuple[int, int, str]]
    head: int
    earliest: int
    count: int
    began: float = 0.0
    """Wall clock, in ms, before it was made."""

    def reason_of(self, seq: int) -> str | None:
        """Why a tombstone says that this seq is gone, if one does."""
        return next((reason for first, last, reason in self.gaps if first <= seq <= last), None)

    def check(self, topic: str) -> None:
        """Assert the rules that hold of every view."""
        seqs = list(self.records)
        require(seqs == sorted(set(seqs)), topic, "seqs out of order")
        times = [record["$ts"] for record in self.records.values()]
        require(times == sorted(times), topic, "times that go back")
        require(all(a[1] < b[0] for a, b in pairwise(self.gaps)), topic, "tombstones that overlap:", self.gaps)
        ends = [*seqs, *(last for _, last, _ in self.gaps)]
        require(max(ends, default=0) <= self.head, topic, "something above the head", self.head)
        covered = [seq for first, last, _ in self.gaps for seq in seqs if first <= seq <= last]
        require(not covered, topic, "there and announced as gone:", covered[:5])


@dataclass(slots=True, eq=False)
class Batch:
    """An append, a publication or a commit, of `count` records whose numbers begin at `id * SPAN`."""

    id: int
    count: int
    key: str | None
    sent_at: float
    stages: int = 0
    """From how many it was committed; 0: it was appended."""
    first_seq: int = 0
    """0: not known, because there was no answer and nobody has seen it."""
    is_promised: bool = False
    """A kill does not take it."""
    is_settled: bool = False
    """It was there after a restart."""
    is_part: bool = False
    """It belongs to a transaction: where that is undone, its seqs stay empty."""

    @property
    def is_commit(self) -> bool:
        """Then an ack means that it is on disk, in every class."""
        return self.stages > 0

    @property
    def numbers(self) -> range:
        return range(self.id * SPAN, self.id * SPAN + self.count)

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    def numbered(self) -> Iterator[tuple[int, int]]:
        """Seq and number of each record; of a batch whose place is known."""
        return zip(range(self.first_seq, self.last_seq + 1), self.numbers, strict=True)

    def records(self) -> list[dict[str, Any]]:
        """Of an append's body."""
        return [record_of(number) for number in self.numbers]


@dataclass(slots=True, eq=False)
class Deletion:
    """All before a seq, or what of that has a tag."""

    before: int
    tag: str | None
    bound: int | None = None
    """The head of its answer: records with higher seqs came after it. None: there was no answer."""

    def covers(self, seq: int, tag: str | None) -> bool:
        return seq < self.before and (self.tag is None or tag is None or tag == self.tag)


class Numbering:
    """Batch ids for all topics, each used once."""

    def __init__(self) -> None:
        self._next = 0
        self._lock = threading.Lock()

    def take(self) -> int:
        with self._lock:
            self._next += 1
            return self._next


# ----------------------------------------------------------------- topics that clients append to


@dataclass(slots=True)
class Counts:
    """Of what was told and compared, for the figures."""

    acked: int = 0
    checked: int = 0
    delivered: int = 0
    repeats: int = 0
    lost: int = 0
    """Acked, in a class that may lose them."""


class TopicLedger:
    """What was told about one instance of a topic. One client at a time deletes from it; the rest may be many."""

    is_counted: bool
    """The state's figures are those of the view: nothing goes by itself in between."""

    def __init__(self, name: str, durability: str, numbering: Numbering, *, cap: int = 0, ttl_ms: int = 0) -> None:
        self.name = name
        self.durability = durability
        self.cap = cap
        self.is_counted = ttl_ms == 0
        self.ttl_ms = ttl_ms
        self.counts = Counts()
        self.lock = threading.RLock()
        self.batches: dict[int, Batch] = {}
        """Those that are not known to be gone, by id."""
        self.present: set[int] = set()
        """Numbers that the last view has shown."""
        self.max_seq = 0
        """The highest seq that anybody was told of."""
        self._placed: SortedDict[int, Batch] = SortedDict()
        self._numbering = numbering
        self._gone: dict[str | None, int] = {}
        """Below which seq all that has a tag (or, under None, all) is deleted for good."""
        self._deletions: list[Deletion] = []
        """Asked for since the last view, and not certain to be kept."""
        self._new_from = 1
        """What is appended in this life has no lower seq."""
        self._keyed: deque[Batch] = deque(maxlen=KEYS_KEPT)
        self._unfound: list[Batch] = []
        """Keyed batches without an answer that are not there."""
        self._undone: set[int] = set()
        """Seqs of transactions that are not there."""
        self._perhaps_undone: set[int] = set()
        """Seqs that may be of such, because a tombstone of caps or ttl covers what else was in front of them. Readers
        who had come as far as them are told nothing."""
        self._wanting: list[int] = []
        """Sizes of the batches of transactions that the last view did not show."""
        self._forgotten: set[int] = set()
        """Ids of those that an `ephemeral` topic had before the last restart."""

    # -- appending -----------------------------------------------------------------------------------------------------

    def send(self, count: int, *, keyed: bool = False) -> Batch:
        """A batch that is about to leave."""
        batch = self.prepare(count, keyed=keyed)
        self.let_go(batch)
        return batch

    def prepare(self, count: int, *, keyed: bool = False, stages: int = 0) -> Batch:
        """One that nobody may see before it was let go: what is staged is not published."""
        assert 0 < count <= SPAN
        number = self._numbering.take()
        key = f"key-{number}" if keyed or stages else None
        return Batch(number, count, key, time.monotonic(), stages)

    def let_go(self, batch: Batch) -> None:
        """It is about to be published."""
        with self.lock:
            self.batches[batch.id] = batch

    def acked(self, batch: Batch, answer: Mapping[str, Any]) -> None:
        """It was answered: an append, a publication or a commit."""
        with self.lock:
            require(answer["count"] == batch.count, self.name, "an answer about another batch:", answer)
            require(answer["last_seq"] - answer["first_seq"] + 1 == batch.count, self.name, "no range:", answer)
            if not answer["deduped"]:
                require(answer["first_seq"] >= self._new_from, self.name, "a seq was used again:", answer)
            self._place(batch, answer["first_seq"])
            batch.is_promised = batch.is_promised or batch.is_commit or self.durability in SURVIVES
            self.counts.acked += batch.count
            if batch.key is not None and self.durability != "ephemeral":
                self._keyed.append(batch)

    def refused(self, batch: Batch) -> None:
        """It was refused before it had seqs: it is not there, and never will be."""
        with self.lock:
            require(batch.first_seq == 0, self.name, "refused, and seen:", batch)
            self.batches.pop(batch.id, None)

    def to_repeat(self) -> list[Batch]:
        """Keyed batches to send again after a restart. Their answers go to `repeated`."""
        with self.lock:
            now = time.monotonic()
            chosen = [batch for batch in self._keyed if now - batch.sent_at < KEY_AGE_S]
            self._keyed.clear()
            chosen += self._unfound
            self._unfound = []
            return chosen

    def repeated(self, batch: Batch, answer: Mapping[str, Any]) -> None:
        """A keyed batch was sent again: what was there is answered as it was, what was not is there now."""
        with self.lock:
            self.counts.repeats += 1
            if batch.first_seq:
                expected = (True, batch.first_seq, batch.count)
                found = (answer["deduped"], answer["first_seq"], answer["count"])
                require(found == expected, self.name, "a repeat is not known:", batch, answer)
                if batch not in self._keyed:
                    self._keyed.append(batch)
                return
            # It may have been there, and be gone since.
            was = answer["first_seq"] < (
                self._new_from if self.cap or self.ttl_ms else max(self._gone.values(), default=0)
            )
            require(not answer["deduped"] or was, self.name, "known, and it is not there:", batch, answer)
            if not answer["deduped"]:
                self.batches[batch.id] = batch
                self.acked(batch, answer)

    def _place(self, batch: Batch, first_seq: int) -> None:
        """Somebody says where it is."""
        if batch.first_seq:
            require(batch.first_seq == first_seq, self.name, "at two places:", batch, first_seq)
            return
        batch.first_seq = first_seq
        at = self._placed.bisect_left(first_seq)
        for place in (at - 1, at):
            if 0 <= place < len(self._placed):
                other = self._placed.peekitem(place)[1]
                apart = other.last_seq < first_seq or other.first_seq > batch.last_seq
                require(apart, self.name, "a seq was given out twice:", other, batch)
        self._placed[first_seq] = batch
        self.max_seq = max(self.max_seq, batch.last_seq)

    # -- deleting ------------------------------------------------------------------------------------------------------

    def ask_deletion(self, before: int, tag: str | None) -> Deletion:
        """One that is about to leave. `before` is at most the highest seq that anybody was told of."""
        with self.lock:
            assert before <= self.max_seq
            deletion = Deletion(before, tag)
            self._deletions.append(deletion)
            return deletion

    def deletion_acked(self, deletion: Deletion, answer: Mapping[str, Any]) -> None:
        with self.lock:
            deletion.bound = answer["head_seq"]
            if self.durability in SURVIVES:
                self._deletions.remove(deletion)
                self._apply(deletion)

    def deletion_refused(self, deletion: Deletion) -> None:
        with self.lock:
            self._deletions.remove(deletion)

    def _apply(self, deletion: Deletion) -> None:
        self._gone[deletion.tag] = max(self._gone.get(deletion.tag, 0), deletion.before)

    @property
    def base(self) -> int:
        """Below it everything is deleted for good."""
        return self._gone.get(None, 0)

    def is_deleted(self, seq: int, number: int | None) -> bool:
        """It must not be there. Of a seq whose number is not known: it need not be there."""
        if seq < self.base or seq in self._undone:
            return True
        if number is None:
            return seq < max(self._gone.values(), default=0)
        return seq < self._gone.get(tag_of(number), 0)

    def may_be_deleted(self, seq: int, number: int | None) -> bool:
        """Somebody has asked for its end."""
        tag = None if number is None else tag_of(number)
        if self.is_deleted(seq, number) or (number is None and seq in self._perhaps_undone):
            return True
        return any(deletion.covers(seq, tag) for deletion in self._deletions)

    # -- reading while it runs -----------------------------------------------------------------------------------------

    def saw(self, record: Mapping[str, Any]) -> int:
        """A reader got this record; its number."""
        number, seq = number_in(self.name, record), record["$seq"]
        with self.lock:
            self._saw(number, seq)
            batch = self.batches[number // SPAN]
            # It was visible, so it is as safe as one that was acked.
            batch.is_promised = batch.is_promised or batch.is_commit or self.durability in SURVIVES
            return number

    def _saw(self, number: int, seq: int) -> None:
        batch = self.batches.get(number // SPAN)
        if batch is None:
            raise Fault(
                f"{self.name}: seq {seq} is number {number}, which was never sent here, refused, lost or deleted"
            )
        require(number in batch.numbers, self.name, "a number that nobody sent:", number)
        self._place(batch, seq - number % SPAN)

    def check_silence(self, first: int, last: int, delivered: Iterable[int]) -> None:
        """A stream has gone over `first` to `last` and shown only some: the rest must have been asked for."""
        with self.lock:
            silent = set(range(first, last + 1)).difference(delivered)
            odd = sorted(seq for seq in silent if not self.may_be_deleted(seq, self.number_at(seq)))
            require(not odd, self.name, "a silent gap in a stream:", odd[:10])

    def check_gap(self, reason: str, first: int, last: int) -> None:
        """A stream has announced this; `from_seq_too_old` is what it says of caps and ttl when it begins."""
        allowed = {"lost"} if self.durability not in SURVIVES else set()
        if self.cap or self.ttl_ms:
            allowed |= {"cap", "ttl", "mixed", "from_seq_too_old"}
        if self.durability not in SURVIVES:
            allowed |= {"mixed", "from_seq_too_old"}
        require(reason in allowed, self.name, "a tombstone that must not be:", reason, first, last)

    def number_at(self, seq: int) -> int | None:
        """The number that is known to be there."""
        at = self._placed.bisect_right(seq) - 1
        if at < 0:
            return None
        batch = self._placed.peekitem(at)[1]
        return batch.id * SPAN + seq - batch.first_seq if seq <= batch.last_seq else None

    # -- the judgement after a restart ---------------------------------------------------------------------------------

    def judge(self, view: View, fate: Fate) -> None:
        """Compare with a complete read of a topic at rest after a restart. What was in doubt is settled by it."""
        with self.lock:
            view.check(self.name)
            require(view.head >= self.max_seq, self.name, "the head went back:", view.head, self.max_seq)
            told_of = self.max_seq
            found = self._find(view)
            if self.durability == "ephemeral":
                self._judge_ephemeral(view)
            else:
                self._settle_deletions(view, found, fate)
                self._judge_batches(view, found, fate)
                self._judge_undone(view, found, told_of)
                self._judge_gaps(view, found, fate)
            self.counts.checked += len(found)
            self.present = set(found.values())
            self._new_from = view.head + 1
            self.max_seq = view.head

    def _find(self, view: View) -> dict[int, int]:
        """Numbers by seq. Every batch that is there knows its place after that."""
        found: dict[int, int] = {}
        seqs: dict[int, int] = {}
        for seq, record in view.records.items():
            number = number_in(self.name, record)
            require(number not in seqs, self.name, "a record is there twice:", number, seqs.get(number), seq)
            self._saw(number, seq)
            found[seq], seqs[number] = number, seq
        return found

    def _judge_ephemeral(self, view: View) -> None:
        require(not view.records, self.name, "an ephemeral topic has records after a restart:", len(view.records))
        silent = [seq for seq in range(1, view.head + 1) if view.reason_of(seq) is None]
        require(not silent, self.name, "an end that nobody announces:", silent[:10], view.gaps)
        self._forgotten = set(self.batches)
        self._deletions.clear()
        for batch in list(self.batches.values()):
            self._drop(batch)

    def _settle_deletions(self, view: View, found: Mapping[int, int], fate: Fate) -> None:
        """Each has either taken effect or not; the first that has not is followed by none that has."""
        undone_before: Deletion | None = None
        newest = max((seq for seq in found if not self._is_settled(found[seq])), default=0)
        for deletion in self._deletions:
            left = [seq for seq, number in found.items() if deletion.covers(seq, tag_of(number))]
            if not left:
                if undone_before is None:
                    self._apply(deletion)
                else:
                    # Nothing is left of what it names. That says nothing, unless it was this that took something.
                    taken = self._taken_by(deletion, found, view)
                    require(not taken, self.name, "a deletion without the one before:", undone_before, taken[:10])
                continue
            undone_before = deletion
            undone = deletion.bound is not None and (fate == "stop" or newest > deletion.bound)
            require(not undone, self.name, "an acked deletion was undone:", deletion, left[:10])
        self._deletions.clear()
        back = [seq for seq, number in found.items() if self.is_deleted(seq, number)]
        require(not back, self.name, "deleted records are back:", back[:10])

    def _taken_by(self, deletion: Deletion, found: Mapping[int, int], view: View) -> list[int]:
        """Seqs of acked records that it names, and that neither an older deletion nor a loss explains."""
        pairs = [pair for batch in self._placed.values() for pair in batch.numbered()]
        numbered = [(seq, number) for seq, number in pairs if deletion.covers(seq, tag_of(number))]
        gone = [seq for seq, number in numbered if seq not in found and not self.is_deleted(seq, number)]
        return [seq for seq in gone if view.reason_of(seq) is None]

    def _is_settled(self, number: int) -> bool:
        return self.batches[number // SPAN].is_settled

    def _judge_batches(self, view: View, found: Mapping[int, int], fate: Fate) -> None:
        lost: list[Batch] = []
        for batch in list(self.batches.values()):
            if not batch.first_seq:
                self._was_not_done(batch)
                continue
            wanted = [seq for seq, number in batch.numbered() if not self.may_be_deleted(seq, number)]
            missing = [seq for seq in wanted if seq not in found]
            if not missing or self._is_retired(batch, missing, view):
                if batch.key is not None and not batch.is_settled and batch not in self._keyed:
                    self._keyed.append(batch)
                batch.is_settled = batch.is_promised = True
                continue
            require(len(missing) == len(wanted), self.name, "half a batch:", batch, "without", missing[:10])
            kept = batch.is_promised or batch.is_settled or fate == "stop"
            require(not kept, self.name, f"lost after a {fate}:", batch)
            reasons = {view.reason_of(seq) for seq in missing}
            require(reasons <= {"lost", "mixed"}, self.name, "lost and not announced:", batch, reasons)
            lost.append(batch)
        newest = max(found, default=0)
        for batch in lost:
            require(newest < batch.first_seq, self.name, "lost, and what came later is there:", batch, newest)
            self._drop(batch)
            self.counts.lost += batch.count
            if batch in self._keyed:
                self._keyed.remove(batch)
            batch.first_seq = 0
            if batch.key is not None:
                self._unfound.append(batch)

    def _was_not_done(self, batch: Batch) -> None:
        """There was no answer, and nobody has seen it."""
        self._drop(batch)
        if batch.is_part:
            self._wanting.append(batch.count)
        if batch.key is not None:
            self._unfound.append(batch)

    def _judge_undone(self, view: View, found: Mapping[int, int], told_of: int) -> None:
        """Seqs behind all that anybody was told of are empty where a transaction is undone, and nowhere else."""
        behind = range(max(told_of, self.base - 1) + 1, view.head + 1)
        gaps = {seq for first, last, _ in view.gaps for seq in range(max(first, behind.start), last + 1)}
        empty = {seq for seq in behind if seq not in found and seq not in gaps and not self.is_deleted(seq, None)}
        sums = {0}
        for count in self._wanting:
            sums |= {one + count for one in sums}
        require(len(empty) in sums, self.name, "a silent gap:", sorted(empty)[:10], "of undone", self._wanting)
        self._undone = {seq for seq in self._undone | empty if seq >= self.base}
        if self._wanting:
            self._perhaps_undone |= gaps - found.keys()
        self._wanting.clear()

    def _is_retired(self, batch: Batch, missing: Iterable[int], view: View) -> bool:
        """Cap or ttl took what is missing, and said so."""
        if not self.cap and not self.ttl_ms:
            return False
        if any(view.reason_of(seq) not in ("cap", "ttl", "mixed") for seq in missing):
            return False
        age_ms = (time.monotonic() - batch.sent_at) * 1000
        return bool(self.cap) or age_ms > self.ttl_ms

    def _judge_gaps(self, view: View, found: Mapping[int, int], fate: Fate) -> None:
        if self.durability in SURVIVES or fate == "stop":
            reasons = {reason for first, _, reason in view.gaps if first > self.max_seq or self.durability in SURVIVES}
            allowed = {"cap", "ttl", "mixed"} if self.cap or self.ttl_ms else set()
            require(reasons <= allowed, self.name, f"a loss is announced after a {fate}:", view.gaps)
        covered = {seq for first, last, _ in view.gaps for seq in range(max(first, self.base), last + 1)}
        between = range(max(self.base, 1), view.head + 1)
        silent = [seq for seq in between if seq not in found and seq not in covered]
        odd = [seq for seq in silent if not self.is_deleted(seq, self.number_at(seq))]
        require(not odd, self.name, "a silent gap:", odd[:10], "of", view.head)
        if self.cap:
            most = view.head - len(self._undone)
            require(len(found) == min(self.cap, most), self.name, "not what its cap says:", len(found))
        if self.ttl_ms:
            old = [seq for seq, record in view.records.items() if record["$ts"] + self.ttl_ms < view.began - 50]
            require(not old, self.name, "expired, and there:", old[:10])
        expected = (len(found), min(found, default=view.head + 1))
        counted = (view.count, view.earliest) == expected
        require(counted or not self.is_counted, self.name, "miscounted:", view.count, view.earliest, expected)

    def _drop(self, batch: Batch) -> None:
        self.batches.pop(batch.id, None)
        self._placed.pop(batch.first_seq, None)

    def forget(self) -> None:
        """After a judgement, and those of what is fed from here. Records that are deleted or too old are not kept: a
        view that shows them again is wrong."""
        for batch in list(self.batches.values()):
            if all(self.is_deleted(seq, number) or number not in self.present for seq, number in batch.numbered()):
                self._drop(batch)

    # -- for topics that are fed from here -----------------------------------------------------------------------------

    def has_had(self, number: int) -> bool:
        """A copy of it may have been made."""
        return number // SPAN in self.batches or number // SPAN in self._forgotten


# ----------------------------------------------------------------- topics that routers fill


@dataclass(slots=True)
class CopyLedger:
    """What was told about a topic that only routers append to. `sources` are where its records were first appended.

    Where one path leads here, each record is there once, with either guarantee. Where several paths do, only
    `exactly_once` promises that; `may_repeat` is True if the guarantee is the other one.
    """

    name: str
    durability: str
    sources: list[TopicLedger]
    passes: Callable[[int], bool] = lambda number: True
    may_repeat: bool = False
    is_complete: bool = True
    """What is live in the sources must be here when nothing is due any more."""
    may_trim: bool = False
    """A source that is not among those any more may have lost something."""
    counts: Counts = field(default_factory=Counts)
    copies: dict[int, int] = field(default_factory=dict)
    """Numbers by seq, of those that anybody has seen."""
    max_seq: int = 0
    base: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    _fresh: set[int] = field(default_factory=set)
    """Seqs seen since the last view."""

    def saw(self, record: Mapping[str, Any]) -> int:
        """A reader got this record; its number."""
        number, seq = number_in(self.name, record), record["$seq"]
        with self.lock:
            self._saw(number, seq)
            return number

    def _saw(self, number: int, seq: int) -> None:
        if seq not in self.copies:
            known = any(source.has_had(number) for source in self.sources)
            require(known, self.name, "a copy of nothing:", number, "at", seq)
            self.copies[seq] = number
            self._fresh.add(seq)
            self.max_seq = max(self.max_seq, seq)
        require(self.copies[seq] == number, self.name, f"seq {seq} is", number, "and was", self.copies[seq])

    def check_silence(self, first: int, last: int, delivered: Iterable[int]) -> None:
        """As of a TopicLedger: nothing is deleted here but by `trim`, which is for a daemon at rest."""
        silent = sorted(seq for seq in set(range(first, last + 1)).difference(delivered) if seq >= self.base)
        require(not silent, self.name, "a silent gap in a stream:", silent[:10])

    def check_gap(self, reason: str, first: int, last: int) -> None:
        """As of a TopicLedger."""
        require(reason in self._reasons() | {"from_seq_too_old"}, self.name, "a tombstone that must not be:", reason)
        require(self._reasons() != set(), self.name, "a tombstone that must not be:", reason, first, last)

    def _reasons(self) -> set[str]:
        """What may be announced here: a loss of its own, or one of a source."""
        reasons = set() if self.durability in SURVIVES else {"lost", "mixed"}
        if self.may_trim or any(source.durability not in SURVIVES for source in self.sources):
            reasons |= {"source_trim", "lost", "mixed"}
        return reasons

    def judge(self, view: View, fate: Fate) -> None:
        """Compare with a complete read, made when nothing was due, after those of the sources were judged."""
        with self.lock:
            view.check(self.name)
            require(view.head >= self.max_seq, self.name, "the head went back:", view.head, self.max_seq)
            seqs: dict[int, int] = {}
            for seq, record in view.records.items():
                number = number_in(self.name, record)
                require(self.may_repeat or number not in seqs, self.name, "twice:", number, seqs.get(number), seq)
                require(seq >= self.base, self.name, "deleted copies are back:", seq)
                seqs[number] = seq
                self._saw(number, seq)
            self._judge_missing(view, fate)
            if self.is_complete:
                live = {number for source in self.sources for number in source.present if self.passes(number)}
                require(
                    live <= seqs.keys(), self.name, "records that were not copied:", sorted(live - seqs.keys())[:10]
                )
            odd = [number for number in seqs if not self.passes(number)]
            require(not odd, self.name, "copies that the filter holds back:", odd[:10])
            require(
                (view.count, view.earliest) == (len(view.records), min(view.records, default=view.head + 1)),
                self.name,
                "miscounted:",
                view.count,
                len(view.records),
            )
            self.counts.checked += len(seqs)
            self.copies = {seq: self.copies[seq] for seq in view.records}
            self.max_seq = view.head
            self._fresh.clear()

    def _judge_missing(self, view: View, fate: Fate) -> None:
        reasons = {reason for _, _, reason in view.gaps}
        require(reasons <= self._reasons(), self.name, "a tombstone that must not be:", view.gaps)
        missing = [seq for seq in self.copies if seq not in view.records and seq >= self.base]
        survives = self.durability in SURVIVES or fate == "stop"
        kept = [seq for seq in missing if survives or seq not in self._fresh]
        require(not kept, self.name, "lost copies:", kept[:10])
        between = range(max(self.base, 1), view.head + 1)
        covered = {seq for first, last, _ in view.gaps for seq in range(max(first, self.base), last + 1)}
        silent = [seq for seq in between if seq not in view.records and seq not in covered]
        require(not silent, self.name, "a silent gap:", silent[:10])

    def first_live(self) -> int:
        """The first seq whose record is live in a source: what is before that may be trimmed."""
        live = {number for source in self.sources for number in source.present}
        return next((seq for seq, number in sorted(self.copies.items()) if number in live), self.max_seq + 1)

    def trimmed(self, before: int) -> None:
        """All before this seq was deleted, and that is acked."""
        with self.lock:
            self.base = max(self.base, before)
            self.copies = {seq: number for seq, number in self.copies.items() if seq >= before}
