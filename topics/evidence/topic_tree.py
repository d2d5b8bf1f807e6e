"""The Merkle tree of one live topic (`docs/design/evidence.md` section 2). Pure.

Theory of operation
-------------------
A leaf goes three ways, in the order of the seqs:

    queued   its record is published, and its frame is in memory: the loop does no more than that
    pending  it is hashed (in a worker thread), and in memory
    stored   it is in a `.mrk`, which a checkpoint has written

So a tree takes memory for what was published since the last checkpoint, as the index of the topic does: 32 bytes a
record. Of the stored leaves it keeps the right edge alone (`GrowingTree`).

Which leaf a seq has is decided by the frame that made the record, and by nothing that comes later. A seq without such a
frame has the blank leaf.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from topics.evidence.merkle import GrowingTree, Leaves
from topics.evidence.record_leaf import BLANK, LEAF_BYTES

MOST_LEAVES: Final = 2**64 - 1

FEW_BLANKS: Final = 4096
"""So many blank leaves are treated like any others."""

JOINED: Final = 256
"""Pending leaves are kept in pieces of at least so many, as far as they come one by one."""

RECORD_BYTES: Final = 128
"""What the body of a queued record takes in memory beside the content of the record, about: its fixed fields, and an
object of Python."""

PIECE_RECORDS: Final = 1000
PIECE_BYTES: Final = 1 << 20
"""The bodies of a commit are queued in pieces of about so many records and bytes at most: hashing one takes 2 ms."""

HASH_RECORDS: Final = 1000
HASH_BYTES: Final = 256 << 10
"""When so many records, or bytes of them, are queued, they are hashed: a call of a worker thread costs 100 us."""

Queued = Sequence[bytes] | Leaves
"""The bodies of frames that are not hashed yet; or leaves."""


class TreeIdentity(NamedTuple):
    """What a tree is, for as long as it grows."""

    tree: str
    """Its uuid, 32 hex digits."""
    start_seq: int
    """The seq of leaf 0."""
    key: str
    """The hash of the key that signs its checkpoints (`signed_note.key_hash`)."""


class QueuedWork(NamedTuple):
    """What was queued at one moment."""

    start: int
    """The number of leaves before it."""
    items: list[Queued]


class PendingLeaves(NamedTuple):
    """Leaves in memory that are stored at one moment, or not yet."""

    start: int
    parts: tuple[Leaves, ...]


class TopicTree:
    """The tree of one topic."""

    __slots__ = (
        "_parts",
        "_queue",
        "blank_runs",
        "hashed",
        "identity",
        "published",
        "queued_bytes",
        "queued_records",
        "stored",
    )

    def __init__(
        self, identity: TreeIdentity, stored: GrowingTree | None = None, blank_runs: Iterable[tuple[int, int]] = ()
    ) -> None:
        self.identity = identity
        self.stored = stored if stored is not None else GrowingTree()
        """The tree of the leaves that are on disk. Replaced, never changed."""
        self.blank_runs = tuple(blank_runs)
        """First leaf and number of each long run of blank leaves, for which there is no file."""
        self.hashed = self.published = self.stored.size
        """The number of leaves that are known, and of seqs that are published."""
        self.queued_records = 0
        self.queued_bytes = 0
        """What the queued records take in memory, about."""
        self._queue: deque[tuple[Queued, int]] = deque()
        """What is not hashed yet, and how many bytes each item counts for."""
        self._parts: deque[Leaves] = deque()
        """The pending leaves."""

    def renewed(self, tree: str, key: str) -> None:
        """It has another uuid and key from now on: some of its leaves may have been lost."""
        self.identity = self.identity._replace(tree=tree, key=key)

    @property
    def next_seq(self) -> int:
        """The seq of the next leaf."""
        return self.identity.start_seq + self.published

    @property
    def is_due(self) -> bool:
        """Return True if what is queued should be hashed now."""
        return self.queued_records >= HASH_RECORDS or self.queued_bytes >= HASH_BYTES

    # -- growth --------------------------------------------------------------------------------------------------------

    def publish(self, first_seq: int, records: Queued, nbytes: int = 0) -> None:
        """Add the leaves of records with contiguous seqs from `first_seq` on: the bodies of their frames, of `nbytes`,
        or leaves. Seqs before them have no record."""
        self.fill(first_seq - 1)
        assert first_seq == self.next_seq, "a seq has one leaf"
        if isinstance(records, Leaves):
            self._add_leaves(records)
        else:
            nbytes += RECORD_BYTES * len(records)
            if len(records) <= PIECE_RECORDS and nbytes <= PIECE_BYTES:
                self._queue.append((records, nbytes))
            else:
                self._queue.extend(_pieces(records, nbytes))
            self.published += len(records)
            self.queued_records += len(records)
            self.queued_bytes += nbytes

    def fill(self, head_seq: int) -> None:
        """Give the seqs up to `head_seq` that have no record their blank leaves."""
        missing = head_seq + 1 - self.next_seq
        if missing > 0:
            self._add_leaves(blanks(missing))

    def _add_leaves(self, some: Leaves) -> None:
        """Add leaves that need not be hashed, behind those that are queued."""
        self.published += some.size
        if self._queue:
            self._queue.append((some, 0))
        else:
            self._note_hashed(some)

    def _note_hashed(self, some: Leaves) -> None:
        self.hashed += some.size
        if self._parts and self._parts[-1].size < JOINED and not self._parts[-1].blanks:
            some = Leaves(self._parts.pop().hashes + some.hashes, some.blanks)
        self._parts.append(some)

    def work(self) -> QueuedWork:
        """Return what is queued. `done` takes what it was made into; meanwhile more may be queued."""
        return QueuedWork(self.hashed, [item for item, _ in self._queue])

    def first_work(self) -> QueuedWork:
        """Return the item that was queued first, as `work` does."""
        return QueuedWork(self.hashed, [self._queue[0][0]])

    def done(self, work: QueuedWork, leaves: Sequence[Leaves]) -> None:
        """Take the leaves of some work, but for those that are known by now: two tasks may have had the same items."""
        queued_at = self.hashed
        known = queued_at - work.start
        for some in leaves:
            if some.size > known:
                self._note_hashed(leaves_from(some, known))
            known = max(known - some.size, 0)
        while queued_at < self.hashed:
            item, nbytes = self._queue.popleft()
            self.queued_bytes -= nbytes
            if isinstance(item, Leaves):
                queued_at += item.size
            else:
                queued_at += len(item)
                self.queued_records -= len(item)

    # -- what others need of it ----------------------------------------------------------------------------------------

    def pending(self) -> PendingLeaves:
        """Return the leaves that are not stored."""
        return PendingLeaves(self.stored.size, tuple(self._parts))

    def note_stored(self, stored: GrowingTree, blank_runs: Iterable[tuple[int, int]]) -> None:
        """The leaves of this tree are on disk from now on."""
        gone = stored.size - self.stored.size
        while gone:
            first = self._parts.popleft()
            if first.size > gone:
                self._parts.appendleft(leaves_from(first, gone))
                break
            gone -= first.size
        self.stored, self.blank_runs = stored, tuple(blank_runs)

    def to_wire(self, stored: GrowingTree, blank_runs: Iterable[tuple[int, int]]) -> list[Any]:
        """Return the tree as a part has it, with these leaves on disk."""
        return [*self.identity, stored.size, stored.edge, [list(run) for run in blank_runs]]

    @classmethod
    def from_wire(cls, value: Sequence[Any]) -> TopicTree:
        """Return the tree of which `to_wire` was called. Raises any exception for malformed content."""
        tree, start_seq, key, size, edge, runs = value
        identity = identity_of(tree, start_seq, key)
        if not _is_number(size):
            raise ValueError("a Merkle tree cannot have so many leaves as the part says")
        at = 0
        blank_runs: list[tuple[int, int]] = []
        for first, count in runs:
            if not (_is_number(first) and _is_number(count) and at <= first < first + count <= size):
                raise ValueError("the runs of blank leaves of a Merkle tree are not runs of its leaves")
            at = first + count
            blank_runs.append((first, count))
        return cls(identity, GrowingTree.of(size, edge), blank_runs)


def identity_of(tree: Any, start_seq: Any, key: Any) -> TreeIdentity:
    """Return the identity with these fields. Raises ValueError if one of them cannot be."""
    if not (isinstance(tree, str) and isinstance(key, str) and _is_number(start_seq) and start_seq):
        raise ValueError("the identity of a Merkle tree is malformed")
    return TreeIdentity(tree, start_seq, key)


def _pieces(records: Sequence[bytes], nbytes: int) -> Iterable[tuple[Sequence[bytes], int]]:
    """Yield the bodies of a commit, which count for `nbytes`, in pieces; each with the bytes for which it counts."""
    total = len(records)
    count = max(-(-total // PIECE_RECORDS), min(-(-nbytes // PIECE_BYTES), total))
    for i in range(count):
        first, end = i * total // count, (i + 1) * total // count
        yield records[first:end], (i + 1) * nbytes // count - i * nbytes // count


def _is_number(value: Any) -> bool:
    """Return True if a value is a number of seqs or leaves."""
    return type(value) is int and 0 <= value <= MOST_LEAVES


def blanks(count: int) -> Leaves:
    """Return so many blank leaves."""
    return Leaves(BLANK * count) if count <= FEW_BLANKS else Leaves(b"", count)


def leaves_from(some: Leaves, skipped: int) -> Leaves:
    """Return leaves without the first `skipped` of them."""
    hashes = some.hashes[skipped * LEAF_BYTES :]
    beyond = max(skipped - len(some.hashes) // LEAF_BYTES, 0)
    return Leaves(hashes, some.blanks - beyond)


def leaves_up_to(some: Leaves, count: int) -> Leaves:
    """Return the first `count` leaves."""
    hashes = some.hashes[: count * LEAF_BYTES]
    return Leaves(hashes, min(count - len(hashes) // LEAF_BYTES, some.blanks))


def first_of(parts: Iterable[Leaves], count: int) -> list[Leaves]:
    """Return the first `count` leaves of some neighbouring parts."""
    taken: list[Leaves] = []
    for some in parts:
        if not count:
            break
        piece = leaves_up_to(some, count)
        taken.append(piece)
        count -= piece.size
    return taken
