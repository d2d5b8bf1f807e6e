"""Commits of stages: their records become part of their topic, all at once and only once (`docs/spec/pipeline.md`
section 1, `docs/spec/crash.md` 23).

Payloads are not written again. As with routers, Forwarded frames say where the stages' records are, and from then on
the target's records are copies of the staged ones, until a checkpoint has stored them. With these frames goes a Stage
frame with the key of the commit and the names of the stages that it closes: one batch, so no crash can separate them.
The target's records have no origin: they are first appended in the target, and no reader can tell that they were
staged.

A commit may be large, and must not slow down anything but the writers of its topic:

    bar the stages      appends acked before are part of the commit, later ones wait for its end
    sync their shards   so that no record that the batch refers to can be lost without the batch
    take and encode     piece by piece, as far as the seqs are not needed for it
    decide              one step: seqs, frame headers, the batch is queued; its commit point is the sync in any class
    index               piece by piece, when everything before it is published and the batch is on disk
    publish             one step for any number of records

`topics.engine.operations.stage_lifecycle` makes and drops stages; `topics.log.stages` remembers commits.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Sequence
from functools import partial
from operator import add
from typing import Any, Final, NamedTuple

import trio

from topics.engine.ceilings import Ceilings
from topics.engine.commits import Commits, time_commit
from topics.engine.loader import Loader
from topics.engine.operations.append import Appends, eviction_frames, fence_frame, waits_for_pending
from topics.engine.operations.judge import FoundTags, publish_fence, raise_fence
from topics.engine.operations.stage_leaves import StageLeaves, hash_ahead, stage_columns
from topics.engine.operations.stage_lifecycle import StageLifecycle
from topics.engine.record_columns import encode_blocks, index_flags
from topics.engine.registry import Registry, settled
from topics.engine.tables.kept_records import NULL
from topics.engine.topic import Commit, CommitPoint, Topic
from topics.errors import ApiError, invalid, topic_not_found
from topics.evidence.merkle import Leaves
from topics.log.block import Block, RecordColumns
from topics.log.copies import PLAIN, CopyKind, CopyTable
from topics.log.missing_columns import missing_below
from topics.log.span import FLAG_DERIVED, SPAN_RECORDS, NotLoaded, Span
from topics.log.stages import CommitKeys, KnownCommit
from topics.log.tables.kept_tags import KeptChange
from topics.model import CommitResult, Conditions, Fence, Performance
from topics.runtime.background import BackgroundTasks
from topics.runtime.clock import Clock
from topics.runtime.offload import Offload
from topics.storage.segments.copy_frames import CopyRecipe, encode_staged
from topics.storage.segments.tags_format import SegmentTags
from topics.storage.segments.topic_segments import Segment, SegmentSet
from topics.storage.store import Store
from topics.storage.wal.frames import FrameType, dump_payload, seal_payloads

FRAME_RECORDS: Final = SPAN_RECORDS
"""Records of one Forwarded frame at most: taken, encoded and replayed in one step."""

TAG_SLICE: Final = 4096
"""Tags that are sorted or indexed before other tasks run: about a millisecond."""

STAGE_SLICE: Final = 50
"""How many stages are forgotten before other tasks run."""

MAX_COMMIT_RECORDS: Final = 10_000_000
"""Records of a commit at most. It is one batch of the log, of about nine bytes per record, all in memory before the
write."""

NAMED: Final = 100
"""How many missing stages an answer names at most."""

_DERIVED: Final = bytes(flags | FLAG_DERIVED for flags in range(256))


class _StagePiece(NamedTuple):
    """Records of one stage with contiguous seqs, at most `FRAME_RECORDS`. `recipe` says where their frames are. If the
    target has its records in memory only, `columns` has their contents instead. The other of the two is None."""

    recipe: CopyRecipe | None
    files: set[int]
    payload: bytes
    sizes: array[int]
    nbytes: int
    flags: bytes
    tags: Sequence[str | None] | None
    columns: RecordColumns | None
    nulls: Collection[int] = ()
    """The indexes of the records with data null and a tag."""


class _DecidedCommit(NamedTuple):
    """A commit that has its seqs. It does not change any more."""

    key: str
    names: tuple[str, ...]
    """The names of the stages that it closes."""
    first_seq: int
    ts: int
    at: int
    """When it was decided (ms of the window clock)."""
    pieces: Sequence[_StagePiece]
    watermark: int
    kept: KeptChange | None
    """The records that it removes, if the topic keeps only the newest records of each tag."""
    fence: Fence | None
    """The fence that it raises, if it raises one."""
    spans: list[Span]
    copies: CopyTable
    blocks: list[Block]
    """The last three are filled before it is published."""


class StageCommits:
    """The call that commits stages. Made once by the engine. Commits run in background tasks, so that they outlive
    their requests; `ended` waits for them."""

    def __init__(
        self,
        clock: Clock,
        registry: Registry,
        store: Store,
        *,
        commits: Commits,
        ceilings: Ceilings,
        appends: Appends,
        stage_lifecycle: StageLifecycle,
        loader: Loader,
        background: BackgroundTasks,
        offload: Offload,
    ) -> None:
        self._clock = clock
        self._registry = registry
        self._store = store
        self._commits = commits
        self._ceilings = ceilings
        self._appends = appends
        self._stage_lifecycle = stage_lifecycle
        self._loader = loader
        self._background = background
        self._offload = offload
        self._in_flight: dict[tuple[int, str], trio.Event] = {}
        """Events for the ends of the commits in flight, by topic id and key."""

    async def commit(
        self,
        name: str,
        stages: Sequence[str],
        key: str,
        perf: Performance,
        *,
        disable_backpressure: bool = False,
        conditions: Conditions | None = None,
    ) -> CommitResult:
        """Publish stages of a topic in this order under a key; returns at the commit point, with everything on disk.

        A remembered key gets the same answer again, even if the stages no longer exist. Raises `404 topic_not_found`,
        `404 stage_not_found` (nothing is published), and the errors of an append of all these records under these
        conditions. A commit that has begun continues without its caller: cancelling stops only the waiting.
        """
        if not stages or len(set(stages)) != len(stages):
            raise invalid("stages", "has to name at least one stage, and each one once")
        while True:
            target = self._registry.topic(name)
            known = target.commit_keys.lookup(key, self._registry.windows.now_ms()) if target.commit_keys else None
            if known is not None:
                perf.wal_append_ms = perf.fsync_ms = 0.0
                return _answer(name, known, deduped=True)
            first = self._in_flight.get((target.id, key))
            if first is not None:
                await self._commits.wait_for(first, self._commits.writer(target))
                continue
            found = _stages_of(target, stages)
            if await self._commits.settled(*found):
                break
        self._commits.check_unblocked(*map(self._commits.writer, (target, *found)))
        for stage in found:
            stage.barrier = trio.Event()
        self._in_flight[target.id, key] = trio.Event()
        work = partial(self._carry_out, target, found, key, perf, disable_backpressure, conditions)
        return _answer(name, await self._background.finish(work, self._commits.wait_begun), deduped=False)

    def expire(self) -> None:
        """Called every second: forget the commits whose window is over."""
        now = self._registry.windows.now_ms()
        for topic in list(self._registry.committed):
            if topic.commit_keys is not None and topic.commit_keys.expire(now):
                topic.mark_changed()
                if not len(topic.commit_keys):
                    topic.commit_keys = None
            if topic.deleted or topic.commit_keys is None:
                self._registry.committed.discard(topic)

    async def ended(self) -> None:
        """Wait until the commits in flight have ended."""
        for event in list(self._in_flight.values()):
            await event.wait()

    # -- the way of a commit -----------------------------------------------------------------------------------------

    async def _carry_out(
        self,
        target: Topic,
        stages: Sequence[Topic],
        key: str,
        perf: Performance,
        disable_backpressure: bool,
        conditions: Conditions | None,
    ) -> KnownCommit:
        """Carry out a commit. The caller has set the barriers of the stages and the event of the key."""
        pins: set[int] = set()
        self._registry.pin(pins)
        try:
            for stage in stages:
                await stage.drained()
            self._check_whole(target, stages)
            for stage in {stage.shard: stage for stage in stages}.values():
                await self._commits.sync_shard(stage)
            try:
                pieces = [piece for stage in stages for piece in await self._pieces(target, stage, pins)]
            except ApiError:
                self._check_whole(target, stages)  # a stage was dropped meanwhile
                raise
            self._check_whole(target, stages)  # reading may have found damage
            commit, decided = await self._decide(target, stages, key, pieces, perf, disable_backpressure, conditions)
            assert isinstance(commit.held, trio.Event)
            await commit.held.wait()
            if commit.error is None:
                await self._index(target, decided)
                commit.held = None
                target.settle()
            known: KnownCommit = await commit.wait()
            time_commit(commit, perf)
            for i, stage in enumerate(stages, 1):
                if not stage.deleted:
                    self._stage_lifecycle.forget(stage)
                if i % STAGE_SLICE == 0:
                    await trio.lowlevel.checkpoint()
            return known
        finally:
            self._registry.unpin(pins)
            for stage in stages:
                if _is_damaged(stage):  # no commit can ever publish this stage: the next append begins a new one
                    self._background.start_soon(self._stage_lifecycle.drop_damaged, stage)
                else:
                    stage.lift_barrier()
            self._in_flight.pop((target.id, key)).set()

    @staticmethod
    def _check_whole(target: Topic, stages: Sequence[Topic]) -> None:
        """Refuse to publish a part of the acked records: every stage must be open and undamaged. Raises 404, 400."""
        for stage in stages:
            assert stage.stage is not None
            if stage.deleted or _is_damaged(stage):
                raise _stage_not_found(target, [stage.stage.name])
        count = sum(stage.log.count for stage in stages)
        if count > MAX_COMMIT_RECORDS:
            raise ApiError(
                "batch_too_large",
                f"a commit has at most {MAX_COMMIT_RECORDS} records, and these stages hold {count}",
                detail={"max": MAX_COMMIT_RECORDS, "count": count},
            )

    # -- staged records ----------------------------------------------------------------------------------------------

    async def _pieces(self, target: Topic, stage: Topic, pins: set[int]) -> list[_StagePiece]:
        """Return the records of a stage, in order. Adds the files that they are in to `pins`."""
        if target.ephemeral:
            return await self._read(stage)
        if stage.segment_set is None:
            stage.segment_set = SegmentSet()
        async with stage.segment_set.hot_lock:  # no record may move to another file before its file is pinned
            tags = await self._tags(stage)
            nulls = array("Q", stage.log.nulls or ())
            pieces = []
            for first, n, recipe in await self._recipes(stage, pins):
                payload = dump_payload(encode_staged(stage.id, recipe, self._store.files.place_of))
                some = tags[first - 1 : first - 1 + n] if tags is not None else None
                files, nbytes = set(recipe.files), sum(recipe.sizes)
                here = {seq - first for seq in nulls[bisect_left(nulls, first) : bisect_left(nulls, first + n)]}
                pieces.append(_StagePiece(recipe, files, payload, recipe.sizes, nbytes, recipe.flags, some, None, here))
                await trio.lowlevel.checkpoint()
            return pieces

    async def _recipes(self, stage: Topic, pins: set[int]) -> list[tuple[int, int, CopyRecipe]]:
        """Return first seq, number and place of the records of each piece."""
        found: list[tuple[int, int, CopyRecipe]] = []
        log = stage.log

        def take(
            first: int,
            file: array[int],
            offset: array[int],
            frame_len: array[int],
            size: array[int],
            flags: bytes,
        ) -> None:
            pins.update(file)
            for at in range(0, len(flags), FRAME_RECORDS):
                part = slice(at, at + FRAME_RECORDS)
                n = len(flags[part])
                kinds, seqs = [(n, CopyKind(stage.id, 0, PLAIN))], range(first + at, first + at + n)
                places = file[part], offset[part], frame_len[part], size[part]
                recipe = CopyRecipe(kinds, seqs, *places, flags[part])
                found.append((first + at, n, recipe))

        for span in log.stored.all():
            segment = span.segment
            assert isinstance(segment, Segment)
            stored = await self._loader.prepared(stage, span.columns)
            file = self._store.files.file_of(("segment", segment.topic_id, segment.first), segment.read_salt)
            files = array("I", (file,)) * span.n
            take(span.first, files, stored.offset, stored.frame_len, stored.size, stored.flags)
        for at in range(log.stored.last_seq + 1, log.head_seq + 1, FRAME_RECORDS):
            for run in log.index.capture_raw(at + FRAME_RECORDS - 1, at):
                take(run.first, run.file, run.offset, run.frame_len, run.size, run.flags)
            await trio.lowlevel.checkpoint()
        return found

    async def _tags(self, stage: Topic) -> list[str | None] | None:
        """Return the tag of each record; None if no record has one."""
        log = stage.log
        tags: list[str | None] = [None] * log.head_seq
        tagged = done = 0
        for name, seqs in log.tags.by_name():
            for seq in seqs:
                tags[seq - 1] = name
            tagged += len(seqs)
            if tagged - done >= TAG_SLICE:
                done = tagged
                await trio.lowlevel.checkpoint()
        for span in log.stored.all():
            if span.first < log.tags.known_from and span.tagged:
                assert isinstance(span.segment, Segment)
                found: SegmentTags = await self._loader.tags(stage, span.segment)
                for name, slots in found.items():
                    for slot in slots:
                        tags[found.first + slot - 1] = name
                tagged += span.tagged
                await trio.lowlevel.checkpoint()
        return tags if tagged else None

    async def _read(self, stage: Topic) -> list[_StagePiece]:
        """Return the contents of a stage, for a target that has its records in memory only."""
        pieces: list[_StagePiece] = []
        async for columns in stage_columns(stage, self._loader):
            sizes = array("I", map(len, columns.datas))
            if columns.metas is not None:
                sizes = array("I", map(add, sizes, map(len, columns.metas)))
            flags = index_flags(len(sizes), columns.nodes, columns.tags)
            here = {i for i, data in enumerate(columns.datas) if data == NULL}
            pieces.append(_StagePiece(None, set(), b"", sizes, sum(sizes), flags, columns.tags, columns, here))
            await trio.lowlevel.checkpoint()
        return pieces

    # -- the commit --------------------------------------------------------------------------------------------------

    async def _decide(
        self,
        target: Topic,
        stages: Sequence[Topic],
        key: str,
        pieces: Sequence[_StagePiece],
        perf: Performance,
        disable_backpressure: bool,
        conditions: Conditions | None,
    ) -> tuple[Commit, _DecidedCommit]:
        """Wait until the target can take the records; then give out the seqs and queue the batch."""
        sizes = array("I")
        for piece in pieces:
            sizes += piece.sizes
        nbytes = sum(piece.nbytes for piece in pieces)
        waited = 0.0
        tags: FoundTags = {}
        kept: KeptChange | None = None
        leaves: StageLeaves | None = None
        barred = False
        try:
            while True:
                if target.deleted:
                    raise topic_not_found(target.name)
                if not barred and not await settled(target):
                    continue
                writer = self._commits.check_writable(target)
                self._commits.check_space(writer)
                if self._commits.is_full(target):
                    waited += await self._appends.admit(target, waited, disable_backpressure=disable_backpressure)
                    continue
                if waits_for_pending(target):
                    await target.next_change().wait()  # as for an append
                    continue
                if any(target.ephemeral is not (piece.columns is not None) for piece in pieces):
                    raise ApiError("not_ready", "the class of the topic has changed meanwhile", retry_after_s=1)
                if conditions is not None and not await self._appends.judge.holds(target, conditions, tags):
                    continue
                if sizes and target.log.kept is not None and kept is None:
                    target.barrier = trio.Event()  # until the batch is queued: nobody else decides meanwhile
                    barred = True
                    kept = await self._kept(target, pieces)
                    continue
                if sizes and target.tree is not None and leaves is None:
                    if not barred:
                        target.barrier = trio.Event()
                        barred = True
                    leaves = await hash_ahead(target, stages, self._registry.now_ms(), self._loader, self._offload)
                    continue
                try:
                    watermark = self._appends.watermark(target, sizes, kept) if sizes else 0
                    if sizes and target.config.discard == "reject":
                        self._appends.check_caps(target, len(sizes), nbytes)
                except NotLoaded:
                    await self._loader.prepared(target, partial(self._appends.watermark, target, sizes, kept))
                    continue
                break
            if waited:
                perf.throttle_wait_ms = waited
            fence = raise_fence(target, conditions) if conditions is not None else None
            return self._send(target, stages, key, pieces, sizes, nbytes, watermark, kept, fence, leaves)
        except BaseException:
            self._appends.kept.take_back(target, kept)
            raise
        finally:
            if barred:
                target.lift_barrier()

    async def _kept(self, target: Topic, pieces: Sequence[_StagePiece]) -> KeptChange:
        """Return what the records take away from a topic that keeps only the newest ones of each tag. The caller has
        set a barrier."""
        columns = [(piece.tags, piece.sizes, piece.nulls) for piece in pieces]
        return await self._appends.kept.decided_in_slices(target, target.assigned + 1, columns)

    def _send(
        self,
        target: Topic,
        stages: Sequence[Topic],
        key: str,
        pieces: Sequence[_StagePiece],
        sizes: array[int],
        nbytes: int,
        watermark: int,
        kept: KeptChange | None,
        fence: Fence | None,
        leaves: StageLeaves | None,
    ) -> tuple[Commit, _DecidedCommit]:
        """Queue the batch, in one step of the loop: from here on the commit is the target's. `leaves` fit."""
        count = len(sizes)
        ts, at = max(self._registry.now_ms(), target.last_ts), self._registry.windows.now_ms()
        if leaves is not None:
            ts = leaves.ts
        first_seq, last_seq = target.assigned + 1, target.assigned + count
        commit_point = CommitPoint.SYNCED
        if count:
            commit_point = max(commit_point, self._ceilings.commit_point(target, last_seq, ts))
            target.assigned, target.last_ts = last_seq, ts
        payloads: list[tuple[FrameType, bytes, int]] = []
        seq = first_seq
        for piece in pieces:
            if piece.recipe is not None:
                payloads.append((FrameType.FORWARDED, self._with_leaves(piece, seq - first_seq, leaves), seq))
                seq += len(piece.flags)
                # The source files must stay from now on, before the copies are published.
                target.copy_table().need(piece.files, last_seq)
                self._registry.common.copying[target] = None
        names = tuple(stage.stage.name for stage in stages if stage.stage is not None)
        entries: list[tuple[FrameType, Any]] = [
            (FrameType.STAGE, {"key": key, "first": first_seq, "count": count, "stages": list(names), "at": at})
        ]
        if fence is not None:
            entries.append(fence_frame(fence))
        if not target.ephemeral:
            entries += eviction_frames(target, watermark, kept)
        payloads += [(kind, dump_payload(payload), 0) for kind, payload in entries]
        decided = _DecidedCommit(key, names, first_seq, ts, at, pieces, watermark, kept, fence, [], CopyTable(), [])
        commit = Commit(
            target,
            seal_payloads(payloads, topic_id=target.id, ts=ts),
            len(payloads),
            commit_point,
            partial(self._publish, decided),
            self._clock.perf_ns,
            last_seq=last_seq if count else 0,
            records=count,
            sizes=sizes,
            nbytes=nbytes,
        )
        if watermark:
            commit.needs = partial(missing_below, target.log.index, watermark)
        if leaves is not None:
            commit.leaves = Leaves(leaves.leaves)
        commit.held = trio.Event()
        commit.on_fail = commit.held.set
        if kept is not None:
            commit.also_on_fail(partial(self._appends.kept.take_back, target, kept))
        self._commits.send(commit)
        return commit, decided

    def _with_leaves(self, piece: _StagePiece, at: int, leaves: StageLeaves | None) -> bytes:
        """Return the payload of the frame of a piece, whose first record is number `at` of the commit."""
        if leaves is None or piece.recipe is None:
            return piece.payload
        some = leaves.part(at, len(piece.flags))
        stage_id = piece.recipe.kinds[0][1].topic_id
        return dump_payload(encode_staged(stage_id, piece.recipe, self._store.files.place_of, some))

    async def _index(self, target: Topic, decided: _DecidedCommit) -> None:
        """Build the index columns that publication puts in place. All commits before this one are published, and no
        commit behind it can be published yet."""
        seq, waiting, n = decided.first_seq, list[_StagePiece](), 0
        for piece in decided.pieces:
            if piece.tags is not None:
                for at in range(0, len(piece.tags), TAG_SLICE):
                    some = piece.tags[at : at + TAG_SLICE]
                    if some.count(None) < len(some):
                        target.log.expect_tags(seq + at, some)
                    await trio.lowlevel.checkpoint()
            if piece.recipe is not None:
                decided.copies.add(seq, piece.recipe.kinds, piece.recipe.origin_seqs)
            if piece.columns is not None:
                datas, metas = piece.columns.datas, piece.columns.metas
                names = piece.columns.nodes, piece.columns.tags
                decided.blocks.extend(encode_blocks(seq, decided.ts, datas, *names, metas, pinned=True))
            if n + len(piece.flags) > SPAN_RECORDS:
                decided.spans.append(_span(seq, decided.ts, waiting))
                waiting, n = [], 0
            waiting.append(piece)
            n += len(piece.flags)
            seq += len(piece.flags)
            await trio.lowlevel.checkpoint()
        if waiting:
            decided.spans.append(_span(seq, decided.ts, waiting))

    def _publish(self, decided: _DecidedCommit, commit: Commit) -> KnownCommit:
        """The commit point: from here on readers see all of the records, and the stages are closed."""
        target, ts = commit.topic, decided.ts
        if decided.spans:
            target.log.extend_spans(decided.spans)
            for block in decided.blocks:
                target.blocks.append(block)
            if decided.watermark and decided.kept is None:
                target.log.evict_below(decided.watermark, "cap")
            if decided.copies.runs:
                target.copy_table().adopt(decided.copies.runs)
            target.last_write_ms = ts
            target.common.traffic.count_in(
                sum(span.live for span in decided.spans), sum(sum(span.size) for span in decided.spans)
            )
        names = decided.names
        if target.commit_keys is None:
            target.commit_keys = CommitKeys()
        target.commit_keys.remember(decided.key, decided.first_seq, commit.records, decided.at, names)
        if decided.fence is not None:
            publish_fence(target, decided.fence)
        self._registry.committed.add(target)
        self._registry.account(target)
        if decided.kept is not None:
            self._appends.kept.publish(commit, decided.kept, ts, decided.watermark)
        return KnownCommit(decided.first_seq, commit.records, ts, names)


def _span(end: int, ts: int, pieces: Sequence[_StagePiece]) -> Span:
    """Return an index span for some pieces that follow one another, the last of them ending before seq `end`."""
    flags = b"".join(piece.flags for piece in pieces)
    n = len(flags)
    files, offsets, lens, sizes = array("I"), array("I"), array("I"), array("I")
    for piece in pieces:
        sizes += piece.sizes
        if piece.recipe is not None:
            files += piece.recipe.files
            offsets += piece.recipe.offsets
            lens += piece.recipe.frame_lens
    if not files:
        none = bytes(4 * n)
        return Span.of_live(end - n, ts, array("I", none), array("I", none), array("I", none), sizes, flags)
    return Span.of_live(end - n, ts, files, offsets, lens, sizes, flags.translate(_DERIVED))


def _answer(name: str, known: KnownCommit, *, deduped: bool) -> CommitResult:
    return CommitResult(
        topic=name,
        first_seq=known.first_seq,
        last_seq=known.first_seq + known.records - 1,
        count=known.records,
        deduped=deduped,
    )


def _stages_of(target: Topic, names: Sequence[str]) -> list[Topic]:
    """Return the open stages of these names. Raises `404 stage_not_found` if any is missing."""
    stages = target.stages or {}
    missing = [name for name in names if name not in stages]
    if missing:
        raise _stage_not_found(target, missing)
    return [stages[name] for name in names]


def _is_damaged(stage: Topic) -> bool:
    """Return True if the stage has lost records to damage, but not if it was deleted with its topic."""
    return not stage.deleted and stage.log.count != stage.log.head_seq


def _stage_not_found(target: Topic, missing: Sequence[str]) -> ApiError:
    return ApiError(
        "stage_not_found",
        f"topic {target.name!r} has no open stage {', '.join(map(repr, missing[:NAMED]))}",
        detail={"topic": target.name, "stages": list(missing[:NAMED])},
    )
