"""Forwarders: they take what is new in a source and make copies of it in a dest (`semantics.md` section 5).

Theory of operation. A forwarder stands in the fan-out of its source as a watcher stands in its audience: a change of
the source makes it due, and when it is the fan-out's turn (`topics.sched`) it takes one step. A step is a single step
of the loop: it gathers a batch of what follows its position, decides which records become copies, and queues one commit
in the dest: the Forwarded frame, which is cursor and recipe in one, and what it makes room for. Of the records
themselves nothing is written; the index of the dest points to the source's frames until a checkpoint has put copies
into the dest's own segments (`topics.log.copies`). Two cases have no frame to point to, and differ in nothing else:

    from an `ephemeral` source    the copies are logged in the dest as Appends, with their origins
    into an `ephemeral` dest      the copies are in memory only; the frame is the cursor

A step never waits. What it cannot go on without (bytes from the disk, room in a shard's queue, a barrier, room in a
full dest) is waited for by a task of its own, and then the forwarder is due again. There is at most one such task a
forwarder, and none for one that has everything.

What comes of a source that has lost what the forwarder wanted is one hole of one seq in the dest (`source_trim`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import trio

from topics.appending import Appending, eviction_frames, evicts, only_appends
from topics.background import Background
from topics.ceilings import Ceilings
from topics.clock import Clock
from topics.columns import encode_blocks, utf8
from topics.committing import Commits
from topics.config import Settings
from topics.errors import ApiError
from topics.loading import Loader, OpenedRun
from topics.log.block import Block, block_with
from topics.log.copies import MAX_HOPS, Kind, Look, Origin, each_kind, stamped
from topics.log.index import FLAG_DERIVED, FLAG_ORIGIN, NotLoaded
from topics.log.topic_log import Extent, Gap, Run
from topics.logs import get_logger
from topics.registry import EngineStatus, Registry
from topics.routing.state import Router
from topics.sched.ready_set import MAX_COST
from topics.sched.workers import Scheduler, Served
from topics.storage import frames
from topics.storage.copying import Forwarded, Recipe, encode_forwarded
from topics.storage.frames import FrameType, offsets_of, seal_batch
from topics.storage.shelf import Segment
from topics.storage.store import Store
from topics.storage.wal import ControlBatch, Position
from topics.taking import BATCH_BYTES, Taken, dress, take_opened, take_raw
from topics.topic import Commit, Fanout, Gate, Topic

log = get_logger(__name__)

BATCH_RECORDS: Final = 250
"""What a step takes at most, so that it takes about a millisecond."""

HEAVY_RECORDS: Final = 100
"""The same where more is done for each: stamps and origins, frames of their own, records out of segments."""

READ_AHEAD: Final = 1000
"""What is read from disk in one go, for several steps."""

BATCH_SPREAD: Final = 16_384
"""Seqs of the source that a batch of copies is spread over at most: they are a bitmap in its frame."""

MAX_IN_FLIGHT: Final = 4
"""Batches of a forwarder on their way through the dest's shard; at the bound it waits for one to be published."""

TURN_COST: Final = 16
BATCH_COST: Final = 16
"""Of a full batch, in units of a turn: one is enough."""

LIVE_MS: Final = 100
"""While somebody has appended in the last `LIVE_MS`, a fan that has more to do than a turn takes rests for as long as
it has worked: what is appended now goes before what has waited anyway, and what waits is batched."""

MIN_BACKOFF_S: Final = 0.05
MAX_BACKOFF_S: Final = 1.0
"""Pauses of a forwarder whose dest is full or takes nothing: each twice as long as the one before."""

CATCH_UP_S: Final = 1.0
"""How long a read waits for what is due (`api.md` section 7)."""

KEPT_TAKEN: Final = 8
"""Batches of sources that are kept taken apart, for other routers of the same source."""

_STRENGTH: Final = {"ephemeral": 0, "memory": 1, "disk": 2, "fsync": 3}


class Forwarder:
    """A router at work."""

    __slots__ = (
        "backoff_s",
        "blocked",
        "closed",
        "dest",
        "in_flight",
        "opened",
        "position",
        "progress",
        "read",
        "router",
        "scope",
        "sent_total",
        "source",
        "wants_room",
    )

    def __init__(self, router: Router, source: Topic, dest: Topic) -> None:
        self.router = router
        self.source = source
        self.dest = dest
        self.position = router.cursor
        """The last seq that it has decided about; what is not published yet lies between it and the router's cursor."""
        self.sent_total = router.forwarded
        """Copies that it has decided about."""
        self.in_flight = 0
        self.wants_room = False
        """It waits for one of its batches to be published."""
        self.closed = False
        self.blocked = False
        """Its dest takes nothing for now: nobody waits for it."""
        self.backoff_s = 0.0
        self.scope: trio.CancelScope | None = None
        """Of the task that waits for it, if one does."""
        self.progress: trio.Event | None = None
        self.read: list[Block] = []
        """Read from disk for its next step."""
        self.opened: OpenedRun | None = None
        """The same from segments."""

    def __hash__(self) -> int:
        return hash(self.router.name)

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def look(self) -> Look:
        """How its copies differ from what they are made of."""
        config = self.router.config
        stamp = self.router.name if config.guarantee == "exactly_once" else None
        return Look(not config.preserve_node, not config.preserve_tag, stamp)

    def tell(self) -> None:
        """It has got on, or will not for now: whoever waits looks again."""
        if self.progress is not None:
            self.progress.set()
            self.progress = None


class Decided(NamedTuple):
    """A batch of copies that has its seqs."""

    first_seq: int
    ts: int
    kinds: list[tuple[int, Kind]]
    origin_seqs: Sequence[int]
    extent: Extent | None
    """Where their bytes are; None if they are in the batch itself."""
    appended: frames.Appends | None
    tags: list[str | None] | None
    blocks: list[Block]
    watermark: int


class _Wait(Exception):
    """The step cannot go on before `work` is done."""

    def __init__(self, work: Callable[[], Awaitable[Any]]) -> None:
        super().__init__()
        self.work = work


class _Full(Exception):
    """The dest takes nothing for now."""


class Forwarding:
    """See the module."""

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
        appending: Appending,
        loader: Loader,
        background: Background,
        scheduler: Scheduler[Topic | Fanout[Any]],
        is_busy: Callable[[Topic, Segment], bool],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._status = status
        self._registry = registry
        self._store = store
        self._commits = commits
        self._ceilings = ceilings
        self._appending = appending
        self._loader = loader
        self._background = background
        self._scheduler = scheduler
        self._is_busy = is_busy
        """Whether the files of a segment are being replaced."""
        self.forwarders: dict[str, Forwarder] = {}
        """By the router's name."""
        self.is_in_cycle: Callable[[str], bool] | None = None
        """Whether a router is part of a cycle."""
        self.failures = 0
        """Steps that ended in an unexpected error; the forwarder was started again."""
        self._arriving: dict[Topic, set[tuple[int, int]]] = {}
        """Origins that are on their way into a dest which takes each only once."""
        self._taken: OrderedDict[tuple[int, int, int], Taken] = OrderedDict()

    # -- who forwards ------------------------------------------------------------------------------------------------

    def begin(self, router: Router, source: Topic, dest: Topic) -> None:
        """The router is at work from here on."""
        forwarder = self.forwarders[router.name] = Forwarder(router, source, dest)
        if source.fanout is None:
            source.fanout = Fanout(source)
        source.fanout.audience.consumers[forwarder] = None
        self._set_due(forwarder)

    def end(self, name: str) -> None:
        """The router is gone. What it has on its way is finished."""
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
        """The router was configured anew: what kept it waiting may not any more."""
        forwarder = self.forwarders[name]
        if forwarder.scope is None and not forwarder.wants_room:
            self._set_due(forwarder)

    def start_all(self) -> None:
        """Requests are served from here on, and so are forwarders."""
        for forwarder in self.forwarders.values():
            self._set_due(forwarder)

    def _set_due(self, forwarder: Forwarder) -> None:
        fanout = forwarder.source.fanout
        if fanout is not None and not forwarder.closed:
            fanout.audience.set_due(forwarder)
            self._scheduler.mark(fanout)

    # -- catching up -------------------------------------------------------------------------------------------------

    async def catch_up(self, upstream: Sequence[Topic]) -> None:
        """Before a read of the last of these topics: forward what is due now, sources before dests, for at most
        `CATCH_UP_S` and never waiting for a dest that is full. Cancelling leaves nothing."""
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
            if self._status.phase != "ready" or fanout is None or self._scheduler.is_paused(fanout):
                return
            if not asked and self._waits_for_sync(forwarder) and self._bound(forwarder) < target:
                asked = True
                self._ask_for_sync(forwarder.source)
            if forwarder.progress is None:
                forwarder.progress = trio.Event()
            await forwarder.progress.wait()

    def _ask_for_sync(self, source: Topic) -> None:
        """What the class of the dest has to wait for comes sooner."""
        try:
            self._commits.writer(source).submit(ControlBatch(b"", 0, wants_sync=True))
        except ApiError:
            return

    # -- a turn ------------------------------------------------------------------------------------------------------

    def serve(self, fanout: Fanout[Forwarder]) -> Served:
        """One turn of what forwards from a topic. One step of the loop."""
        source = fanout.topic
        audience = fanout.audience
        if self._status.phase != "ready" or source.working is not None or source.deleted:
            return Served(1, False)  # it is marked again when that is over
        began = self._clock.perf_ns()
        cost = 0
        while audience.due and cost < TURN_COST:
            cost += self._serve(audience.next_due())
        now = self._clock.perf_ns()
        live = now - self._registry.common.committed_ns < LIVE_MS * 1_000_000
        rest_ms = (now - began) / 1e6 if live else 0.0
        return Served(min(max(cost, 1), MAX_COST), bool(audience.due), rest_ms)

    def _serve(self, forwarder: Forwarder) -> int:
        """One step of one forwarder, and what it waits for after that; what it cost."""
        fanout = forwarder.source.fanout
        assert fanout is not None
        try:
            cost = self._step(forwarder)
        except _Wait as wait:
            self._await(forwarder, wait.work)
            return 1
        except NotLoaded as missing:
            self._await(forwarder, partial(self._loader.columns, forwarder.source, missing.spans))
            return 1
        except (_Full, ApiError):
            self._pause(forwarder)
            return 1
        except Exception:  # whatever it is: of this forwarder only
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
                except Exception:  # whatever it is: of this forwarder only
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

    def _bound(self, forwarder: Forwarder) -> int:
        """The last seq of the source that may be forwarded now: a copy into a stronger class is made of what is synced,
        any other of what is written (`semantics.md` section 5)."""
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
        """Take what follows the forwarder's position, one batch; what it cost."""
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
            self._move(forwarder, bound)  # what is left was deleted
            return 1
        if isinstance(following, Gap):
            self._check_room_behind(forwarder, following.last)
            self._announce(forwarder, min(following.last, bound), following.reason)
            return 1
        taken = self._take(forwarder, following.first, min(following.last, bound))
        chosen = self._choose(forwarder, taken)
        last = taken.seqs[-1]
        if not chosen:
            self._move(forwarder, last)
            return 1 + len(taken.seqs) // 100
        fitting = self._fitting(forwarder, taken, chosen)
        if fitting == 0:
            # It can never fit: nobody waits for that. What was left out before it goes with it.
            self._trim(forwarder, taken.seqs[chosen[0]])
            return 1
        fitting = min(fitting, bisect_right(chosen, taken.seqs[chosen[0]] + BATCH_SPREAD, key=taken.seqs.__getitem__))
        if fitting < len(chosen):
            last = taken.seqs[chosen[fitting]] - 1
            chosen = chosen[:fitting]
        self._copy(forwarder, taken, chosen, last)
        if forwarder.opened is not None and forwarder.opened.seqs[-1] <= last:
            forwarder.opened = None
        if forwarder.read and forwarder.read[-1].last_seq <= last:
            forwarder.read = []
        return 1 + BATCH_COST * len(chosen) // self._most(forwarder)

    @staticmethod
    def _most(forwarder: Forwarder) -> int:
        source, dest = forwarder.source, forwarder.dest
        heavy = (
            dest.origins is not None
            or (source.ephemeral and not dest.ephemeral)
            or forwarder.position < source.log.stored_to
        )
        return HEAVY_RECORDS if heavy else BATCH_RECORDS

    def _check_dest(self, forwarder: Forwarder) -> None:
        """Whether the dest takes anything now. Raises _Wait, and ApiError when its shard has failed or the disk is
        nearly full."""
        dest = forwarder.dest
        if dest.barrier is not None:
            raise _Wait(dest.barrier.wait)
        writer = self._commits.check_writable(dest)
        self._commits.check_space()
        if writer.full:
            raise _Wait(partial(self._commits.admit, writer, None))
        if dest.pending and evicts(dest) and not only_appends(dest):
            raise _Wait(partial(_deletions_over, dest))

    def _choose(self, forwarder: Forwarder, taken: Taken) -> Sequence[int]:
        """Which of the records become copies, by index."""
        config, dest = forwarder.router.config, forwarder.dest
        chosen: Sequence[int] = range(len(taken.seqs))
        if config.filter is not None:
            matches = config.filter.matches
            chosen = [i for i in chosen if matches(taken.tags[i])] if taken.tags is not None else []
        if taken.origins is not None:
            # Never back into the topic where it comes from, and no further than so many hops.
            origins = taken.origins
            chosen = [i for i in chosen if origins[i][0].topic_id != dest.id and origins[i][0].hops < MAX_HOPS]
        if dest.origins is not None and config.guarantee == "exactly_once":
            arriving = self._arriving.get(dest, ())
            known = dest.origins
            new: dict[tuple[int, int], int] = {}
            for i in chosen:
                origin = self._origin(forwarder.source, taken, i)
                if origin not in known and origin not in arriving:
                    new.setdefault(origin, i)
            chosen = list(new.values())
        return chosen

    @staticmethod
    def _origin(source: Topic, taken: Taken, i: int) -> tuple[int, int]:
        if taken.origins is None:
            return source.id, taken.seqs[i]
        kind, seq = taken.origins[i]
        return kind.topic_id, seq

    def _fitting(self, forwarder: Forwarder, taken: Taken, chosen: Sequence[int]) -> int:
        """How many of the chosen fit into the dest; 0 if the first can never. Raises _Full if it cannot now."""
        dest = forwarder.dest
        config, quota = dest.config, self._settings.max_total_bytes
        rejects = config.discard == "reject" and bool(config.cap_records or config.cap_bytes)
        if not rejects and not quota:
            return len(chosen)
        look = forwarder.look
        sizes = [taken.sizes[i] + self._growth(forwarder, taken, i, look) for i in chosen]
        if rejects and config.cap_bytes and sizes[0] > config.cap_bytes:
            return 0
        self._expire(dest)
        left = self._appending.quota_left() if quota else 0
        if quota and sizes[0] > left:
            self._appending.expire_all()
            left = self._appending.quota_left()
        total = 0
        for n, size in enumerate(sizes, 1):
            total += size
            room = not rejects or dest.log.room(
                config.cap_records, config.cap_bytes, dest.pending_records, dest.pending_bytes, n, total
            )
            if not room or (quota and total > left):
                if n == 1:
                    raise _Full
                return n - 1
        return len(chosen)

    def _check_room_behind(self, forwarder: Forwarder, position: int) -> None:
        """A loss is told when there is room for what follows it, so that a full dest over a source that goes on losing
        is told once. Raises _Full."""
        source, dest = forwarder.source, forwarder.dest
        config = dest.config
        following = source.log.step(position, 1)
        if config.discard != "reject" or not isinstance(following, Run):
            return
        raw = source.log.capture_raw(following.first, following.first)
        size = raw[0].size[0] if raw else 1
        self._expire(dest)
        room = dest.log.room(config.cap_records, config.cap_bytes, dest.pending_records, dest.pending_bytes, 1, size)
        if not room and not 0 < config.cap_bytes < size:
            raise _Full

    def _expire(self, dest: Topic) -> None:
        try:
            self._registry.expire(dest)
        except NotLoaded:
            raise _Wait(partial(self._loader.expire, dest)) from None

    def _growth(self, forwarder: Forwarder, taken: Taken, i: int, look: Look) -> int:
        if look.stamp is None:
            return 0
        meta = taken.metas[i] if taken.metas is not None else b""
        return len(stamped(meta, *self._origin(forwarder.source, taken, i), look.stamp)) - len(meta)

    # -- taking records ----------------------------------------------------------------------------------------------

    def _take(self, forwarder: Forwarder, first: int, last: int) -> Taken:
        """Live records from `first` on, at most up to `last`, taken apart. Raises _Wait for what is on disk."""
        source = forwarder.source
        if first <= source.log.stored_to:
            return self._take_stored(forwarder, first, min(last, source.log.stored_to))
        block = source.blocks.find(first) or block_with(forwarder.read, first)
        if block is None:
            raise _Wait(partial(self._load, forwarder, first, min(first + READ_AHEAD - 1, source.log.head_seq)))
        last = min(last, block.last_seq)
        key = source.id, first, last
        taken = self._taken.get(key)
        if taken is None or (taken.files is None) is not source.ephemeral:
            taken = take_raw(source, block, first, last)
            if taken.files is not None and 0 in taken.files:
                return taken  # not written yet: it will have a place by the time that others want to know it
            self._taken[key] = taken
            self._taken.move_to_end(key)
            if len(self._taken) > KEPT_TAKEN:
                self._taken.popitem(last=False)
        return taken

    async def _load(self, forwarder: Forwarder, first: int, last: int) -> None:
        forwarder.read = await self._loader.load(forwarder.source, first, last)

    def _take_stored(self, forwarder: Forwarder, first: int, last: int) -> Taken:
        source = forwarder.source
        opened = forwarder.opened.part(first, last) if forwarder.opened is not None else None
        # Where they are is looked up once more: the segment may have been replaced while it was read.
        if opened is None or not self._loader.is_current(source, opened):
            forwarder.opened = None
            raise _Wait(partial(self._open, forwarder, first, min(first + READ_AHEAD - 1, source.log.stored_to)))
        if self._is_busy(source, opened.segment):
            raise _Wait(partial(trio.sleep, MIN_BACKOFF_S))
        # Nobody is to depend on a cold store but those who read what is in it: copies of that are logged.
        hot = opened.segment.tier == "hot"
        place = ("segment", source.id, opened.segment.first)
        return take_opened(source, opened, self._store.files.file_of(place) if hot else None)

    async def _open(self, forwarder: Forwarder, first: int, last: int) -> None:
        forwarder.opened = await self._loader.open_stored(forwarder.source, first, last, BATCH_BYTES)

    # -- commits -----------------------------------------------------------------------------------------------------

    def _move(self, forwarder: Forwarder, last: int) -> None:
        """Nothing of what lies up to `last` becomes a copy."""
        forwarded = self._forwarded(forwarder, last)
        self._send(forwarder, forwarded, [(FrameType.FORWARDED, encode_forwarded(forwarded, None, None))], Gate.HANDED)

    def _announce(self, forwarder: Forwarder, last: int, reason: str) -> None:
        """What lies up to `last` is lost. A hole has no origin that would end its way around a cycle, so one that
        stands for a loss elsewhere goes no further within one."""
        if reason == "source_trim" and self.is_in_cycle is not None and self.is_in_cycle(forwarder.router.name):
            self._move(forwarder, last)
        else:
            self._trim(forwarder, last)

    def _trim(self, forwarder: Forwarder, last: int) -> None:
        """What lies up to `last` cannot be had any more, or never fits: a hole of one seq."""
        dest = forwarder.dest
        ts = max(self._registry.now_ms(), dest.last_ts)
        seq = dest.assigned + 1
        gate = dest.gate
        if gate is not Gate.SYNCED:
            gate = self._ceilings.reserve(dest, seq, ts, gate)
        forwarded = self._forwarded(forwarder, last)._replace(trims=True)
        payload = encode_forwarded(forwarded, None, None)
        log.warning("source_trim", router=forwarder.router.name, first=forwarded.first, last=last, seq=seq)
        entries = [(FrameType.FORWARDED, payload)]
        self._send(forwarder, forwarded, entries, gate, first_seq=seq, last_seq=seq, ts=ts)

    def _forwarded(self, forwarder: Forwarder, last: int) -> Forwarded:
        router = forwarder.router
        return Forwarded(router.name, router.source_id, forwarder.position + 1, last, 0)

    def _copy(self, forwarder: Forwarder, taken: Taken, chosen: Sequence[int], last: int) -> None:
        """Queue one batch of copies. One step of the loop."""
        source, dest, look = forwarder.source, forwarder.dest, forwarder.look
        count = len(chosen)
        every = count == len(taken.seqs)

        def pick(column: Any) -> Any:
            return column if every else [column[i] for i in chosen]

        made = dress(source, taken, chosen, look)
        datas = pick(taken.datas)
        nodes = None if look.drop_node or taken.nodes is None else pick(taken.nodes)
        tags = None if look.drop_tag or taken.tags is None else pick(taken.tags)
        nodes = nodes if nodes is not None and any(nodes) else None
        tags = tags if tags is not None and any(tags) else None
        watermark = self._watermark(dest, made.sizes)
        ts = max(self._registry.now_ms(), dest.last_ts)
        first_seq = dest.assigned + 1
        last_seq = dest.assigned + count
        gate = dest.gate
        if gate is not Gate.SYNCED:
            gate = self._ceilings.reserve(dest, last_seq, ts, gate)
        chosen_seqs = pick(taken.seqs)
        forwarded = self._forwarded(forwarder, last)._replace(copies=count, chosen=chosen_seqs)
        flags = bytes(flag | FLAG_ORIGIN for flag in made.flags)
        extent, appended, data, recipe = None, None, b"", None
        if dest.ephemeral:
            none = array("I", bytes(4 * count))
            extent = Extent(first_seq, ts, 0, none, none, made.sizes, flags, tags)
        elif taken.files is None:
            origins = [
                Origin(kind.topic_id, seq, kind.hops)
                for kind, seq in zip(each_kind(made.kinds), made.origin_seqs, strict=True)
            ]
            appended = frames.encode_appends(
                dest.id,
                first_seq,
                ts,
                datas,
                nodes=utf8(nodes),
                tags=utf8(tags),
                metas=made.metas,
                durable=dest.gate is Gate.SYNCED,
                closes_batch=False,
                origins=origins,
            )
            data = appended.data
        else:
            files, offsets, lens = (
                array("I", pick(column)) for column in (taken.files, taken.offsets, taken.frame_lens)
            )
            recipe = Recipe(made.kinds, made.origin_seqs, files, offsets, lens, made.sizes, flags)
            derived = bytes(flag | FLAG_DERIVED for flag in flags)
            extent = Extent(first_seq, ts, files, offsets, lens, made.sizes, derived, tags)
            # What they are made of must stay from here on, and not only once they are published.
            dest.copy_table().need(set(files), last_seq)
            self._registry.common.copying[dest] = None
        blocks = encode_blocks(first_seq, ts, datas, nodes, tags, made.metas, pinned=dest.ephemeral)
        decided = Decided(first_seq, ts, made.kinds, made.origin_seqs, extent, appended, tags, blocks, watermark)
        payload = encode_forwarded(forwarded, recipe, self._store.files.place_of)
        entries = [(FrameType.FORWARDED, payload), *([] if dest.ephemeral else eviction_frames(dest, watermark))]
        self._send(
            forwarder,
            forwarded,
            entries,
            gate,
            first_seq=first_seq,
            last_seq=last_seq,
            count=count,
            ts=ts,
            decided=decided,
            data=data,
            sizes=made.sizes,
        )

    def _watermark(self, dest: Topic, sizes: array[int]) -> int:
        watermark = partial(self._appending.watermark, dest, sizes)
        try:
            return watermark()
        except NotLoaded:
            raise _Wait(partial(self._loader.prepared, dest, watermark)) from None

    def _send(
        self,
        forwarder: Forwarder,
        forwarded: Forwarded,
        entries: list[tuple[FrameType, dict[str, Any]]],
        gate: Gate,
        *,
        first_seq: int = 0,
        last_seq: int = 0,
        count: int = 0,
        ts: int = 0,
        decided: Decided | None = None,
        data: bytes = b"",
        sizes: array[int] | None = None,
    ) -> None:
        """Queue the batch. From here on it is the dest's, whatever becomes of the router."""
        dest = forwarder.dest
        entries[0][1]["total"] = forwarder.sent_total + forwarded.copies
        appended = decided.appended if decided is not None else None
        seq = 0 if dest.ephemeral or appended is not None else first_seq
        ts = ts or self._registry.now_ms()
        control = seal_batch(entries, topic_id=dest.id, ts=ts, opened=bool(data), first_seq=seq)
        commit = Commit(
            dest,
            data + control,
            len(entries) + (count if data else 0),
            gate,
            partial(self._publish, forwarder, forwarded, first_seq, decided),
            self._clock.perf_ns,
            last_seq=last_seq,
            records=count,
            sizes=sizes,
            frame_lens=appended.frame_lens if appended is not None else None,
        )
        if decided is not None:
            if decided.watermark:
                commit.needs = partial(dest.log.missing_below, decided.watermark)
            if decided.extent is not None:
                commit.leans = self._leans(dest, decided.extent)
            self._expect(dest, decided)
        commit.deletes = forwarded.trims  # what is evicted for those behind it cannot be told before it is there
        commit.forwards = True
        commit.on_fail = partial(self._failed, forwarder)
        if last_seq:
            dest.assigned, dest.last_ts = last_seq, ts
        forwarder.sent_total += forwarded.copies
        forwarder.position = forwarded.last
        forwarder.in_flight += 1
        self._commits.send(commit)

    def _leans(self, dest: Topic, extent: Extent) -> list[tuple[int, Position]]:
        """Where the bytes end that these copies are made of, by shard. Those in the dest's own shard are before the
        recipe in the same log, and those in segments are on disk."""
        if isinstance(extent.file, int):
            return []
        ends: dict[int, Position] = {}
        files = self._store.files
        for file in set(extent.file):
            kind, shard, ordinal = files.place_of(file)
            if kind == "wal" and shard != dest.shard:
                behind = (
                    offset + size
                    for of, offset, size in zip(extent.file, extent.offsets, extent.frame_lens, strict=True)
                    if of == file
                )
                end = Position(ordinal, max(behind))
                ends[shard] = max(end, ends.get(shard, end))
        return list(ends.items())

    def _expect(self, dest: Topic, decided: Decided) -> None:
        if dest.origins is not None or (dest.incoming and len(dest.incoming) > 1):
            arriving = self._arriving.setdefault(dest, set())
            arriving.update(
                (kind.topic_id, seq) for kind, seq in zip(each_kind(decided.kinds), decided.origin_seqs, strict=True)
            )

    def _publish(
        self, forwarder: Forwarder, forwarded: Forwarded, first_seq: int, decided: Decided | None, commit: Commit
    ) -> None:
        """The commit point: from here on readers of the dest see the copies."""
        dest, router = commit.topic, forwarder.router
        if decided is not None:
            extent = decided.extent
            if extent is None:
                appended = decided.appended
                assert appended is not None
                none = array("I", bytes(4 * commit.records))
                places = offsets_of(commit.offset, appended.frame_lens) if commit.file else none
                extent = Extent(
                    first_seq,
                    decided.ts,
                    commit.file,
                    places,
                    appended.frame_lens,
                    appended.sizes,
                    appended.flags,
                    decided.tags,
                )
            dest.log.extend(extent)
            dest.copy_table().add(first_seq, decided.kinds, decided.origin_seqs)
            for block in decided.blocks:
                dest.blocks.append(block)
            if decided.watermark:
                dest.log.evict_below(decided.watermark, "cap")
            self._arrived(dest, decided)
            dest.last_write_ms = decided.ts
        elif forwarded.trims:
            dest.log.add_hole(first_seq, first_seq, "source_trim")
        router.cursor = forwarded.last
        router.forwarded += forwarded.copies
        self._registry.account(dest)
        self._settled(forwarder)

    def _arrived(self, dest: Topic, decided: Decided) -> None:
        arriving = self._arriving.get(dest)
        if dest.origins is None and arriving is None:
            return
        for kind, seq in zip(each_kind(decided.kinds), decided.origin_seqs, strict=True):
            if dest.origins is not None:
                dest.origins.add(kind.topic_id, seq)
            if arriving is not None:
                arriving.discard((kind.topic_id, seq))
        if arriving is not None and not arriving:
            del self._arriving[dest]

    def _failed(self, forwarder: Forwarder) -> None:
        """The dest's shard has failed; it takes nothing any more before a restart."""
        self._arriving.pop(forwarder.dest, None)
        self._settled(forwarder)

    def _settled(self, forwarder: Forwarder) -> None:
        forwarder.in_flight -= 1
        forwarder.tell()
        if forwarder.wants_room and forwarder.in_flight <= MAX_IN_FLIGHT // 2:
            forwarder.wants_room = False
            self._set_due(forwarder)


async def _deletions_over(dest: Topic) -> None:
    """Wait until nothing on its way deletes records. That may have happened before anybody waits."""
    while dest.pending and not only_appends(dest):
        await dest.next_change()
