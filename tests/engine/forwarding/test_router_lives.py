"""Routers under random interleavings of everything that can happen to their topics, over several lives of the daemon.

The truth is kept beside the engine, by listening to what it commits: every record of every topic instance with all it
consists of, and what has become of it (live, deleted, lost). From it follows, for each step of a forwarder, which
records of its source become copies and what those look like (`Truth.decide`); each copy is compared when it is
published, and again with everything else when it is read in the end.

A seed decides everything. One that has found something becomes an example.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec
import pytest
import trio

from tests.engine import walks
from tests.engine.walks import Wrong
from tests.simulation.segment_lives import UNEXPECTED
from tests.simulation.world import Life, World
from topics.engine.forwarding.copy_commits import CopyCommits, CopySeqs, DecidedCopies
from topics.engine.forwarding.forwarder import Forwarder
from topics.engine.forwarding.forwarders import Forwarders
from topics.engine.operations.append import Appends
from topics.engine.registry import Registry
from topics.engine.topic import Commit, Topic
from topics.log.copies import MAX_HOPS
from topics.log.tag_match import TagMatch, parse_match
from topics.log.topic_log import Extent, TopicLog
from topics.model import AppendRequest, Performance, ReadRequest, RecordIn, RouterPatch, TopicConfigPatch
from topics.routing.router_state import Router
from topics.runtime.offload import Pool
from topics.storage.segments.copy_frames import ForwardedFrame

T = TypeVar("T")

CLASSES: Final = ("ephemeral", "memory", "disk", "fsync")
STRENGTH: Final = {name: n for n, name in enumerate(CLASSES)}
NODES: Final = (None, "a", "b")
TAGS: Final = (None, "x", "xy", "z")
FILTERS: Final = (None, None, "x", ["tag", "Glob", "x*"], ["tag", "Glob", "*"])
NAMES: Final = tuple(f"t{n}" for n in range(6))
CONFIG: Final = replace(walks.CONFIG, cache_bytes=3000)

SAID_OF_DAMAGE: Final = UNEXPECTED | {"copy_without_bytes", "forwarder_failed", "background_task_failed"}

REFUSALS: Final = frozenset(
    {
        "topic_full",
        "record_too_large",
        "topic_not_found",
        "topic_not_empty",
        "router_cycle",
        "topic_exists_incompatible",
        "invalid_request",  # an update of a router that has just gone
    }
)

About = Literal["losses", "cycles", "kills"]
"""What a walk is about. Where records are lost, routers lead in one direction only; where they lead in both, everybody
gets everything before a life ends, so that only what is durable need be. A kill takes place when all is written, and
finds classes that survive it."""


# ----------------------------------------------------------------- the truth


class Written(NamedTuple):
    """A record with all that it consists of; `topic_id` and `seq` are its origin's."""

    data: bytes
    node: str | None
    tag: str | None
    meta: bytes
    topic_id: int
    seq: int
    hops: int
    ts: int = 0

    @property
    def size(self) -> int:
        return len(self.data) + len(self.meta)


class Instance:
    """One topic instance."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.log = topic.log
        self.head = 0
        self.written: dict[int, Written] = {}
        self.live: dict[int, None] = {}
        self.deleted: set[int] = set()
        self.lost: dict[int, str] = {}
        self.coming: dict[int, Written] = {}
        """Copies on their way."""
        self.taken: set[tuple[int, int]] = set()
        """Origins, while somebody has to know them."""

    def lose(self, seqs: Sequence[int], reason: str) -> None:
        for seq in seqs:
            del self.live[seq]
            self.lost[seq] = reason

    def delete(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            del self.live[seq]
            self.deleted.add(seq)

    @property
    def earliest(self) -> int:
        return min(self.live, default=self.head + 1)

    @property
    def bytes(self) -> int:
        return sum(self.written[seq].size for seq in self.live)


class Way(NamedTuple):
    """How far a router has come."""

    source: int
    dest: int
    cursor: int
    copies: int


def stamped(meta: bytes, topic_id: int, seq: int, router: str) -> bytes:
    """What `exactly_once` makes of a meta."""
    value = json.loads(meta) if meta else {}
    value.pop("_topics_router", None)
    return msgspec.json.encode({**value, "_topics_router": f"{topic_id}:{seq}:{router}"})


class Truth:
    """See the module."""

    def __init__(self) -> None:
        self.instances: dict[int, Instance] = {}
        self.paths: dict[str, Way] = {}
        self.stopped: dict[str, Way] = {}
        """Of the life before, until they are met again."""
        self.copies = 0
        self.trims = 0
        self._of: dict[int, Instance] = {}

    def of(self, log: TopicLog) -> Instance | None:
        found = self._of.get(id(log))
        return found if found is not None and found.log is log else None

    # -- topics --------------------------------------------------------------------------------------------------

    def added(self, topic: Topic) -> None:
        known = self.instances.get(topic.id)
        if known is None:
            known = self.instances[topic.id] = Instance(topic)
        else:
            self._restarted(known, topic)
        self._of[id(topic.log)] = known

    @staticmethod
    def _restarted(known: Instance, topic: Topic) -> None:
        known.topic, known.log = topic, topic.log
        where = topic.name
        if topic.ephemeral:
            known.lose(list(known.live), "lost")
        log = topic.log
        assert not known.coming, where
        assert (where, log.head_seq, log.count, log.bytes) == (where, known.head, len(known.live), known.bytes)
        assert log.earliest_seq == known.earliest, where

    # -- logs ----------------------------------------------------------------------------------------------------

    def extended(self, log: TopicLog, extent: Extent) -> None:
        found = self.of(log)
        if found is not None:
            n = len(extent.flags)
            assert extent.first_seq == found.head + 1
            found.live.update(dict.fromkeys(range(found.head + 1, found.head + n + 1)))
            found.head += n

    # -- appends -------------------------------------------------------------------------------------------------

    def appended(self, decided: Any) -> None:
        found = self.instances[decided.topic.id]
        for seq, written in _parts(decided.blocks, decided.first_seq, decided.last_seq):
            found.written[seq] = written._replace(topic_id=found.topic.id, seq=seq, hops=0, ts=decided.ts)

    # -- routers -------------------------------------------------------------------------------------------------

    def begun(self, router: Router, source: Topic, dest: Topic) -> None:
        before = self.stopped.pop(router.name, None)
        path = Way(source.id, dest.id, router.cursor, router.forwarded)
        if before is not None:
            assert (router.name, path) == (router.name, before)
        else:
            assert router.cursor == 0 or router.config.start == "tail"
            assert router.cursor <= source.log.head_seq
            assert router.forwarded == 0
        self.paths[router.name] = path

    def sent(
        self, forwarder: Forwarder, forwarded: ForwardedFrame, first_seq: int, decided: DecidedCopies | None
    ) -> None:
        """A forwarder has taken a step: it is what it has to be, as of now."""
        router, source, dest = forwarder.router, self.instances[forwarder.source.id], forwarder.dest
        target = self.instances[dest.id]
        path = self.paths[router.name]
        where = f"{router.name}: {forwarded}"
        assert forwarded.first == path.cursor + 1, (where, path)
        assert forwarded.last >= forwarded.first, where
        assert forwarded.last <= source.head, where
        seqs = range(forwarded.first, forwarded.last + 1)
        expected = [] if forwarded.trims else [seq for seq in seqs if self._passes(forwarder, source, target, seq)]
        if forwarded.trims:
            self.trims += 1
            assert decided is None
            assert self._cannot_be_had(forwarder, source, target, seqs), where
        else:
            # What stands for a loss elsewhere goes no further within a cycle: it would go around for ever.
            ends = decided is None and self._in_cycle(path)
            lost = {seq: source.lost[seq] for seq in seqs if seq in source.lost}
            assert not lost or (ends and set(lost.values()) == {"source_trim"}), (where, lost)
        if router.config.guarantee == "exactly_once" and dest.origins is not None:
            once: dict[tuple[int, int], int] = {}
            for seq in expected:
                once.setdefault(source.written[seq][4:6], seq)
            expected = list(once.values())
        assert (list(forwarded.chosen) if decided is not None else []) == expected, (where, expected)
        if STRENGTH[dest.config.durability] > STRENGTH[source.topic.config.durability] > 0 and expected:
            assert source.topic.synced_seq >= expected[-1], where
        for seq, of in enumerate(expected, first_seq):
            copy = target.coming[seq] = self._copy(router, source.written[of])
            if dest.origins is not None:
                target.taken.add((copy.topic_id, copy.seq))
        self.copies += len(expected)
        self.paths[router.name] = path._replace(cursor=forwarded.last, copies=path.copies + len(expected))

    def _in_cycle(self, path: Way) -> bool:
        reached = {path.dest}
        while path.source not in reached:
            onward = {way.dest for way in self.paths.values() if way.source in reached} - reached
            if not onward:
                return False
            reached |= onward
        return True

    @staticmethod
    def _passes(forwarder: Forwarder, source: Instance, target: Instance, seq: int) -> bool:
        if seq not in source.live:
            return False
        config, written = forwarder.router.config, source.written[seq]
        chosen: TagMatch | None = config.filter
        return (
            (chosen is None or chosen.matches(written.tag))
            and written.topic_id != target.topic.id
            and written.hops < MAX_HOPS
            and not (config.guarantee == "exactly_once" and (written.topic_id, written.seq) in target.taken)
        )

    def _cannot_be_had(self, forwarder: Forwarder, source: Instance, target: Instance, seqs: Sequence[int]) -> bool:
        config = target.topic.config
        if any(seq in source.lost for seq in seqs):
            return not any(seq in source.live for seq in seqs)
        passing = [seq for seq in seqs if self._passes(forwarder, source, target, seq)]
        return (
            config.discard == "reject"
            and passing == [seqs[-1]]
            and self._copy(forwarder.router, source.written[passing[0]]).size > config.cap_bytes > 0
        )

    @staticmethod
    def _copy(router: Router, written: Written) -> Written:
        config = router.config
        meta = written.meta
        if config.guarantee == "exactly_once":
            meta = stamped(meta, written.topic_id, written.seq, router.name)
        return written._replace(
            node=written.node if config.preserve_node else None,
            tag=written.tag if config.preserve_tag else None,
            meta=meta,
            hops=written.hops + 1,
        )

    def arrived(self, dest: Topic, first_seq: int, decided: DecidedCopies) -> None:
        """Copies are about to be published."""
        target = self.instances[dest.id]
        for seq, written in _parts(decided.blocks, first_seq, decided.seqs.last):
            expected = target.coming.pop(seq)
            if dest.origins is not None:  # it may be so only since they were sent
                target.taken.add((expected.topic_id, expected.seq))
            assert written[:4] == expected[:4], (dest.name, seq)
            target.written[seq] = expected._replace(ts=decided.seqs.ts)

    # -- the end -------------------------------------------------------------------------------------------------

    async def judge(self, life: Life, *, full: bool) -> None:
        """Every topic holds what it has to; with `full` every router has done all it could."""
        for name, topic in list(life.engine.registry.topics.items()):
            known = self.instances[topic.id]
            while not await self._judge_topic(life, name, known):
                assert not full
        if full:
            await self._judge_routers(life)

    async def _judge_routers(self, life: Life) -> None:
        states, more = life.engine.routers.page("", None, None, None, 1000)
        assert not more
        assert {state.router for state in states} == self.paths.keys() == life.engine.forwarders.forwarders.keys()
        for state in states:
            path = self.paths[state.router]
            where = state.router
            assert (where, state.cursor_seq, state.forwarded_total) == (where, path.cursor, path.copies)
            head = self.instances[path.source].head
            assert (where, state.cursor_seq, state.lag) == (where, head, 0)
        assert life.engine.forwarders.failures == 0

    async def _judge_topic(self, life: Life, name: str, known: Instance) -> bool:
        """False if it has changed meanwhile."""
        before = known.head, len(known.live), len(known.lost)
        found: list[dict[str, Any]] = []
        gaps: list[tuple[int, int]] = []
        async for answer, there in walks.read_all(life.engine, name, include_tags=True):
            if answer.tombstone is not None:
                gaps.append((answer.tombstone.gap_from, answer.tombstone.gap_to))
            found += there
        state = await life.engine.topic_states.of(name, touch=False)
        if before != (known.head, len(known.live), len(known.lost)):
            return False
        assert [record["$seq"] for record in found] == list(known.live), name
        for record in found:
            written = known.written[record["$seq"]]
            assert json.dumps(record["data"]) == json.dumps(json.loads(written.data)), (name, record)
            assert (record.get("$node"), record.get("$tag")) == (written.node, written.tag), (name, record)
            assert record.get("meta", {}) == json.loads(written.meta or b"{}"), (name, record)
            assert record["$ts"] == written.ts, (name, record)
        times = [record["$ts"] for record in found]
        assert times == sorted(times), name
        expected = (name, len(known.live), known.bytes, known.earliest, known.head)
        assert (name, state.count, state.bytes, state.earliest_seq, state.head_seq) == expected
        announced = {seq for first, last in gaps for seq in range(first, last + 1)}
        assert known.lost.keys() <= announced, (name, {seq: known.lost[seq] for seq in known.lost.keys() - announced})
        assert not announced & known.live.keys(), name
        for first, last in gaps:
            assert any(seq in known.lost for seq in range(first, last + 1)), (name, first, last)
        return True

    # -- listening -----------------------------------------------------------------------------------------------

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear of everything that an engine commits."""
        with pytest.MonkeyPatch.context() as patch:
            for owner, name, hear in (
                (Registry, "add", self._hear_add),
                (TopicLog, "extend", self._hear_extend),
                (TopicLog, "delete_seqs", self._hear_delete_seqs),
                (TopicLog, "delete_below", self._hear_delete_below),
                (TopicLog, "evict_below", self._hear_evict_below),
                (TopicLog, "add_hole", self._hear_add_hole),
                (Appends, "_publish", self._hear_append),
                (Forwarders, "begin", self._hear_begin),
                (Forwarders, "end", self._hear_end),
                (Forwarders, "_step", self._hear_step),
                (CopyCommits, "_send", self._hear_send),
                (CopyCommits, "_publish", self._hear_copies),
            ):
                patch.setattr(owner, name, _heard(getattr(owner, name), hear))
            yield

    def _hear_add(self, call: Callable[..., Any], registry: Registry, topic: Topic) -> None:
        self.added(topic)
        call(registry, topic)

    def _hear_extend(self, call: Callable[..., Any], log: TopicLog, extent: Extent) -> None:
        call(log, extent)
        self.extended(log, extent)

    def _hear_delete_seqs(self, call: Callable[..., Any], log: TopicLog, seqs: Sequence[int]) -> Any:
        result = call(log, seqs)
        found = self.of(log)
        if found is not None:
            gone = [seq for seq in seqs if seq in found.live]
            assert len(gone) == result
            found.delete(gone)
        return result

    def _hear_delete_below(self, call: Callable[..., Any], log: TopicLog, before_seq: int, bound: int) -> Any:
        result = call(log, before_seq, bound)
        found = self.of(log)
        if found is not None:
            gone = [seq for seq in found.live if seq < before_seq and seq <= bound]
            assert len(gone) == result
            found.delete(gone)
        return result

    def _hear_evict_below(self, call: Callable[..., Any], log: TopicLog, seq: int, reason: Any) -> Any:
        result = call(log, seq, reason)
        found = self.of(log)
        if found is not None:
            gone = [other for other in found.live if other < seq]
            assert len(gone) == result
            found.lose(gone, reason)
        return result

    def _hear_add_hole(self, call: Callable[..., Any], log: TopicLog, first: int, last: int, reason: Any) -> None:
        call(log, first, last, reason)
        found = self.of(log)
        if found is not None:
            assert reason == "source_trim", f"a {reason} hole at {first} to {last} of {found.topic.name}"
            assert first == last == found.head + 1
            found.lost[first] = reason
            found.head += 1

    def _hear_append(self, call: Callable[..., Any], appends: Appends, decided: Any, commit: Commit) -> Any:
        self.appended(decided)
        return call(appends, decided, commit)

    def _hear_begin(
        self, call: Callable[..., Any], forwarders: Forwarders, router: Router, source: Topic, dest: Topic
    ) -> None:
        self.begun(router, source, dest)
        call(forwarders, router, source, dest)

    def _hear_end(self, call: Callable[..., Any], forwarders: Forwarders, name: str) -> None:
        del self.paths[name]
        dest = forwarders.forwarders[name].dest
        others = [router for router in (dest.incoming or {}).values() if router.name != name]
        if not any(router.config.guarantee == "exactly_once" for router in others):
            self.instances[dest.id].taken.clear()
        call(forwarders, name)

    def _hear_step(self, call: Callable[..., Any], forwarders: Forwarders, forwarder: Forwarder) -> Any:
        assert not forwarder.closed
        return call(forwarders, forwarder)

    def _hear_send(
        self,
        call: Callable[..., Any],
        commits: CopyCommits,
        forwarder: Forwarder,
        forwarded: ForwardedFrame,
        seqs: CopySeqs,
        decided: DecidedCopies | None = None,
    ) -> None:
        self.sent(forwarder, forwarded, seqs.first, decided)
        call(commits, forwarder, forwarded, seqs, decided)

    def _hear_copies(
        self,
        call: Callable[..., Any],
        commits: CopyCommits,
        forwarder: Forwarder,
        forwarded: ForwardedFrame,
        seqs: CopySeqs,
        decided: DecidedCopies | None,
        commit: Commit,
    ) -> None:
        if decided is not None:
            self.arrived(commit.topic, seqs.first, decided)
        call(commits, forwarder, forwarded, seqs, decided, commit)


def _heard(call: Callable[..., Any], hear: Callable[..., Any]) -> Callable[..., Any]:
    def heard(*args: Any, **options: Any) -> Any:
        try:
            return hear(call, *args, **options)
        except (AssertionError, KeyError, ValueError, IndexError) as error:
            raise Wrong(repr(error)) from error

    return heard


def _parts(blocks: Sequence[Any], first: int, last: int) -> Iterator[tuple[int, Written]]:
    """The records that are about to be published."""
    for block in blocks:
        for seq in range(max(first, block.first_seq), min(last, block.last_seq) + 1):
            part = block.parts_of(seq)
            yield (
                seq,
                Written(part.data, part.node.decode() or None, part.tag.decode() or None, part.meta, 0, 0, 0),
            )


# ----------------------------------------------------------------- the walk


class Walk(walks.Walk):
    """One life of a random walk."""

    refusals = REFUSALS

    def __init__(self, truth: Truth, seed: int, steps: int, about: About) -> None:
        super().__init__(seed, steps)
        self.truth = truth
        self.cycles = about != "losses"
        self.classes = {"losses": CLASSES, "cycles": CLASSES[1:], "kills": CLASSES[2:]}[about]
        self._written = 0

    async def __call__(self, life: Life) -> None:
        self.life = life
        await self.truth.judge(life, full=False)
        async with trio.open_nursery() as nursery:
            for _ in range(8 if not life.engine.registry.topics else 1):
                await self.attempt(self.route)
            for _ in range(self.steps):
                work = self.random.choices(
                    (
                        self.append,
                        self.delete,
                        self.configure,
                        self.route,
                        self.unroute,
                        self.drop,
                        self.keep_house,
                        self.read,
                        self.step_clock,
                    ),
                    (60, 10, 10, 6, 2, 2, 10, 6, 1),
                )[0]
                nursery.start_soon(self.attempt, work)
                await trio.sleep(self.random.choices((0.0, 0.001, 0.02, 0.4, 3.0), (55, 20, 15, 8, 2))[0])
        if self.cycles or self.random.random() < 0.7:
            await self.come_to_rest()
            await self.truth.judge(life, full=True)

    def name(self) -> str:
        return self.random.choice(NAMES)

    async def append(self) -> None:
        batch = []
        for _ in range(self.random.choice((1, 1, 2, 3, 12))):
            self._written += 1
            size = self.random.choices((0, 60, 900), (70, 25, 5))[0]
            meta = self.random.choice((None, None, {"k": "v"}, {"a": 'b,"_topics_router":"c"}', "é": "\\"}))
            data = b'{"n":%d ,"p":"%b"}' % (self._written, b"x" * size)
            tag, node = self.random.choice(TAGS), self.random.choice(NODES)
            batch.append(RecordIn(data=msgspec.Raw(data), node=node, tag=tag, meta=meta))
        await self.life.engine.appends.append(self.name(), AppendRequest(records=batch), Performance())

    async def delete(self) -> None:
        topic = self.life.engine.registry.topics.get(name := self.name())
        if topic is None:
            return
        earliest, head = topic.log.earliest_seq, topic.log.head_seq
        before = self.random.choice((None, earliest + self.random.randint(0, 5), self.random.randint(1, head + 1)))
        match = self.random.choice((None, "x", "z")) if before is not None else self.random.choice(("x", "z"))
        parsed = None if match is None else parse_match(match)
        await self.life.engine.deletions.delete_records(name, before, parsed, Performance())

    async def configure(self) -> None:
        durability = self.random.choice(self.classes)
        if self.cycles:
            patch: dict[str, Any] = {"cap_records": self.random.choice((0, 0, 40)), "discard": "reject"}
            if self.random.random() < 0.7:
                patch = {"durability": durability}
            await self.life.engine.topic_lifecycle.put(self.name(), TopicConfigPatch(**patch))
            return
        patch = self.random.choice(
            (
                {"durability": durability},
                {"durability": durability},
                {"cap_records": self.random.choice((0, 0, 5, 40))},
                {"cap_bytes": self.random.choice((0, 0, 700))},
                {"discard": self.random.choice(("old", "old", "reject"))},
                {"ttl_ms": self.random.choice((0, 0, 400, 3000))},
                {"priority": self.random.choice((None, -500, 600))},
            )
        )
        await self.life.engine.topic_lifecycle.put(self.name(), TopicConfigPatch(**patch))

    async def route(self) -> None:
        a, b = self.random.sample(range(len(NAMES)), 2)
        if not self.cycles:
            a, b = sorted((a, b))
        # What goes back takes each record once: otherwise every way around makes more of them.
        back = a > b
        routers = list(self.truth.paths)
        options: dict[str, Any] = {
            "filter": self.random.choice(FILTERS),
            "preserve_node": self.random.random() < 0.8,
            "preserve_tag": self.random.random() < 0.8,
        }
        if len(routers) > 10 or (routers and self.random.random() < 0.3):
            options.pop(self.random.choice(list(options)))
            if self.random.random() < 0.2:
                options["guarantee"] = "exactly_once"
            await self.life.engine.routers.put(self.random.choice(routers), RouterPatch(**options))
            return
        await self.life.engine.routers.put(
            f"r{self.random.randint(0, 30)}",
            RouterPatch(
                source=NAMES[a],
                dest=NAMES[b],
                allow_cycle=self.random.random() < 0.95,
                guarantee="exactly_once" if back or self.random.random() < 0.5 else "at_least_once",
                start=self.random.choice(("tail", "earliest")),
                **options,
            ),
        )

    async def unroute(self) -> None:
        if self.truth.paths:
            await self.life.engine.routers.delete(self.random.choice(list(self.truth.paths)))

    async def drop(self) -> None:
        await self.life.engine.topic_lifecycle.delete(self.name(), if_empty=self.random.random() < 0.2)

    async def read(self) -> None:
        if (name := self.name()) in self.life.engine.registry.topics:
            topic = self.life.engine.registry.topics[name]
            request = ReadRequest(from_seq=self.random.randint(0, topic.log.head_seq))
            await self.life.engine.reads.read(name, request, Performance())

    async def come_to_rest(self) -> None:
        """Nothing is full any more, and everybody gets what is there."""
        engine = self.life.engine
        for name in list(engine.registry.topics):
            await engine.topic_lifecycle.put(
                name, TopicConfigPatch(cap_records=0, cap_bytes=0, ttl_ms=0, discard="old")
            )
        for _ in range(30):
            await trio.sleep(2)
            if all(self._is_through(path) for path in self.truth.paths.values()):
                break
        await engine.routers.catch_up(list(engine.registry.topics))

    def _is_through(self, path: Way) -> bool:
        return path.cursor == self.truth.instances[path.source].head


def walk(seed: int, lives: int, steps: int, about: About) -> None:
    truth = Truth()
    events: list[dict[str, Any]] = []
    with walks.slow_disks({Pool.HOT_READ: 0.3, Pool.COLD_READ: 0.3}, 0.0005, 0.002, 0.03), truth.listening():
        world = World(seed, config=CONFIG)
        for life in range(lives):
            truth.stopped, truth.paths = truth.paths, {}
            kill = about == "kills" and life % 2 == 0
            assert world.live(Walk(truth, seed * 100 + life, steps, about), end="kill" if kill else "stop")
            assert not truth.stopped, "routers that have not come back"
            events += world.events
            world.events.clear()
            if kill:
                world = world.after("kill")
    said = [event for event in events if event["event"] in SAID_OF_DAMAGE]
    assert not said, said


@pytest.mark.parametrize("about", ["losses", "cycles", "kills"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_short_walk(seed: int, about: About) -> None:
    walk(seed, 3, 50, about)


@pytest.mark.slow
@pytest.mark.parametrize("about", ["losses", "cycles", "kills"])
@pytest.mark.parametrize("seed", [100])
def test_a_long_walk(seed: int, about: About) -> None:
    walk(seed, 4, 200, about)
