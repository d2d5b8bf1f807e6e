"""Checkpoints and proofs of a topic with evidence (`docs/spec/evidence.md` section 1).

A checkpoint covers records that are on disk, and with a bucket in a written round: what it says must be true after
every crash, and after the loss of the machine. What a call needs of files is read, and hashed, in worker threads.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

import trio

from topics.engine.reach import KnownPlace, Reach
from topics.engine.registry import Registry
from topics.engine.topic import Topic
from topics.errors import ApiError, invalid, topic_not_found
from topics.evidence.checkpoint_note import LogOrigin, TreeHead
from topics.evidence.merkle import GrowingTree
from topics.evidence.proofs import prove_consistency, prove_inclusion, root_of_range
from topics.evidence.topic_tree import TopicTree, first_of, leaves_from
from topics.model import ConsistencyResult, EvidenceResult, InclusionResult
from topics.runtime.offload import Offload, Pool
from topics.storage.evidence.leaf_files import LeavesDamaged
from topics.storage.evidence.leaf_hashes import hash_queued
from topics.storage.evidence.leaf_reader import LeafDirectory, RootCache, TreeReader
from topics.storage.files.fs import Fs
from topics.storage.store import Store
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")

TRIES: Final = 3
"""How often leaves are looked for: a checkpoint may join their files meanwhile."""

MOST_CACHED_TREES: Final = 1000


class _Covered(NamedTuple):
    """A tree as far as a checkpoint may cover it now."""

    topic: Topic
    tree: TopicTree
    size: int


class EvidenceCalls:
    """The calls. Made once by the engine."""

    def __init__(self, registry: Registry, store: Store, reach: Reach, *, fs: Fs, offload: Offload) -> None:
        self._registry = registry
        self._store = store
        self._reach = reach
        self._fs = fs
        self._offload = offload
        self._roots = RootCache()
        self._last: dict[str, GrowingTree] = {}
        """The tree of the last checkpoint of each topic, by the uuid."""

    async def key(self) -> str:
        """Return the public key as a verifier key. Raises `503 not_ready` if there is none, and none can be made."""
        return str((await self._store.evidence_key.signer(self._offload)).verifier)

    async def compare_keys(self) -> None:
        """Log it if topics have been signed by another key than the daemon has now: at the start, not at the first
        checkpoint that somebody misses."""
        trees = [topic.tree for topic in self._registry.by_id.values() if topic.tree is not None]
        known = Counter(tree.identity.key for tree in trees)
        if known:
            await self._offload.run(Pool.FILES, partial(self._store.evidence_key.compare, known))

    async def checkpoint(self, name: str) -> EvidenceResult:
        """Return a signed checkpoint of the topic as it is now. Raises 404, `409 no_evidence`, `503 not_ready`."""
        covered = self._covered(name)
        signer = await self._store.evidence_key.signer(self._offload)
        topic, tree, size = covered
        identity = tree.identity
        if signer.hash != identity.key:
            raise ApiError(
                "not_ready",
                f"the evidence of topic {name!r} is signed by another key than the daemon has now: set "
                f"TOPICS_EVIDENCE_KEY_FILE to the file with that key",
                detail={"topic": name, "key": identity.key, "present_key": signer.hash},
            )
        root = await self._root(covered)
        origin = str(LogOrigin(identity.tree, topic.name, topic.id))
        note = signer.sign(TreeHead(origin, size, root).text)
        return EvidenceResult(
            topic=topic.name,
            epoch=topic.id,
            origin=origin,
            start_seq=identity.start_seq,
            size=size,
            root=b64encode(root).decode(),
            note=note,
        )

    async def inclusion(self, name: str, seq: int, size: int | None) -> InclusionResult:
        """Prove that a record is in the tree of the first `size` leaves; None: of all that a checkpoint would cover.
        Raises 404, `404 record_not_found`, 400, `409 no_evidence`, `503 not_ready`, and `503 behind` on a standby."""
        await self._reach.wait([KnownPlace(name, seq)], trio.current_time())
        covered = await self._reached(name, size)
        size = covered.size if size is None else self._size(covered, "size", size)
        index = seq - covered.tree.identity.start_seq
        if not 0 <= index < size:
            raise ApiError(
                "record_not_found",
                f"seq {seq} is not in the first {size} leaves of the evidence of topic {name!r}, which begins with seq "
                f"{covered.tree.identity.start_seq}",
                detail={"topic": name, "seq": seq, "size": size},
            )

        def prove(reader: TreeReader) -> tuple[bytes, list[bytes]]:
            return reader.leaf(index), prove_inclusion(reader, index, size)

        leaf, hashes = await self._read(covered, prove)
        return InclusionResult(seq=seq, index=index, size=size, leaf=_base64(leaf), hashes=list(map(_base64, hashes)))

    async def consistency(self, name: str, first: int, second: int | None) -> ConsistencyResult:
        """Prove that the tree of the first `first` leaves is the beginning of that of the first `second`; None as for
        `inclusion`. Raises 404, 400, `409 no_evidence`, `503 not_ready`, and `503 behind` on a standby."""
        covered = await self._reached(name, max(first, second or 0))
        second = covered.size if second is None else self._size(covered, "to", second)
        first = self._size(covered, "from", first)
        if first > second:
            raise invalid("from", f"must be at most `to`, which is {second}", max=second)
        hashes = await self._read(covered, partial(prove_consistency, first=first, second=second))
        return ConsistencyResult(first=first, second=second, hashes=list(map(_base64, hashes)))

    # -- what is covered -----------------------------------------------------------------------------------------------

    def _covered(self, name: str) -> _Covered:
        topic = self._registry.topic(name)
        tree = topic.tree
        if tree is None:
            raise ApiError(
                "no_evidence",
                f"topic {name!r} has no evidence: switch it on with `evidence: true` in its config",
                detail={"topic": name},
            )
        tree.fill(topic.log.head_seq)
        size = max(min(topic.synced_seq + 1 - tree.identity.start_seq, tree.published), 0)
        has_bucket = self._registry.has_bucket or self._store.evidence_key.has_bucket
        if size and has_bucket and not self._registry.follows:  # a standby has nothing but written rounds
            if topic.bucket_seq < tree.identity.start_seq:
                message = f"it is not known yet how much of topic {name!r} is in the bucket"
                raise ApiError("not_ready", message, retry_after_s=1)
            size = min(size, topic.bucket_seq + 1 - tree.identity.start_seq)
        return _Covered(topic, tree, size)

    async def _reached(self, name: str, size: int | None) -> _Covered:
        """Return which records are covered. If a caller knows more leaves than a standby has, `503 behind` is
        raised."""
        covered = self._covered(name)
        if size is None or size <= covered.size:
            return covered
        last_seq = covered.tree.identity.start_seq + size - 1
        await self._reach.wait([KnownPlace(name, last_seq)], trio.current_time())
        return self._covered(name)

    @staticmethod
    def _size(covered: _Covered, field: str, size: int) -> int:
        if not 1 <= size <= covered.size:
            if not covered.size:
                raise invalid(field, "must be at least 1, and the tree has no leaves yet", max=0)
            raise invalid(field, f"must be between 1 and {covered.size}, the size of the tree", max=covered.size)
        return size

    # -- hashes --------------------------------------------------------------------------------------------------------

    async def _root(self, covered: _Covered) -> bytes:
        """Return the root of the covered records."""
        _, tree, size = covered
        await hash_queued(tree, self._offload, size)
        base = self._last.get(tree.identity.tree)
        pending = tree.pending()
        if base is None or not pending.start <= base.size <= size:
            base = tree.stored
        if size < base.size:
            return await self._read(covered, lambda reader: root_of_range(reader, 0, size))
        skipped = base.size - pending.start
        parts = first_of(pending.parts, size - pending.start)

        def grow() -> GrowingTree:
            grown = base.copy()
            left = skipped
            for part in parts:
                if left < part.size:
                    grown.add(leaves_from(part, left))
                left = max(left - part.size, 0)
            return grown

        grown = await self._offload.run(Pool.CPU, grow) if parts else base
        if len(self._last) >= MOST_CACHED_TREES:
            self._last.clear()
        self._last[tree.identity.tree] = grown
        return grown.root

    async def _read(self, covered: _Covered, work: Callable[[TreeReader], T]) -> T:
        """Return the result of some work in a worker thread, with a reader of the covered leaves. Raises `409
        no_evidence` if a file is damaged or missing: it stays so, and trying again is of no use; 503 if the disk does
        not answer."""
        topic, tree, size = covered
        await hash_queued(tree, self._offload, size)
        problem, is_damaged = "", False
        for _ in range(TRIES):
            directory = self._store.datadir.topic_dir(topic.id)
            read = partial(self._read_once, directory, tree, work)
            try:
                return await read()
            except LeavesDamaged as error:
                if topic.deleted:  # and its files with it
                    raise topic_not_found(topic.name) from None
                problem, is_damaged = str(error), True
            except OSError as error:
                problem, is_damaged = str(error), False
        log.error("leaves_damaged", topic=topic.name, problem=problem)
        if not is_damaged:
            message = f"leaves of the evidence of topic {topic.name!r} cannot be read now (an error of the disk)"
            raise ApiError("not_ready", message)
        raise ApiError(
            "no_evidence",
            f"leaves of the evidence of topic {topic.name!r} cannot be read: {problem}. Checkpoints go on. Nothing "
            f"mends the file but a copy of it",
            detail={"topic": topic.name, "reason": "leaves_damaged", "problem": problem},
        )

    async def _read_once(self, directory: str, tree: TopicTree, work: Callable[[TreeReader], T]) -> T:
        identity, runs, pending = tree.identity, tree.blank_runs, tree.pending()

        def read() -> T:
            return work(TreeReader(LeafDirectory(self._fs, directory), identity, runs, pending, self._roots))

        return await self._offload.run(Pool.HOT_READ, read)


def _base64(value: bytes) -> str:
    return b64encode(value).decode()
