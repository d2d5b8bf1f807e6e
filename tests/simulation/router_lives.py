"""Lives in which routers copy from topics of every class into topics of every class, and the judgement of their wrecks.

A `Client` writes down what it asked for, what was answered and what it read; an `Oracle` takes the first part of that
and says what a recovery may show of it. A record is known by its number, wherever it is copied to; so what a dest holds
is judged by what its sources hold.

Each wreck is recovered three times. The first time nobody forwards, so that what the crash has left can be judged by
itself. The second time it has to be the same; then forwarders run until they are idle, and nothing may be missing
downstream; then everything is stored, and when the routers are gone nothing of them is left. The third time what was
stored is there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import trio

from tests.simulation import lives
from tests.simulation.lives import end_steps
from tests.simulation.model import Fate, View, canonical, numbered, view_of
from tests.simulation.segment_lives import UNEXPECTED, check_files, check_logs
from tests.simulation.wal_content import scan_of, seeds_of
from tests.simulation.world import COLD, End, Life, World, settings
from topics.config import Settings
from topics.errors import ApiError
from topics.log.tag_match import TagMatch, parse_match
from topics.model import AppendRequest, Performance, RouterPatch, RouterState, TopicConfigPatch
from topics.storage.wal.frames import Frame, FrameType, open_append

SMALL: Final = settings(
    wal_shards=2,
    wal_file_bytes=6 << 10,
    segment_max_events=8,
    segment_max_bytes=2048,
    segment_max_age_ms=0,
    rewrite_live_ratio=0.8,
    hot_retain_segments=1,
    cold_dir=Path(COLD),
)
NEVER: Final = UNEXPECTED - {"records_damaged"} | {"forwarder_failed"}
"""What the daemon says only when something is wrong with it. Of records that are damaged recovery speaks also where it
replays what happened to a topic before its deletion, and its files are gone; others would be `corrupt` to readers."""

MOST_HOPS: Final = 15
IDLE_LOOKS: Final = 60

Kind = Literal["topic", "delete_topic", "append", "delete", "router", "delete_router"]


# ----------------------------------------------------------------- what clients write down


@dataclass(slots=True)
class Asked(lives.Asked):
    """A request and its answer, which is only noted where it is a success."""

    state: RouterState | None = None
    gone: list[str] = field(default_factory=list)
    """Routers that went with a topic."""


@dataclass(slots=True)
class Saw:
    """A full read, and how far the topic was said to be synced before it."""

    at: int
    view: View
    synced: int


@dataclass(slots=True)
class Began:
    """A life has begun after another one, with these views."""

    at: int
    fate: Fate
    views: dict[str, View]


History = lives.History[Asked, Saw, Began]


class Client:
    """Makes requests and writes them down. A refusal leaves a request that may have had any effect."""

    def __init__(self, life: Life, history: History) -> None:
        self.life = life
        self.engine = life.engine
        self.history = history

    def _ask(self, kind: Kind, name: str, **fields: Any) -> Asked:
        asked = Asked(kind, name, self.history.tick(), **fields)
        self.history.asked.append(asked)
        return asked

    async def topic(self, name: str, **config: Any) -> None:
        """Create or configure a topic."""
        asked = self._ask("topic", name, patch=config)
        with suppress(ApiError):
            asked.config, _ = await self.engine.topic_lifecycle.put(name, TopicConfigPatch(**config))
            asked.epoch = self.engine.registry.topics[name].id
            asked.answered = self.history.tick()

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, and the routers that touch it."""
        asked = self._ask("delete_topic", name)
        with suppress(ApiError):
            _, asked.gone = await self.engine.topic_lifecycle.delete(name, if_empty=False)
            asked.answered = self.history.tick()

    async def append(
        self,
        name: str,
        count: int = 1,
        *,
        size: int = 30,
        tag: str | None = None,
        node: str | None = None,
        meta: dict[str, str] | None = None,
    ) -> None:
        """Append records that nobody else has appended."""
        numbers = tuple(self.history.number() for _ in range(count))
        records = numbered(numbers, size, tag=tag, node=node, meta=meta)
        asked = self._ask("append", name, records=records, numbers=numbers)
        with suppress(ApiError):
            request = AppendRequest(records=list(records), create=False)
            asked.first = (await self.engine.appends.append(name, request, Performance())).first_seq
            asked.answered = self.history.tick()

    async def delete(self, name: str, *, before: int | None = None, match: TagMatch | None = None) -> None:
        """Delete records."""
        asked = self._ask("delete", name, before=before, match=match)
        with suppress(ApiError):
            await self.engine.deletions.delete_records(name, before, match, Performance())
            asked.answered = self.history.tick()

    async def router(self, name: str, source: str, dest: str, **fields: Any) -> None:
        """Create or update a router."""
        asked = self._ask("router", name, patch={"source": source, "dest": dest, **fields})
        with suppress(ApiError):
            asked.state, _ = await self.engine.routers.put(name, RouterPatch(source=source, dest=dest, **fields))
            asked.answered = self.history.tick()

    async def delete_router(self, name: str) -> None:
        """Delete a router."""
        asked = self._ask("delete_router", name)
        with suppress(ApiError):
            await self.engine.routers.delete(name)
            asked.answered = self.history.tick()

    async def look(self, *names: str) -> None:
        """Read all of these topics, or of all there are."""
        for name in names or tuple(self.engine.registry.topics):
            with suppress(ApiError):
                synced = (await self.engine.topic_states.of(name, touch=False)).synced_seq
                view = await view_of(self.engine, name)
                if view.epoch == self.engine.registry.topics[name].id:
                    self.history.saw.append(Saw(self.history.tick(), view, synced))


Script = Callable[[Life, Client], Awaitable[None]]


# ----------------------------------------------------------------- what there is


@dataclass(frozen=True, slots=True)
class Shown:
    """Everything that can be found out about a daemon."""

    views: dict[str, View]
    routers: dict[str, RouterState]


async def shown_by(life: Life) -> Shown:
    """Every topic and every router, with the invariants of the index checked before and after."""
    check_logs(life)
    page, more = await life.engine.topic_states.page("", None, 1000)
    assert not more
    views = {one.topic: await view_of(life.engine, one.topic) for one in page}
    routers, more = life.engine.routers.page("", None, None, None, 1000)
    assert not more
    check_logs(life)
    return Shown(views, {state.router: state for state in routers})


@contextmanager
def nobody_forwards(life: Life) -> Iterator[None]:
    """Forwarders take no steps, and reads do not wait for them."""
    forwarding: Any = life.engine.forwarders

    async def no_catching_up(_upstream: Any) -> None:
        return

    def no_step(_forwarder: Any) -> int:
        return 1

    forwarding._serve, forwarding.catch_up = no_step, no_catching_up
    try:
        yield
    finally:
        del forwarding._serve, forwarding.catch_up
        for name in forwarding.forwarders:
            forwarding.reconsider(name)


async def until_idle(life: Life) -> None:
    """Let forwarders run until none has anything to do, or none gets on any more."""
    before: list[Any] = []
    for _ in range(IDLE_LOOKS):
        routers, _ = life.engine.routers.page("", None, None, None, 1000)
        if all(router.lag == 0 for router in routers):
            return
        now = [(router.router, router.cursor_seq) for router in routers]
        before.append(now)
        if len(before) > 12 and before[-12] == now:
            return
        await trio.sleep(0.3)
    raise AssertionError(f"forwarders do not come to an end: {before[-3:]}")


def is_stuck(state: RouterState, shown: Shown) -> bool:
    """Whether a router has not come to the end of its source, which is legal only where the dest refuses."""
    config = shown.views[state.dest].config
    rejects = config.discard == "reject" and bool(config.cap_records or config.cap_bytes)
    return state.lag > 0 and not rejects


def check_said(world: World) -> None:
    """Fail if the daemon has complained of what no crash explains."""
    for event in world.events:
        assert event["event"] not in NEVER, f"the daemon says {event}"
        assert event["event"] != "copy_without_bytes" or event["reason"] == "lost", f"the daemon says {event}"


def appends_in_wal(life: Life) -> Iterator[tuple[int, int]]:
    """Topic id and number of each record with a frame of its own in the log."""
    for shard in range(life.store.shards):
        for file in life.store.files.of_shard(shard):
            window = life.fs.read(file.path)
            for row in scan_of(window).rows:
                frame = Frame._make(row)
                if frame.type == FrameType.APPEND:
                    opened = open_append(window, frame.offset, frame.end - frame.offset, seeds_of(window))
                    assert opened is not None
                    yield frame.topic_id, msgspec.json.decode(opened.data)["n"]


# ----------------------------------------------------------------- what must be there


class Instance(lives.Instance[Asked]):
    """The same, with the appends to it."""

    def __init__(self, name: str, created: Asked) -> None:
        super().__init__(name, created)
        self.appends: list[Asked] = []

    def configured(self, asked: Asked) -> bool:
        barrier = super().configured(asked)
        if barrier:
            self.hard.update(self.seen)
        return barrier


class Oracle(lives.Oracle[Asked, Saw, Began, Instance]):
    """What may have become of records and routers."""

    def __init__(self, history: History, known: int) -> None:
        self.routers: dict[str, list[Asked]] = {}
        super().__init__(history, known)

    # -- folding ------------------------------------------------------------------------------------------------------

    def _sent(self, asked: Asked) -> None:
        if asked.kind == "topic":
            instances = self.instances.setdefault(asked.name, [])
            if not instances or instances[-1].deleted:
                instances.append(Instance(asked.name, asked))
            instances[-1].reconfigure(asked.patch)
        elif asked.kind == "delete_topic":
            self.instance(asked.name).deletion = asked
        elif asked.kind == "append":
            self.instance(asked.name).appends.append(asked)
            for i, number in enumerate(asked.numbers):
                self.of_number[number] = asked, i
        elif asked.kind == "delete":
            self.instance(asked.name).deletes.append(asked)
        else:
            self.routers.setdefault(asked.name, []).append(asked)

    def _answered(self, asked: Asked) -> None:
        if asked.kind == "topic":
            self.instance(asked.name).configured(asked)
        elif asked.kind == "delete_topic":
            self.instance(asked.name).deleted = True
        elif asked.kind == "append":
            self.instance(asked.name).appended(asked)
        elif asked.kind == "delete":
            instance = self.instance(asked.name)
            if instance.classes == {"fsync"}:
                instance.gone.update(self._taken(instance, asked))

    def _taken(self, instance: Instance, asked: Asked) -> Iterable[int]:
        """What a deletion has taken for certain: what was known before it was asked for."""
        for append in instance.appends:
            if append.answered is None or append.answered >= asked.at:
                continue
            for i, record in enumerate(append.records):
                if asked.selects(append.first + i, record.tag):
                    yield append.first + i

    def _saw(self, saw: Saw) -> None:
        instance = self.instance(saw.view.name)
        if instance.epoch != saw.view.epoch:
            return
        instance.note(saw.view)
        if not instance.volatile:
            instance.hard.update(seq for seq in saw.view.records if seq <= saw.synced)
            if instance.classes == {"fsync"}:
                instance.hard.update(saw.view.records)

    def _began(self, began: Began) -> None:
        for name, instances in self.instances.items():
            instance, view = instances[-1], began.views.get(name)
            if view is None:
                instance.deleted = True
            else:
                instance.restarted(view)

    # -- judging ------------------------------------------------------------------------------------------------------

    def judge(self, shown: Shown, fate: Fate) -> None:
        """What a recovery shows, before anybody forwards."""
        self.judge_topics(shown, fate)
        self.judge_routers(shown)

    def judge_topics(self, shown: Shown, fate: Fate) -> None:
        for name in shown.views:
            assert name in self.instances, f"{name} was never created"
        for name, instances in self.instances.items():
            instance, view = instances[-1], shown.views.get(name)
            if self.judge_existence(instance, view):
                assert view is not None
                Case(self, instance, view, fate).check()

    def deleted_since(self, asked: Asked, *topics: str) -> Literal["no", "maybe", "yes"]:
        """Whether a router was deleted after it was asked for, by itself or with a topic."""
        deletions = [other for other in self.routers[asked.name] if other.kind == "delete_router"]
        for topic in topics:
            deletions += [one.deletion for one in self.instances.get(topic, ()) if one.deletion is not None]
        since = [
            other for other in deletions if other.at > asked.at or other.answered is None or other.answered > asked.at
        ]
        if any(self.is_answered(other) and other.at > (asked.answered or asked.at) for other in since):
            return "yes"
        return "maybe" if since else "no"

    def judge_routers(self, shown: Shown) -> None:
        """Routers are as they were last said to be; no cursor stands above a head."""
        for name, state in shown.routers.items():
            asked = self.routers.get(name, [])
            assert any(self._fits(one, state) for one in asked), f"nobody has asked for {state}"
            assert state.cursor_seq <= shown.views[state.source].head, f"{state} stands above its source's head"
        for name, asked in self.routers.items():
            puts = [one for one in asked if one.kind == "router"]
            if not puts:
                continue
            last = puts[-1]
            topics = last.patch["source"], last.patch["dest"]
            fate = self.deleted_since(last, *topics)
            if fate == "no" and self.is_answered(last):
                assert name in shown.routers, f"router {name} was created and is not there"
                assert last.state is not None
                found, expected = shown.routers[name], last.state
                assert configured(found) == configured(expected), f"router {name} is {found}, it was {expected}"
            elif fate == "yes":
                assert name not in shown.routers, f"router {name} was deleted and is there: {shown.routers[name]}"

    @staticmethod
    def _fits(asked: Asked, state: RouterState) -> bool:
        patch = asked.patch
        return asked.kind == "router" and (patch["source"], patch["dest"]) == (state.source, state.dest)

    # -- what copies may look like ------------------------------------------------------------------------------------

    def edges(self) -> Iterator[tuple[str, Asked]]:
        """Every router that may ever have been, by name."""
        for name, asked in self.routers.items():
            for one in asked:
                if one.kind == "router":
                    yield name, one

    def routers_into(self, dest: str) -> list[Asked]:
        """Every request for a router into a topic."""
        return [asked for _, asked in self.edges() if asked.patch["dest"] == dest]

    def looks(self, number: int, topic: str) -> set[str]:
        """Every form that a record may have in a topic, as canonical text; without the seq of its origin, which a
        stamp has, if that was never answered."""
        asked, i = self.of_number[number]
        given = asked.records[i]
        found: set[tuple[str, str | None, str | None, str | None]] = set()
        wave: set[tuple[str, str | None, str | None, str | None]] = {(asked.name, given.tag, given.node, None)}
        for _ in range(MOST_HOPS + 1):
            found |= wave
            following: set[tuple[str, str | None, str | None, str | None]] = set()
            for at, tag, node, stamp in wave:
                for name, router in self.edges():
                    patch = router.patch
                    if patch["source"] != at or not any(passes(one, tag) for one in self._ever(name, "filter", None)):
                        continue
                    tags = {tag if kept else None for kept in self._ever(name, "preserve_tag", True)}
                    nodes = {node if kept else None for kept in self._ever(name, "preserve_node", True)}
                    guarantees = self._ever(name, "guarantee", "at_least_once")
                    stamps = {name if one == "exactly_once" else stamp for one in guarantees}
                    following.update((patch["dest"], *look) for look in product(tags, nodes, stamps))
            wave = following - found
            if not wave:
                break
        origins = [instance for instance in self.instances[asked.name] if asked in instance.appends]
        out = set()
        for at, tag, node, stamp in found:
            if at != topic:
                continue
            meta = dict(given.meta or {})
            if stamp is not None:
                seq = asked.first + i if asked.first else "?"
                meta["_topics_router"] = f"{origins[0].epoch or '?'}:{seq}:{stamp}"
            row: dict[str, Any] = {"data": msgspec.json.decode(given.data)}
            if tag:
                row["$tag"] = tag
            if node:
                row["$node"] = node
            if meta:
                row["meta"] = meta
            out.add(canonical(row))
        return out

    def _ever(self, name: str, option: str, default: Any) -> list[Any]:
        """Every value that an option of a router may ever have had: an update that does not name it keeps it."""
        return [asked.patch.get(option, default) for other, asked in self.edges() if other == name]

    # -- what must have arrived ---------------------------------------------------------------------------------------

    def judge_arrivals(self, shown: Shown) -> None:
        """Forwarders are idle: what passed a filter has arrived, unless its dest has got rid of it since."""
        for state in shown.routers.values():
            assert not is_stuck(state, shown), f"{state} does not get on"
            puts = [
                asked
                for asked in self.routers.get(state.router, ())
                if asked.kind == "router" and self._fits(asked, state)
            ]
            begun = next((one for one in puts if one.state is not None), None)
            if state.lag or begun is None or begun.state is None:
                continue
            deletions = [one for one in self.routers[state.router] if one.kind == "delete_router"]
            if deletions or any(
                instance.deletion is not None
                for name in (state.source, state.dest)
                for instance in self.instances.get(name, ())
            ):
                start = state.cursor_seq  # which of them it is, is not worked out here
            else:
                start = 0 if state.start == "earliest" else begun.state.cursor_seq
            filters = [one.patch.get("filter") for one in puts]
            self._judge_arrivals(state, start, filters, shown)

    def _judge_arrivals(self, state: RouterState, start: int, filters: list[Any], shown: Shown) -> None:
        source, dest = shown.views[state.source], shown.views[state.dest]
        there = {record.data for record in dest.records.values()}
        for seq, record in source.records.items():
            row = msgspec.json.decode(record.body)
            tag = row.get("$tag")
            if seq <= start or record.data in there or record.data not in self.of_number:
                continue
            if not all(passes(wanted, tag) for wanted in filters):
                continue
            if self.of_number[record.data][0].name == state.dest:
                continue
            assert self._may_be_gone(record.data, state, tag, dest), (
                f"{state.source} has {record.data} as seq {seq}, the cursor of {state.router} is {state.cursor_seq}, "
                f"and {state.dest} has it not: {sorted(there)}, gaps {dest.gaps}"
            )

    def _may_be_gone(self, number: int, state: RouterState, tag: str | None, dest: View) -> bool:
        instance = self.instance(state.dest)
        if "ephemeral" in instance.classes:
            return True
        if not state.preserve_tag:
            tag = None
        places = [seq for seq, record in instance.seen.items() if record.data == number]
        for asked in instance.deletes:
            for seq in places or [0]:
                if asked.selects(seq, tag):
                    return True
        retained = instance.retained
        return retained and any(reason in ("cap", "ttl", "mixed", "source_trim") for _, _, reason in dest.gaps)


class Case(lives.Case[Asked, Instance]):
    """One topic after one recovery, or after that and some forwarding."""

    def __init__(self, oracle: Oracle, instance: Instance, view: View, fate: Fate) -> None:
        super().__init__(oracle.of_number, instance, view, fate)
        self.oracle = oracle
        self.into = oracle.routers_into(view.name)

    def says(self, problem: str, seq: int = 0) -> str:
        seen = {seq: record.data for seq, record in self.instance.seen.items()}
        return self.describe(problem, [f"seen {seen}"])

    def check(self) -> None:
        """All of it."""
        view, instance = self.view, self.instance
        assert view.config in instance.options, self.says(f"its config {view.config} was never asked for")
        self.check_figures()
        self.check_content()
        self.check_order()
        self.check_promises()
        self.check_gaps()

    def check_content(self) -> None:
        """Nothing is made up, changed, moved or brought back."""
        last_ts = 0
        for seq, record in self.view.records.items():
            asked, i = self.oracle.of_number[record.data]
            looks = self.oracle.looks(record.data, self.view.name)
            unknown = any('"?' in look or ":?:" in look for look in looks)
            assert record.body in looks or unknown, self.says(f"seq {seq} is {record.body}, none of {sorted(looks)}")
            if asked.name == self.view.name and asked in self.instance.appends and asked.first:
                assert asked.first + i == seq, self.says(f"{record.data} was acked as {asked.first + i}, it is {seq}")
            expected = self.instance.seen.get(seq)
            assert expected in (None, record), self.says(f"seq {seq} is {record}, a reader saw {expected}")
            assert seq not in self.instance.gone, self.says(f"seq {seq} was gone and is back")
            assert record.ts >= last_ts, self.says(f"time goes back at seq {seq}")
            last_ts = record.ts

    def check_order(self) -> None:
        """One router brings each record once, in the order of its source; `exactly_once` does so over all paths."""
        names = {asked.name for asked in self.into}
        direct = [r.data for r in self.view.records.values() if self.oracle.of_number[r.data][0].name == self.view.name]
        assert len(direct) == len(set(direct)), self.says("a record is there twice, or came back to where it was from")
        copies = [record.data for record in self.view.records.values() if record.data not in set(direct)]
        strict = all(asked.patch.get("guarantee") == "exactly_once" for asked in self.into)
        if strict:
            assert len(copies) == len(set(copies)), self.says("a record was taken twice")
        again = [asked for asked in self.oracle.routers if asked in names]
        recreated = any(
            other.kind == "delete_router" or other.at > self.oracle.routers[name][0].at
            for name in again
            for other in self.oracle.routers[name]
        )
        if len(names) == 1 and not recreated and not self._source_was_deleted():
            source = self.into[0].patch["source"]
            ranks = [rank for rank in (self.rank(source, number) for number in copies) if rank]
            assert ranks == sorted(set(ranks)), self.says(f"copies are not in the order of {source}: {ranks}")

    def _source_was_deleted(self) -> bool:
        source = self.into[0].patch["source"]
        return any(instance.deletion is not None for instance in self.oracle.instances.get(source, ()))

    def rank(self, source: str, number: int) -> int:
        """The seq of a record in a source; 0 if nobody knows."""
        asked, i = self.oracle.of_number[number]
        if asked.name == source:
            return asked.first + i if asked.first else 0
        seen = self.oracle.instance(source).seen
        return next((seq for seq, record in seen.items() if record.data == number), 0)

    def tag_of(self, seq: int) -> str | None:
        """The tag that a record was seen with."""
        record = self.instance.seen.get(seq)
        if record is not None:
            tag: str | None = msgspec.json.decode(record.body).get("$tag")
            return tag
        for asked in self.instance.appends:
            if asked.first and asked.first <= seq < asked.first + len(asked.numbers):
                return asked.records[seq - asked.first].tag
        return None

    def maybe_deleted(self, seq: int) -> bool:
        """Whether somebody may have deleted it."""
        known = seq in self.instance.seen or any(
            asked.first and asked.first <= seq < asked.first + len(asked.numbers) for asked in self.instance.appends
        )
        tag = self.tag_of(seq)
        for asked in self.instance.deletes:
            if known and asked.selects(seq, tag):
                return True
            if not known and (asked.before is None or seq < asked.before):
                return True
        return False

    def check_promises(self) -> None:
        """What was promised is there."""
        view, instance = self.view, self.instance
        if instance.now_classes == {"ephemeral"}:
            assert not view.records, self.says("records of an ephemeral topic are there again")
        retained = instance.retained
        acked = {
            asked.first + i
            for asked in instance.appends
            if asked.answered is not None and asked.answered < self.oracle.known
            for i in range(len(asked.numbers))
        }
        for seq in sorted(acked | instance.seen.keys()):
            if seq in view.records or self.maybe_deleted(seq):
                continue
            on_kill = self.fate == "kill" and instance.classes <= {"disk", "fsync"}
            if not self.required(seq, known=seq in instance.seen) and not (seq in acked and on_kill):
                continue
            reason = view.gap_of(seq)
            legal = retained and reason in ("cap", "ttl", "mixed")
            legal = legal or (seq in instance.gone and reason is not None)
            assert legal, self.says(f"seq {seq} was promised and is {reason}")

    def check_gaps(self) -> None:
        """Every loss is announced, and nothing else is."""
        view, instance = self.view, self.instance
        retained = instance.retained
        stable = instance.classes == {"fsync"} or (self.fate != "machine" and instance.classes <= {"disk", "fsync"})
        for seq in range(1, view.head + 1):
            reason = view.gap_of(seq)
            assert reason is None or seq not in view.records, self.says(f"seq {seq} is there and {reason}")
            if seq in view.records or seq in instance.gone:
                continue
            if reason is None:
                assert self.maybe_deleted(seq), self.says(f"seq {seq} is gone silently, and nobody has deleted it")
            elif reason == "source_trim":
                assert self.into, self.says(f"seq {seq} is a source_trim in a topic without a source")
            elif reason == "lost":
                # The gap before the front goes up to the first live record, deletions included.
                passed = seq < view.earliest and self.maybe_deleted(seq) and bool(instance.gone)
                assert passed or not stable, self.says(f"seq {seq} is lost")
            elif reason == "mixed":
                assert retained or not stable, self.says(f"seq {seq} is mixed")
            else:
                assert reason in ("cap", "ttl"), self.says(f"seq {seq} is {reason}")
                assert retained, self.says(f"seq {seq} is {reason} on a topic without retention")


def passes(wanted: Any, tag: str | None) -> bool:
    """Whether a filter lets a record with this tag through."""
    return wanted is None or parse_match(wanted, "filter").matches(tag)


def configured(state: RouterState) -> RouterState:
    """A router without what changes by itself."""
    return msgspec.structs.replace(state, forwarded_total=0, cursor_seq=0, lag=0)


# ----------------------------------------------------------------- the sweep


def see(world: World) -> Shown:
    """What a recovery shows before anybody forwards; then the process is killed."""
    found: list[Shown] = []

    async def look(life: Life) -> None:
        with nobody_forwards(life):
            found.append(await shown_by(life))
            end_steps(life)

    assert world.live(look, end="kill")
    check_said(world)
    assert world.fs.open_files == 0
    return found[0]


class RouterSweep(lives.Sweep[History, Client, Oracle]):
    """See `lives.Sweep`: copies are what they have to be, and what is missing comes."""

    def __init__(self, config: Settings = SMALL, seed: int = 0) -> None:
        super().__init__(config, seed, lives.History())

    def client(self, life: Life) -> Client:
        return Client(life, self.history)

    def make_oracle(self, known: int) -> Oracle:
        return Oracle(self.history, known)

    async def begin(self, life: Life, fate: Fate) -> None:
        with nobody_forwards(life):
            shown = await shown_by(life)
        self.history.began.append(Began(self.history.tick(), fate, shown.views))

    def check_said(self, world: World) -> None:
        check_said(world)

    def recover(self, world: World) -> Shown:
        return see(world)

    def judge_world(self, world: World, oracle: Oracle, fate: Fate, second: End) -> None:
        """The same for a machine as its next start finds it."""
        shown = see(world)
        oracle.judge(shown, fate)
        again = world.after(second)
        stored: list[Shown] = []

        async def go_on(life: Life) -> None:
            with nobody_forwards(life):
                seen = await shown_by(life)
                assert_same(shown, seen, "the second recovery shows something else")
            await go_forward(life, oracle, shown, fate)
            stored.append(await store_and_clear(life, oracle))
            end_steps(life)

        assert again.live(go_on, end="kill")
        check_said(again)
        last = see(again.after("drop"))
        for name, view in stored[0].views.items():
            if view.config.durability != "ephemeral" and not view.config.ttl_ms:
                assert last.views[name].records == view.records, f"{name}: what was stored is gone after a crash"
                for first, to, _ in view.gaps:
                    told = all(last.views[name].gap_of(seq) for seq in range(first, to + 1))
                    assert told, f"{name}: gaps were {view.gaps} and are {last.views[name].gaps}"
        self.judged += 1


def assert_same(before: Shown, after: Shown, problem: str) -> None:
    """Topic by topic and router by router."""
    for name in before.views.keys() | after.views.keys():
        one, other = before.views.get(name), after.views.get(name)
        if one is not None and one.config.ttl_ms:
            continue
        assert one == other, f"{name}: {problem}\n  {one}\n  {other}"
    assert before.routers == after.routers, f"{problem}\n  {before.routers}\n  {after.routers}"


async def go_forward(life: Life, oracle: Oracle, before: Shown, fate: Fate) -> None:
    """Let forwarders run until they are idle: what was there stays, what is missing arrives. Then something new."""
    await until_idle(life)
    shown = await shown_by(life)
    for name, view in shown.views.items():
        was = before.views[name]
        ephemeral = view.config.durability == "ephemeral"
        assert view.head >= was.head
        for seq, record in view.records.items():
            assert seq > was.head or was.records.get(seq) == record, f"{name}: seq {seq} is {record} all of a sudden"
        if not ephemeral and not any((view.config.ttl_ms, view.config.cap_records, view.config.cap_bytes)):
            assert was.records.items() <= view.records.items(), f"{name}: forwarding has taken records"
            for first, last, _ in was.gaps:
                told = all(view.gap_of(seq) for seq in range(first, last + 1))
                assert told, f"{name}: gaps were {was.gaps} and are {view.gaps}"
    oracle.judge_arrivals(shown)
    for case in (Case(oracle, oracle.instance(name), view, fate) for name, view in shown.views.items()):
        case.check_figures()
        case.check_order()
    for state in shown.routers.values():
        assert state.cursor_seq <= shown.views[state.source].head


async def store_and_clear(life: Life, oracle: Oracle) -> Shown:
    """Store everything, delete the routers: no record changes, and nothing of them is left."""
    before = await shown_by(life)
    await life.compactor.checkpoint()
    check_wal(life, oracle, before)
    assert_same(before, await shown_by(life), "a checkpoint has changed something")
    for name in before.routers:
        assert await life.engine.routers.delete(name)
    assert not life.engine.forwarders.forwarders
    assert all(topic.fanout is None and topic.incoming is None for topic in life.engine.registry.by_id.values())
    for _ in range(3):
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
    common = life.engine.registry.common
    assert not common.copying, f"{[topic.name for topic in common.copying]} still need the bytes of others"
    for shard in range(life.store.shards):
        left = [file.path for file in life.store.files.of_shard(shard)]
        assert len(left) <= 2, f"files of the log are left: {left}"
    shown = await shown_by(life)
    assert_same(Shown(before.views, {}), shown, "maintenance has changed something")
    check_files(life)
    return shown


def check_wal(life: Life, oracle: Oracle, shown: Shown) -> None:
    """Copies have no Append frames, unless one of the two is ephemeral or the source is in a cold store."""
    if any(path.startswith(f"{COLD}/topics/") for path in life.fs.tree()):
        return
    names = {view.epoch: name for name, view in shown.views.items()}
    for topic_id, number in appends_in_wal(life):
        name = names.get(topic_id)
        if name is None or oracle.of_number[number][0].name == name:
            continue
        near = [name, *(asked.patch["source"] for asked in oracle.routers_into(name))]
        ever = (instance for other in near for instance in oracle.instances.get(other, ()))
        volatile = any("ephemeral" in instance.classes for instance in ever)
        assert volatile, f"{name}: the copy of {number} has an Append frame"
