"""Forwarders: they take new records of a source and make copies of them in a dest (`docs/spec/semantics.md` section 5).

Theory of operation. A forwarder is in the fan-out of its source as a watcher is in its audience: a change of the source
makes it due, and at the fan-out's turn (`topics.sched`) it takes one step. A step is a single step of the loop: it
gathers a batch of records after its position, decides which of them become copies, and queues one commit in the dest.
The commit has the Forwarded frame, which is cursor and recipe in one, and the evictions that make room. The records
themselves are not written; the index of the dest points to the source's frames until a checkpoint has put copies into
the dest's own segments (`topics.log.copies`). Two cases have no frame to point to; otherwise they are the same:

    from an `ephemeral` source    the copies are logged in the dest as Appends, with their origins
    into an `ephemeral` dest      the copies are in memory only; the frame is the cursor

A step never waits. If it needs something (bytes from the disk, room in a shard's queue, the end of a barrier, room in a
full dest), a task of the forwarder waits for it, and then the forwarder is due again. There is at most one such task
per forwarder, and none for a forwarder that has everything.

If the source has lost records that the forwarder had not taken yet, the dest gets a hole of one seq (`source_trim`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import trio

from topics.config import Settings
from topics.engine.ceilings import Ceilings
from topics.engine.commits import Commits
from topics.engine.forwarding.copy_commits import CopyCommits
from topics.engine.forwarding.forwarder import DestFull, Forwarder, WorkBeforeStep
from topics.engine.forwarding.source_columns import (
    BATCH_BYTES,
    SourceColumns,
    matching,
    piece_of,
    take_opened,
    take_raw,
)
from topics.engine.loader import Loader
from topics.engine.operations.append import Appends, waits_for_pending
from topics.engine.operations.schema_checks import usable
from topics.engine.registry import EngineStatus, Registry
from topics.engine.topic import Fanout, Topic
from topics.errors import ApiError
from topics.log.block import block_with
from topics.log.copies import MAX_HOPS, CopyChanges, stamped
from topics.log.losses import Gap
from topics.log.retention import has_room
from topics.log.span import NotLoaded
from topics.log.topic_log import SeqRun
from topics.routing.router_state import Router
from topics.runtime.background import BackgroundTasks
from topics.runtime.clock import Clock
from topics.sched.ready_set import MAX_COST
from topics.sched.workers import Scheduler, ServiceResult
from topics.storage.segments.topic_segments import Segment
from topics.storage.store import Store
from topics.storage.wal.batches import ControlBatch
from topics.storage.wal.frames import NOTHING
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

BATCH_RECORDS: Final = 250
"""Records that a step takes at most, so that it lasts about a millisecond."""

HEAVY_RECORDS: Final = 100
"""The same bound where each record costs more: stamps and origins, frames of their own, records out of segments."""

READ_AHEAD: Final = 1000
"""Records that are read from disk at a time, for several steps."""

BATCH_SPREAD: Final = 16_384
"""Source seqs that a batch of copies spans at most: they are a bitmap in its frame."""

MAX_IN_FLIGHT: Final = 4
"""Batches of a forwarder in flight in the dest's shard; at the bound it waits for one to be published."""

TURN_COST: Final = 16
"""Cost of a fan-out's turn at most: one full batch, or several small ones. If there is more and appends arrive, the
fan-out then rests for as long as it has worked: new appends go first, and the waiting records make larger batches."""

MIN_BACKOFF_S: Final = 0.05
MAX_BACKOFF_S: Final = 1.0
"""Pauses of a forwarder whose dest is full or takes nothing (s): each twice as long as the one before, between these
bounds."""

CATCH_UP_S: Final = 1.0
"""How long a read waits for forwarders that are due (s) (`docs/spec/api.md` section 7)."""

KEPT_TAKEN: Final = 8
"""Batches of source records that are kept decoded, for other routers of the same source."""

_STRENGTH: Final = {"ephemeral": 0, "memory": 1, "disk": 2, "fsync": 3, "remote": 4}


class Forwarders:
    """The forwarders of all routers. Made once by the engine; `start_all` when requests are served, `begin` and `end`
    for each router. Waiting is done in background tasks."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        status: EngineStatus,
        registry: Registry,
        store: Store,
        *,
        commits: Commits,
        ceilings: Ceilings,
        appends: Appends,
        loader: Loader,
        background: BackgroundTasks,
        scheduler: Scheduler[Topic | Fanout[Any]],
        is_busy: Callable[[Topic, Segment], bool],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._status = status
        self._registry = registry
        self._store = store
        self._commits = commits
        self._appends = appends
        self._loader = loader
        self._background = background
        self._scheduler = scheduler
        self._is_busy = is_busy
        """Returns True if the files of a segment are being replaced."""
        self.at_rest = False
        """True: nothing is forwarded, because the log comes from elsewhere (a standby)."""
        self.forwarders: dict[str, Forwarder] = {}
        """The forwarders by router name."""
        self.is_in_cycle: Callable[[str], bool] | None = None
        """Returns True if a router is part of a cycle."""
        self.failures = 0
        """How many steps ended in an unexpected error; the forwarder went on each time."""
        self._copy_commits = CopyCommits(
            clock,
            registry,
            store,
            commits=commits,
            ceilings=ceilings,
            appends=appends,
            loader=loader,
            settled=self._settled,
        )
        self._taken: OrderedDict[tuple[int, int, int], SourceColumns] = OrderedDict()

    # -- who forwards ------------------------------------------------------------------------------------------------

    def begin(self, router: Router, source: Topic, dest: Topic) -> None:
        """Start forwarding for a router."""
        forwarder = self.forwarders[router.name] = Forwarder(router, source, dest)
        if source.fanout is None:
            source.fanout = Fanout(source)
        source.fanout.audience.consumers[forwarder] = None
        self._set_due(forwarder)

    def end(self, name: str) -> None:
        """Stop forwarding for a deleted router. Its commits in flight are finished."""
        forwarder = self.forwarders.pop(name)
        forwarder.closed = True
        fanout = forwarder.source.fanout
        assert fanout is not None
        fanout.audience.set_aside(forwarder)
        del fanout.audience.consumers[forwarder]
        if fanout.audience.empty:
            forwarder.source.fanout = None
        if forwarder.scope is not None:
            forwarder.scope.cancel()
        forwarder.tell()

    def reconsider(self, name: str) -> None:
        """Let a reconfigured router try again at once: the reason for its pause may be gone."""
        forwarder = self.forwarders[name]
        if forwarder.scope is None and not forwarder.wants_room:
            self._set_due(forwarder)

    def start_all(self) -> None:
        """Let the forwarders run, when requests are served too."""
        for forwarder in self.forwarders.values():
            self._set_due(forwarder)

    def _set_due(self, forwarder: Forwarder) -> None:
        fanout = forwarder.source.fanout
        if fanout is not None and not forwarder.closed:
            fanout.audience.set_due(forwarder)
            self._scheduler.mark(fanout)

    # -- catching up -------------------------------------------------------------------------------------------------

    async def catch_up(self, upstream: Sequence[Topic]) -> None:
        """Forward the records that are due now, sources before dests, before a read of the last of these topics. Takes
        at most `CATCH_UP_S`, and never waits for a full dest. Cancelling leaves nothing behind."""
        with trio.move_on_after(CATCH_UP_S):
            for topic in upstream:
                for name in list(topic.incoming or ()):
                    forwarder = self.forwarders.get(name)
                    if forwarder is not None and forwarder.dest is topic:
                        await self._reach(forwarder, forwarder.source.log.head_seq)

    async def _reach(self, forwarder: Forwarder, target: int) -> None:
        asked = False
        while not forwarder.closed and not forwarder.blocked and forwarder.router.cursor < target:
            fanout = forwarder.source.fanout
            if self.at_rest or self._status.phase != "ready" or fanout is None or self._scheduler.is_paused(fanout):
                return
            if not asked and self._waits_for_sync(forwarder) and self._bound(forwarder) < target:
                asked = True
                self._ask_for_sync(forwarder.source)
            if forwarder.progress is None:
                forwarder.progress = trio.Event()
            await forwarder.progress.wait()

    def _ask_for_sync(self, source: Topic) -> None:
        """Have the source synced sooner, if the class of a dest requires synced records."""
        try:
            self._commits.writer(source).submit(ControlBatch(NOTHING, 0, wants_sync=True))
        except ApiError:
            return

    # -- a turn ------------------------------------------------------------------------------------------------------

    def serve(self, fanout: Fanout[Forwarder]) -> ServiceResult:
        """Do one turn of the routers of a topic, in one step of the loop."""
        source = fanout.topic
        audience = fanout.audience
        if self.at_rest or self._status.phase != "ready" or source.working is not None or source.deleted:
            return ServiceResult(1, False)  # marked again at the end of that work
        began = self._clock.perf_ns()
        cost = 0
        while audience.due and cost < TURN_COST:
            cost += self._serve(audience.next_due())
        rest_ms = (self._clock.perf_ns() - began) / 1e6 if self._registry.lively else 0.0
        return ServiceResult(min(max(cost, 1), MAX_COST), bool(audience.due), rest_ms)

    def _serve(self, forwarder: Forwarder) -> int:
        """Do one step of one forwarder, and start the wait for the next thing that it needs. Return the cost."""
        fanout = forwarder.source.fanout
        assert fanout is not None
        try:
            cost = self._step(forwarder)
        except WorkBeforeStep as wait:
            self._await(forwarder, wait.work)
            return 1
        except NotLoaded as missing:
            self._await(forwarder, partial(self._loader.columns, forwarder.source, missing.spans))
            return 1
        except (DestFull, ApiError):
            self._pause(forwarder)
            return 1
        except Exception:  # any error concerns this forwarder only
            log.exception("forwarder_failed", router=forwarder.router.name)
            self.failures += 1
            self._pause(forwarder)
            return 1
        forwarder.blocked, forwarder.backoff_s = False, 0.0
        if forwarder.position >= self._bound(forwarder):
            fanout.audience.set_live(forwarder)
            fanout.behind = fanout.behind or forwarder.position < forwarder.source.log.head_seq
        elif forwarder.in_flight >= MAX_IN_FLIGHT:
            forwarder.wants_room = True
        else:
            fanout.audience.set_due(forwarder)
        return cost

    def _await(self, forwarder: Forwarder, work: Callable[[], Awaitable[Any]]) -> None:
        self._background.start_soon(self._resume_after, forwarder, work)

    async def _resume_after(self, forwarder: Forwarder, work: Callable[[], Awaitable[Any]]) -> None:
        with trio.CancelScope() as forwarder.scope:
            if not forwarder.closed:
                try:
                    await work()
                except ApiError:
                    await self._sleep(forwarder)
                except Exception:  # any error concerns this forwarder only
                    log.exception("forwarder_failed", router=forwarder.router.name)
                    self.failures += 1
                    await self._sleep(forwarder)
        forwarder.scope = None
        self._set_due(forwarder)

    def _pause(self, forwarder: Forwarder) -> None:
        self._await(forwarder, partial(self._sleep, forwarder))

    async def _sleep(self, forwarder: Forwarder) -> None:
        forwarder.blocked = True
        forwarder.backoff_s = min(max(2 * forwarder.backoff_s, MIN_BACKOFF_S), MAX_BACKOFF_S)
        forwarder.tell()
        await trio.sleep(forwarder.backoff_s)

    def _settled(self, forwarder: Forwarder) -> None:
        forwarder.in_flight -= 1
        forwarder.tell()
        if forwarder.wants_room and forwarder.in_flight <= MAX_IN_FLIGHT // 2:
            forwarder.wants_room = False
            self._set_due(forwarder)

    def _bound(self, forwarder: Forwarder) -> int:
        """Return the last source seq that may be forwarded now: only synced records go into a stronger class, written
        ones into any other (`docs/spec/semantics.md` section 5)."""
        source = forwarder.source
        if source.ephemeral or forwarder.dest.ephemeral:
            return source.log.head_seq
        if self._waits_for_sync(forwarder):
            return min(source.synced_seq, source.log.head_seq)
        return min(source.blocks.written_seq, source.log.head_seq)

    @staticmethod
    def _waits_for_sync(forwarder: Forwarder) -> bool:
        source, dest = forwarder.source.config.durability, forwarder.dest.config.durability
        return source != "ephemeral" and _STRENGTH[dest] > _STRENGTH[source]

    # -- a step ------------------------------------------------------------------------------------------------------

    def _step(self, forwarder: Forwarder) -> int:
        """Forward one batch after the forwarder's position. Return the cost."""
        self._check_dest(forwarder)
        source = forwarder.source
        self._registry.expire(source)
        bound = self._bound(forwarder)
        if forwarder.position >= bound:
            return 1
        position, tombstone = source.log.start(forwarder.position, True)
        if tombstone is not None:
            self._check_room_behind(forwarder, position)
            self._announce(forwarder, tombstone.gap_to, tombstone.reason)
            return 1
        following = source.log.step(position, self._most(forwarder))
        if following is None or following.first > bound:
            self._copy_commits.move(forwarder, bound)  # the rest was deleted
            return 1
        if isinstance(following, Gap):
            self._check_room_behind(forwarder, following.last)
            self._announce(forwarder, min(following.last, bound), following.reason)
            return 1
        taken = self._take(forwarder, following.first, min(following.last, bound))
        looked_at, share = piece_of(taken, forwarder.router.config.record_filter)
        chosen = self._choose(forwarder, taken, looked_at)
        last = taken.seqs[looked_at - 1]
        filtering = int(TURN_COST * share)
        if not chosen:
            self._copy_commits.move(forwarder, last)
            return 1 + max(looked_at // 100, filtering)
        fitting = self._fitting(forwarder, taken, chosen)
        if fitting == 0:
            # The record can never fit, so it is skipped, together with the records left out before it.
            self._copy_commits.trim(forwarder, taken.seqs[chosen[0]])
            return 1
        fitting = min(fitting, bisect_right(chosen, taken.seqs[chosen[0]] + BATCH_SPREAD, key=taken.seqs.__getitem__))
        cost = 1 + max(TURN_COST * fitting // self._most(forwarder), filtering)
        if fitting < len(chosen):
            last = taken.seqs[chosen[fitting]] - 1
            chosen = chosen[:fitting]
            if forwarder.dest.config.schema is not None:
                cost = TURN_COST  # judging these may have been as much work as a full batch
        self._copy_commits.copy(forwarder, taken, chosen, last)
        if forwarder.opened is not None and forwarder.opened.seqs[-1] <= last:
            forwarder.opened = None
        if forwarder.read and forwarder.read[-1].last_seq <= last:
            forwarder.read = []
        return cost

    @staticmethod
    def _most(forwarder: Forwarder) -> int:
        source, dest = forwarder.source, forwarder.dest
        heavy = (
            dest.origins is not None
            or (source.ephemeral and not dest.ephemeral)
            or forwarder.position < source.log.stored.last_seq
            or dest.config.schema is not None
        )
        return HEAVY_RECORDS if heavy else BATCH_RECORDS

    def _check_dest(self, forwarder: Forwarder) -> None:
        """Check that the dest takes copies now. Raises Wait, and ApiError if its shard has failed or the disk is nearly
        full."""
        dest = forwarder.dest
        if dest.barrier is not None:
            raise WorkBeforeStep(dest.barrier.wait)
        writer = self._commits.check_writable(dest)
        self._commits.check_space(writer)
        if self._commits.is_full(dest):
            raise WorkBeforeStep(partial(self._commits.admit, dest, None))
        if waits_for_pending(dest):
            raise WorkBeforeStep(partial(_may_be_decided, dest))

    def _choose(self, forwarder: Forwarder, taken: SourceColumns, looked_at: int) -> Sequence[int]:
        """Return the indexes of the records that become copies, among the first `looked_at`."""
        config, dest = forwarder.router.config, forwarder.dest
        chosen: Sequence[int] = range(looked_at)
        if config.filter is not None:
            matches = config.filter.matches
            chosen = [i for i in chosen if matches(taken.tags[i])] if taken.tags is not None else []
        if config.record_filter is not None:
            chosen = matching(taken, chosen, config.record_filter)
        if taken.origins is not None:
            # A record never goes back into the topic of its origin, nor through more than `MAX_HOPS` routers.
            origins = taken.origins
            chosen = [i for i in chosen if origins[i][0].topic_id != dest.id and origins[i][0].hops < MAX_HOPS]
        if dest.origins is not None and config.guarantee == "exactly_once":
            arriving = self._copy_commits.arriving(dest)
            known = dest.origins
            new: dict[tuple[int, int], int] = {}
            for i in chosen:
                origin = self._origin(forwarder.source, taken, i)
                if origin not in known and origin not in arriving:
                    new.setdefault(origin, i)
            chosen = list(new.values())
        return chosen

    @staticmethod
    def _origin(source: Topic, taken: SourceColumns, i: int) -> tuple[int, int]:
        if taken.origins is None:
            return source.id, taken.seqs[i]
        kind, seq = taken.origins[i]
        return kind.topic_id, seq

    def _fitting(self, forwarder: Forwarder, taken: SourceColumns, chosen: Sequence[int]) -> int:
        """Return how many of the chosen records fit into the dest and do not break its schema, as far as that is judged
        in one step; 0 if the first never can. Raises Full if none fits now."""
        dest = forwarder.dest
        if dest.config.schema is not None:
            schema, datas = usable(dest.config.schema), [taken.datas[i] for i in chosen]
            end, _ = schema.piece(datas, 0)
            found = schema.first_violation(datas, 0, end)
            chosen = chosen[: end if found is None else found[0]]
            if found is not None and not chosen:
                log.warning("copy_breaks_schema", router=forwarder.router.name, topic=dest.name, path=found[1].path)
                return 0
        config, quota = dest.config, self._settings.max_total_bytes
        rejects = config.discard == "reject" and bool(config.cap_records or config.cap_bytes)
        if not rejects and not quota:
            return len(chosen)
        changes = forwarder.changes
        sizes = [taken.sizes[i] + self._growth(forwarder, taken, i, changes) for i in chosen]
        if rejects and config.cap_bytes and sizes[0] > config.cap_bytes:
            return 0
        self._expire(dest)
        left = self._appends.quota_left() if quota else 0
        if quota and sizes[0] > left:
            self._appends.expire_all()
            left = self._appends.quota_left()
        total = 0
        for n, size in enumerate(sizes, 1):
            total += size
            room = not rejects or has_room(dest.log, config, dest.pending_records, dest.pending_bytes, n, total)
            if not room or (quota and total > left):
                if n == 1:
                    raise DestFull
                return n - 1
        return len(chosen)

    def _check_room_behind(self, forwarder: Forwarder, position: int) -> None:
        """Raise Full unless the dest has room for the record after a loss. So a full dest whose source keeps losing
        records is told of the loss once."""
        source, dest = forwarder.source, forwarder.dest
        config = dest.config
        following = source.log.step(position, 1)
        if config.discard != "reject" or not isinstance(following, SeqRun):
            return
        raw = source.log.index.capture_raw(following.first, following.first)
        size = raw[0].size[0] if raw else 1
        self._expire(dest)
        room = has_room(dest.log, config, dest.pending_records, dest.pending_bytes, 1, size)
        if not room and not 0 < config.cap_bytes < size:
            raise DestFull

    def _expire(self, dest: Topic) -> None:
        try:
            self._registry.expire(dest)
        except NotLoaded:
            raise WorkBeforeStep(partial(self._loader.expire, dest)) from None

    def _growth(self, forwarder: Forwarder, taken: SourceColumns, i: int, changes: CopyChanges) -> int:
        if changes.stamp is None:
            return 0
        meta = taken.metas[i] if taken.metas is not None else b""
        return len(stamped(meta, *self._origin(forwarder.source, taken, i), changes.stamp)) - len(meta)

    def _announce(self, forwarder: Forwarder, last: int, reason: str) -> None:
        """Tell the dest that the source lost records up to `last`. A hole has no origin that would stop it in a cycle,
        so a hole that stands for a loss elsewhere is not passed on within a cycle."""
        if reason == "source_trim" and self.is_in_cycle is not None and self.is_in_cycle(forwarder.router.name):
            self._copy_commits.move(forwarder, last)
        else:
            self._copy_commits.trim(forwarder, last)

    # -- taking records ----------------------------------------------------------------------------------------------

    def _take(self, forwarder: Forwarder, first: int, last: int) -> SourceColumns:
        """Return live records from `first` on, at most up to `last`, decoded. Raises Wait for records on disk."""
        source = forwarder.source
        if first <= source.log.stored.last_seq:
            return self._take_stored(forwarder, first, min(last, source.log.stored.last_seq))
        block = source.blocks.find(first) or block_with(forwarder.read, first)
        if block is None:
            raise WorkBeforeStep(
                partial(self._load, forwarder, first, min(first + READ_AHEAD - 1, source.log.head_seq))
            )
        last = min(last, block.last_seq)
        key = source.id, first, last
        taken = self._taken.get(key)
        if taken is None or (taken.files is None) is not source.ephemeral:
            taken = take_raw(source, block, first, last)
            if taken.files is not None and 0 in taken.files:
                return taken  # not kept for other routers, because the records are not written yet and have no place
            self._taken[key] = taken
            self._taken.move_to_end(key)
            if len(self._taken) > KEPT_TAKEN:
                self._taken.popitem(last=False)
        return taken

    async def _load(self, forwarder: Forwarder, first: int, last: int) -> None:
        forwarder.read = await self._loader.load(forwarder.source, first, last)

    def _take_stored(self, forwarder: Forwarder, first: int, last: int) -> SourceColumns:
        source = forwarder.source
        opened = forwarder.opened.part(first, last) if forwarder.opened is not None else None
        # Their places are looked up again: the segment may have been replaced while it was read.
        if opened is None or not self._loader.is_current(source, opened):
            forwarder.opened = None
            raise WorkBeforeStep(
                partial(self._open, forwarder, first, min(first + READ_AHEAD - 1, source.log.stored.last_seq))
            )
        if self._is_busy(source, opened.segment):
            raise WorkBeforeStep(partial(trio.sleep, MIN_BACKOFF_S))
        # Copies of cold records are logged, so that the dest does not depend on the cold store.
        hot = opened.segment.tier == "hot"
        place = ("segment", source.id, opened.segment.first)
        return take_opened(source, opened, self._store.files.file_of(place, opened.segment.read_salt) if hot else None)

    async def _open(self, forwarder: Forwarder, first: int, last: int) -> None:
        forwarder.opened = await self._loader.open_stored(forwarder.source, first, last, BATCH_BYTES)


async def _may_be_decided(dest: Topic) -> None:
    """Wait until no commit in flight is in the way of copies. There may be none at the time of the call."""
    while waits_for_pending(dest):
        await dest.next_change().wait()
