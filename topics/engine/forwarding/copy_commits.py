"""One commit of a router: a batch of copies, a hole, or only a move of its cursor (`docs/spec/semantics.md` section 5).

Responsible for the one step of the loop in which copies get their seqs and the Forwarded frame is queued, for its
publication in the dest, and for the origins in flight. `topics.engine.forwarding.forwarders` decides which records
become copies, and when; `topics.engine.forwarding.source_columns` makes their columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from topics.engine.ceilings import Ceilings
from topics.engine.commits import Commits
from topics.engine.foreseen import Foreseen
from topics.engine.forwarding.forwarder import Forwarder, WorkBeforeStep
from topics.engine.forwarding.source_columns import CopyColumns, SourceColumns, columns_of_copies
from topics.engine.loader import Loader
from topics.engine.operations.append import Appends, eviction_frames, placed, publish_records
from topics.engine.record_columns import encode_blocks, utf8
from topics.engine.registry import Registry
from topics.engine.topic import Commit, CommitPoint, Topic
from topics.evidence.merkle import Leaves
from topics.evidence.record_leaf import leaves_of
from topics.log.block import Block
from topics.log.copies import CopyKind, Origin, each_kind
from topics.log.missing_columns import missing_below
from topics.log.span import FLAG_DERIVED, FLAG_ORIGIN, NotLoaded
from topics.log.tables.kept_tags import KeptChange
from topics.log.topic_log import Extent
from topics.runtime.clock import Clock
from topics.storage.segments.copy_frames import CopyRecipe, ForwardedFrame, encode_forwarded
from topics.storage.store import Store
from topics.storage.wal import frames
from topics.storage.wal.frames import NOTHING, AppendFrames, FrameType, seal_batch
from topics.storage.wal.wal_files import LogPosition
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


class CopySeqs(NamedTuple):
    """The seqs of a batch: `n` seqs from `first` on, 0 for none."""

    first: int
    n: int
    ts: int
    commit_point: CommitPoint

    @property
    def last(self) -> int:
        """The last seq; 0 for none."""
        return self.first + self.n - 1 if self.n else 0


class _CopiedRecords(NamedTuple):
    """The chosen records, column by column, as the dest's readers will see them."""

    datas: list[bytes]
    nodes: list[str | None] | None
    tags: list[str | None] | None
    made: CopyColumns


class DecidedCopies(NamedTuple):
    """A batch of copies that has its seqs. Their bytes are where `extent` says, or in the batch itself (`appended`)."""

    seqs: CopySeqs
    columns: _CopiedRecords
    extent: Extent | None
    appended: AppendFrames | None
    recipe: CopyRecipe | None
    blocks: list[Block]
    watermark: int = 0
    kept: KeptChange | None = None

    @property
    def origins(self) -> list[tuple[int, int]]:
        """Return the origin topic and seq of each copy."""
        made = self.columns.made
        return [(kind.topic_id, seq) for kind, seq in zip(each_kind(made.kinds), made.origin_seqs, strict=True)]


class CopyCommits:
    """Decides and commits the batches of all forwarders. Made once by the engine, used by `Forwarders`."""

    def __init__(
        self,
        clock: Clock,
        registry: Registry,
        store: Store,
        *,
        commits: Commits,
        ceilings: Ceilings,
        appends: Appends,
        loader: Loader,
        settled: Callable[[Forwarder], None],
    ) -> None:
        self._clock = clock
        self._registry = registry
        self._store = store
        self._commits = commits
        self._ceilings = ceilings
        self._appends = appends
        self._loader = loader
        self._settled = settled
        """Called when a batch of a forwarder is published, or has failed."""
        self._arriving: dict[Topic, set[tuple[int, int]]] = {}
        """Origins in flight into a dest that takes each only once, or may be configured so."""

    def arriving(self, dest: Topic) -> Collection[tuple[int, int]]:
        """Return the origins in flight into a dest."""
        return self._arriving.get(dest, ())

    # -- what can be decided -----------------------------------------------------------------------------------------

    def move(self, forwarder: Forwarder, last: int) -> None:
        """Move the cursor to `last`, without copies."""
        now = self._registry.now_ms()
        self._send(forwarder, self._forwarded(forwarder, last), CopySeqs(0, 0, now, CommitPoint.HANDED))

    def trim(self, forwarder: Forwarder, last: int) -> None:
        """Move the cursor to `last` with a hole of one seq: the records up to it were lost, or can never fit."""
        seqs = self._next_seqs(forwarder.dest, 1)
        forwarded = self._forwarded(forwarder, last)._replace(trims=True)
        log.warning("source_trim", router=forwarder.router.name, first=forwarded.first, last=last, seq=seqs.first)
        self._send(forwarder, forwarded, seqs)

    def copy(self, forwarder: Forwarder, taken: SourceColumns, chosen: Sequence[int], last: int) -> None:
        """Make copies of the chosen records, and move the cursor to `last`. Raises Wait for columns of the dest."""
        dest = forwarder.dest
        columns = _columns(forwarder, taken, chosen)
        self._check_columns(dest, columns)
        seqs = self._next_seqs(dest, len(chosen))
        blocks = encode_blocks(
            seqs.first,
            seqs.ts,
            columns.datas,
            columns.nodes,
            columns.tags,
            columns.made.metas,
            pinned=dest.ephemeral,
        )
        decided = DecidedCopies(seqs, columns, None, None, None, blocks)
        if dest.ephemeral:
            decided = decided._replace(extent=_in_memory(seqs, columns))
        elif taken.files is None:
            decided = decided._replace(appended=_logged(dest, seqs, columns))
        else:
            extent, recipe = _derived(seqs, columns, taken, chosen)
            decided = decided._replace(extent=extent, recipe=recipe)
            # The source files must stay from here on, and not only once the copies are published.
            dest.copy_table().need(set(recipe.files), seqs.last)
            self._registry.common.copying[dest] = None
        picked = taken.seqs if len(chosen) == len(taken.seqs) else [taken.seqs[i] for i in chosen]
        forwarded = self._forwarded(forwarder, last)._replace(copies=len(chosen), chosen=picked)
        kept, watermark = self._appends.decided_removals(
            dest, seqs.first, columns.tags, columns.made.sizes, columns.datas
        )
        try:
            self._send(forwarder, forwarded, seqs, decided._replace(watermark=watermark, kept=kept))
        except BaseException:
            self._appends.kept.take_back(dest, kept)
            raise

    @staticmethod
    def _forwarded(forwarder: Forwarder, last: int) -> ForwardedFrame:
        router = forwarder.router
        return ForwardedFrame(router.name, router.source_id, forwarder.position + 1, last, 0)

    def _next_seqs(self, dest: Topic, count: int) -> CopySeqs:
        """Return the dest's next seqs. They are given out only when the batch is queued, so an error before that loses
        none."""
        ts = max(self._registry.now_ms(), dest.last_ts)
        return CopySeqs(dest.assigned + 1, count, ts, self._ceilings.commit_point(dest, dest.assigned + count, ts))

    def _check_columns(self, dest: Topic, columns: _CopiedRecords) -> None:
        """Raise Wait for columns that the evictions of a batch need."""
        judge = partial(self._appends.foreseen_watermark, dest, columns.tags, columns.made.sizes, columns.datas)
        try:
            judge()
        except NotLoaded:
            raise WorkBeforeStep(partial(self._loader.prepared, dest, judge)) from None

    # -- the commit --------------------------------------------------------------------------------------------------

    def _send(
        self, forwarder: Forwarder, forwarded: ForwardedFrame, seqs: CopySeqs, decided: DecidedCopies | None = None
    ) -> None:
        """Queue the batch. From here on it belongs to the dest, even if the router is deleted."""
        dest = forwarder.dest
        sent_total = forwarder.sent_total + forwarded.copies
        appended = decided.appended if decided is not None else None
        recipe = decided.recipe if decided is not None else None
        leaves: bytes | None = None
        if dest.tree is not None and decided is not None and recipe is not None:
            leaves = _leaves(dest, seqs, decided.columns)
        forwarded = forwarded._replace(total=sent_total, leaves=leaves)
        payload = encode_forwarded(forwarded, recipe, self._store.files.place_of)
        entries = [(FrameType.FORWARDED, payload)]
        if decided is not None and not dest.ephemeral:
            entries += eviction_frames(dest, decided.watermark, decided.kept)
        # Logged copies have their seqs in their own frames, and the copies of an `ephemeral` dest are not replayed.
        first_seq = 0 if dest.ephemeral or appended is not None else seqs.first
        data = appended.data if appended is not None else NOTHING
        commit = Commit(
            dest,
            data + seal_batch(entries, topic_id=dest.id, ts=seqs.ts, opened=bool(data), first_seq=first_seq),
            len(entries) + (seqs.n if data else 0),
            seqs.commit_point,
            partial(self._publish, forwarder, forwarded, seqs, decided),
            self._clock.perf_ns,
            last_seq=seqs.last,
            records=forwarded.copies,
            sizes=decided.columns.made.sizes if decided is not None else None,
            frame_lens=appended.frame_lens if appended is not None else None,
        )
        if leaves is not None:
            commit.leaves = Leaves(leaves)
        if decided is not None:
            if decided.watermark:
                commit.needs = partial(missing_below, dest.log.index, decided.watermark)
            commit.foreseen = Foreseen(decided.columns.tags, decided.watermark)
            if decided.recipe is not None:
                commit.leans = self._leans(dest, decided.recipe)
            self._expect(dest, decided)
        commit.deletes = forwarded.trims  # evictions of later commits can be computed only once the hole is there
        commit.forwards = True
        commit.on_fail = partial(self._failed, forwarder)
        if decided is not None and decided.kept is not None:
            commit.also_on_fail(partial(self._appends.kept.take_back, dest, decided.kept))
        if seqs.n:
            dest.assigned, dest.last_ts = seqs.last, seqs.ts
        forwarder.sent_total = sent_total
        forwarder.position = forwarded.last
        forwarder.in_flight += 1
        self._commits.send(commit)

    def _leans(self, dest: Topic, recipe: CopyRecipe) -> list[tuple[int, LogPosition]]:
        """Return, by shard, the log position that must be on disk before these copies may count: the end of the frames
        that they point to. Frames in the dest's own shard come before the recipe in the same log, and segments are on
        disk."""
        ends: dict[int, LogPosition] = {}
        files = self._store.files
        for file in set(recipe.files):
            kind, shard, ordinal = files.place_of(file)
            if kind == "wal" and shard != dest.shard:
                behind = (
                    offset + size
                    for of, offset, size in zip(recipe.files, recipe.offsets, recipe.frame_lens, strict=True)
                    if of == file
                )
                end = LogPosition(ordinal, max(behind))
                ends[shard] = max(end, ends.get(shard, end))
        return list(ends.items())

    def _expect(self, dest: Topic, decided: DecidedCopies) -> None:
        if dest.origins is not None or (dest.incoming and len(dest.incoming) > 1):
            self._arriving.setdefault(dest, set()).update(decided.origins)

    def _publish(
        self,
        forwarder: Forwarder,
        forwarded: ForwardedFrame,
        seqs: CopySeqs,
        decided: DecidedCopies | None,
        commit: Commit,
    ) -> None:
        """The commit point: from here on readers of the dest see the copies."""
        dest, router = commit.topic, forwarder.router
        if decided is not None:
            extent, columns = decided.extent, decided.columns
            if decided.appended is not None:
                extent = placed(commit, seqs.first, seqs.ts, decided.appended, columns.tags)
            assert extent is not None
            kept = decided.kept
            publish_records(dest, extent, decided.blocks, 0 if kept else decided.watermark)
            if kept is not None:
                self._appends.kept.publish(commit, kept, seqs.ts, decided.watermark)
            dest.copy_table().add(seqs.first, columns.made.kinds, columns.made.origin_seqs)
            self._arrived(dest, decided)
        elif forwarded.trims:
            dest.log.add_hole(seqs.first, seqs.first, "source_trim")
        router.cursor = forwarded.last
        router.forwarded += forwarded.copies
        self._registry.account(dest)
        self._settled(forwarder)

    def _arrived(self, dest: Topic, decided: DecidedCopies) -> None:
        arriving = self._arriving.get(dest)
        if dest.origins is None and arriving is None:
            return
        origins = decided.origins
        if dest.origins is not None:
            for topic_id, seq in origins:
                dest.origins.add(topic_id, seq)
        if arriving is not None:
            arriving.difference_update(origins)
            if not arriving:
                del self._arriving[dest]

    def _failed(self, forwarder: Forwarder) -> None:
        """Note that the dest's shard has failed: it takes nothing before a restart."""
        self._arriving.pop(forwarder.dest, None)
        self._settled(forwarder)


def _columns(forwarder: Forwarder, taken: SourceColumns, chosen: Sequence[int]) -> _CopiedRecords:
    """Return the columns of the chosen records as the router's look leaves them."""
    changes = forwarder.changes
    every = len(chosen) == len(taken.seqs)

    def some(names: list[str | None] | None, dropped: bool) -> list[str | None] | None:
        if dropped or names is None:
            return None
        picked = names if every else [names[i] for i in chosen]
        return picked if any(picked) else None

    datas = taken.datas if every else [taken.datas[i] for i in chosen]
    nodes, tags = some(taken.nodes, changes.drop_node), some(taken.tags, changes.drop_tag)
    return _CopiedRecords(datas, nodes, tags, columns_of_copies(forwarder.source, taken, chosen, changes))


def _leaves(dest: Topic, seqs: CopySeqs, columns: _CopiedRecords) -> bytes:
    """Return the leaves of the copies in the Merkle tree of the dest. Their frame has them, because the records that it
    points to may be gone before anybody has read them for the dest."""
    return leaves_of(
        dest.id,
        seqs.first,
        seqs.ts,
        columns.datas,
        nodes=columns.nodes,
        tags=columns.tags,
        metas=columns.made.metas,
    )


def _flags(columns: _CopiedRecords) -> bytes:
    return bytes(flag | FLAG_ORIGIN for flag in columns.made.flags)


def _in_memory(seqs: CopySeqs, columns: _CopiedRecords) -> Extent:
    """Return the index columns of copies that are in no file."""
    none = array("I", bytes(4 * seqs.n))
    return Extent(seqs.first, seqs.ts, 0, none, none, columns.made.sizes, _flags(columns), columns.tags)


def _logged(dest: Topic, seqs: CopySeqs, columns: _CopiedRecords) -> AppendFrames:
    """Return frames for copies whose originals have none to point to."""
    made = columns.made
    kinds = each_kind(made.kinds)
    return frames.encode_appends(
        dest.id,
        seqs.first,
        seqs.ts,
        columns.datas,
        nodes=utf8(columns.nodes),
        tags=utf8(columns.tags),
        metas=made.metas,
        durable=dest.commit_point is CommitPoint.SYNCED,
        closes_batch=False,
        origins=[_origin(kind, seq) for kind, seq in zip(kinds, made.origin_seqs, strict=True)],
    )


def _origin(kind: CopyKind, seq: int) -> Origin:
    return Origin(kind.topic_id, seq, kind.hops)


def _derived(
    seqs: CopySeqs, columns: _CopiedRecords, taken: SourceColumns, chosen: Sequence[int]
) -> tuple[Extent, CopyRecipe]:
    """Return the index columns of copies that point to other records' frames, and their recipe."""
    assert taken.files is not None
    made, flags = columns.made, _flags(columns)
    every = len(chosen) == len(taken.seqs)
    files, offsets, lens = (
        column if every else array("I", [column[i] for i in chosen])
        for column in (taken.files, taken.offsets, taken.frame_lens)
    )
    derived = bytes(flag | FLAG_DERIVED for flag in flags)
    extent = Extent(seqs.first, seqs.ts, files, offsets, lens, made.sizes, derived, columns.tags)
    return extent, CopyRecipe(made.kinds, made.origin_seqs, files, offsets, lens, made.sizes, flags)
