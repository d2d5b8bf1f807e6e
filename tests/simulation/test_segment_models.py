"""Random lives of segments against a naive model (`segment_model`): small segments, next to no cache, a cold tier.

A seed decides everything, Trio's scheduling and the turns that a thread call takes included. To look for more than the
few seeds of every day: `SEGMENT_SEEDS=1000:1400 pytest tests/simulation/test_segment_models.py -k random`.
"""

from __future__ import annotations

import errno
import json
import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import trio

from tests.simulation import world as world_module
from tests.simulation.disk import Fault
from tests.simulation.offload import InlineOffload
from tests.simulation.segment_model import Row, TopicModel, compare, slots_of
from tests.simulation.world import COLD, ROOT, Life, World, settings
from topics.config import Settings
from topics.errors import ApiError
from topics.filters.record_filter import parse_filter
from topics.log.tag_match import TagMatch
from topics.model import AppendRequest, Performance, ReadRequest, RecordIn, TopicConfigPatch
from topics.storage.cache import index_cache
from topics.storage.files.datadir import segment_name
from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.segments import tag_directory
from topics.storage.segments.segment_format import MIN_FRAME_BYTES

TAGS = ["a", "ab", "abc", "b", "b*", "c:1", "c:2", "é"]
NODES = ["n1", "n2", "n3"]
TTL_MS = 20_000


@pytest.fixture(autouse=True)
def _tiny_index_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for the columns of two segments or so; tags are read by parts."""
    monkeypatch.setattr(index_cache, "LEAST_BYTES", 600)
    monkeypatch.setattr(tag_directory, "PART_NAMES", 2)


def tiny(rng: random.Random, **changes: Any) -> Settings:
    """Small segments, small WAL files, no cache to speak of."""
    choices: dict[str, Any] = {
        "wal_shards": rng.choice([1, 1, 2]),
        "wal_file_bytes": 16 << 10,
        "cache_bytes": rng.choice([0, 600, 4000]),
        "segment_max_events": rng.randint(8, 16),
        "segment_max_bytes": rng.choice([1024, 2048, 64 << 20]),
        "segment_max_age_ms": rng.choice([0, 15_000, 3_600_000]),
        "hot_retain_segments": rng.choice([0, 1, 3]),
        "cold_dir": Path(COLD),
        "min_free_bytes": 0,
        "segment_compression": rng.choice(["off", "zstd"]),
    }
    return settings(**{**choices, **changes})


class Player:
    """Random requests to an engine, each told to the models too."""

    def __init__(
        self, rng: random.Random, *, classes: tuple[str, ...] = ("fsync", "disk", "memory", "ephemeral")
    ) -> None:
        self.rng = rng
        self.classes = classes
        self.models: dict[str, TopicModel] = {}
        self.epochs: set[int] = set()
        self.number = 0
        self.log: list[str] = []

    def note(self, text: str) -> None:
        self.log.append(text)

    def parts(self, most: int) -> list[dict[str, Any]]:
        """Records of all kinds; their JSON is odd, so that only a verbatim copy is equal."""
        rng, parts = self.rng, []
        plain = rng.random() < 0.3
        for _ in range(rng.randint(1, most)):
            self.number += 1
            filler = rng.choice(["", "x" * rng.randrange(120), "\\u00e9 ", "é{}[],"])
            part: dict[str, Any] = {"data": f'{{"n": {self.number} ,"f":"{filler}"}}'.encode()}
            if not plain:
                if rng.random() < 0.7:
                    part["tag"] = rng.choice(TAGS)
                if rng.random() < 0.4:
                    part["node"] = rng.choice(NODES)
                if rng.random() < 0.3:
                    part["meta"] = {"k": "v" * rng.randrange(30)}
            parts.append(part)
        return parts

    def patch(self) -> dict[str, Any]:
        rng = self.rng
        changes: dict[str, Any] = {}
        if rng.random() < 0.4:
            changes["durability"] = rng.choice(self.classes)
        if rng.random() < 0.4:
            changes["cap_records"] = rng.choice([0, 5, 20, 40])
        if rng.random() < 0.3:
            changes["cap_bytes"] = rng.choice([0, 300, 2000])
        if rng.random() < 0.3:
            changes["ttl_ms"] = rng.choice([0, TTL_MS, 3 * TTL_MS])
        if rng.random() < 0.3:
            changes["discard"] = rng.choice(["old", "old", "reject"])
        if rng.random() < 0.1:
            changes["dedupe_node"] = rng.choice([True, False])
        return changes

    async def create(self, life: Life, name: str) -> None:
        patch: dict[str, Any] = {"durability": self.rng.choice(self.classes), "idempotency_window_ms": 604_800_000}
        if self.rng.random() < 0.4:
            patch |= self.patch()
        self.note(f"create {name} {patch}")
        config, created = await life.engine.topic_lifecycle.put(name, TopicConfigPatch(**patch))
        assert created
        epoch = life.engine.registry.topic(name).id
        assert epoch not in self.epochs, "an epoch was used again"
        self.epochs.add(epoch)
        model = self.models[name] = TopicModel(name, epoch, config)
        model.blurred = config.durability == "ephemeral"

    async def configure(self, life: Life, name: str) -> None:
        model, patch = self.models[name], self.patch()
        self.note(f"configure {name} {patch}")
        model.expire(life.engine.registry.now_ms())
        config, created = await life.engine.topic_lifecycle.put(name, TopicConfigPatch(**patch))
        assert not created
        model.expire(life.engine.registry.now_ms())
        model.configure(config)
        model.expire(life.engine.registry.now_ms())

    async def append(self, life: Life, name: str, most: int = 12) -> None:
        model, rng = self.models[name], self.rng
        if model.keys and rng.random() < 0.05:
            known = rng.choice(list(model.keys))
            self.note(f"repeat {name} {known}")
            request = AppendRequest(records=[RecordIn(data=msgspec.Raw(b"0"))], idempotency_key=known)
            again = await life.engine.appends.append(name, request, Performance())
            assert (again.deduped, again.first_seq, again.count) == (True, *model.keys[known])
            return
        parts = self.parts(most)
        key = f"k{self.number}" if rng.random() < 0.2 else None
        records = [RecordIn(**{**part, "data": msgspec.Raw(part["data"])}) for part in parts]
        self.note(f"append {name} {len(parts)} {key or ''}")
        now = life.engine.registry.now_ms()
        model.expire(now)
        slots = slots_of(max(now, model.slots[-1].ts if model.slots else 0), parts)
        refusal = model.fits([slot.size for slot in slots])
        try:
            result = await life.engine.appends.append(
                name, AppendRequest(records=records, idempotency_key=key), Performance()
            )
        except ApiError as error:
            assert error.code == refusal, f"{error} instead of {refusal}"  # noqa: PT017
            return
        assert refusal is None, f"accepted instead of {refusal}"
        assert (result.first_seq, result.count, result.deduped) == (model.head + 1, len(parts), False)
        if key is not None:
            model.keys[key] = (result.first_seq, len(parts))
        model.append(slots)

    async def delete(self, life: Life, name: str) -> None:
        model, rng = self.models[name], self.rng
        match = None
        if rng.random() < 0.7:
            match = rng.choice(
                [TagMatch(rng.choice(TAGS), prefix=False), TagMatch(rng.choice(["a", "b", "c:", "zz"]), prefix=True)]
                + [TagMatch("", prefix=True)] * (rng.random() < 0.3)
            )
        before = None
        if match is None or rng.random() < 0.5:
            low = model.earliest if rng.random() < 0.8 else 0
            before = rng.randint(low, max(low, model.head + 2))
        self.note(f"delete {name} before {before} {match}")
        model.expire(life.engine.registry.now_ms())
        seqs = model.selected(before, match)
        result = await life.engine.deletions.delete_records(name, before, match, Performance())
        model.delete(seqs)
        shown = (result.deleted, result.earliest_seq, result.head_seq, result.count, result.bytes)
        assert shown == (len(seqs), model.earliest, model.head, model.count, model.bytes), f"{name}: {shown}"

    async def delete_topic(self, life: Life, name: str) -> None:
        self.note(f"delete topic {name}")
        assert (await life.engine.topic_lifecycle.delete(name, if_empty=False))[0]
        del self.models[name]

    async def look(self, life: Life, name: str) -> None:
        """Reads from every position, of all kinds."""
        model, rng = self.models[name], self.rng
        self.note(f"look {name}")
        positions = range(model.head + 2)
        for position in positions if len(positions) < 60 else sorted(rng.sample(positions, 30)):
            request = ReadRequest(
                from_seq=position,
                limit=rng.choice([1, 3, 7, 30, 1000]),
                nodes=frozenset(rng.sample(NODES, rng.randrange(3))),
                include_tags=rng.random() < 0.5,
                include_meta=rng.random() < 0.7,
                max_batch_bytes=8 << 20,
            )
            result = await life.engine.reads.read(name, request, Performance())
            model.expire(life.engine.registry.now_ms())
            model.check_read(request, result)

    async def maintenance(self, life: Life) -> None:
        what = self.rng.choice(["checkpoint", "checkpoint", "reclaim", "relocate"])
        self.note(what)
        if what == "checkpoint":
            await life.compactor.checkpoint()
        elif what == "reclaim":
            await life.reclaimer.pass_over()
        else:
            await life.relocator.pass_over()

    async def step(self, life: Life) -> None:
        rng = self.rng
        names = list(self.models)
        chance = rng.random()
        if not names or (len(names) < 3 and chance < 0.06):
            free = [name for name in ("t1", "t2", "t3") if name not in self.models]
            await self.create(life, rng.choice(free))
            return
        name = rng.choice(names)
        if chance < 0.40:
            await self.append(life, name)
        elif chance < 0.55:
            await self.delete(life, name)
        elif chance < 0.61:
            await self.configure(life, name)
        elif chance < 0.63:
            await self.delete_topic(life, name)
        elif chance < 0.66:
            await self.look(life, name)
        elif chance < 0.72:
            ms = rng.choice([100, 1000, 7000, 21_000])
            self.note(f"time {ms}")
            if ms <= 1000:
                await trio.sleep(ms / 1000)
            else:
                life.clock.advance(ms)
        else:
            await self.maintenance(life)

    async def compare(self, life: Life) -> None:
        assert set(life.engine.registry.topics) == set(self.models)
        for model in self.models.values():
            await compare(life.engine, model, limit=self.rng.choice([5, 100, 1000]))
        for topic in life.engine.registry.topics.values():
            topic.log.check()

    async def after_start(self, life: Life) -> None:
        assert set(life.engine.registry.topics) == set(self.models)
        for name, model in self.models.items():
            model.restart(life.engine.registry.topic(name).log.head_seq)
        await self.compare(life)


def data_files(world: World) -> dict[str, int]:
    """Every `.data` file in both tiers, and its length."""
    return {path: len(content or b"") for path, content in world.fs.tree().items() if path.endswith(".data")}


async def settle_maintenance(life: Life) -> None:
    """Checkpoints and passes of the reclaimer until it finds nothing to do any more."""
    idle = 0
    for _ in range(60):
        await life.compactor.checkpoint()
        idle = idle + 1 if await life.reclaimer.pass_over() == 0 else 0
        if idle == 3:
            return
    raise AssertionError("the reclaimer finds something to do without end")


def play(seed: int, *, lives: int = 3, steps: int = 25, classes: tuple[str, ...] | None = None) -> Player:
    rng = random.Random(seed)
    player = Player(rng, **({"classes": classes} if classes else {}))
    world = World(seed, config=tiny(rng))
    try:
        for number in range(lives):
            player.note(f"-- life {number} {world.settings.segment_max_events}")

            end: Any = rng.choice(["stop", "kill"])

            async def scenario(life: Life, end: str = end) -> None:
                await player.after_start(life)
                for _ in range(steps):
                    await player.step(life)
                    await player.compare(life)
                if end == "kill":
                    await trio.sleep(0.1)  # then what `memory` topics hold is written too

            assert world.live(scenario, end=end)
            if rng.random() < 0.3:
                world.settings = tiny(rng, wal_shards=rng.choice([1, 2, 3]))
            if end == "kill":
                world = world.after("kill")
            world.clock.advance(rng.choice([0, 0, 5000]))
    except BaseException as error:
        error.add_note("\n".join([f"seed {seed}", *player.log]))
        raise
    return player


def seeds(default: int) -> list[int]:
    if asked := os.environ.get("SEGMENT_SEEDS"):
        first, last = map(int, asked.split(":"))
        return list(range(first, last))
    return list(range(default))


@pytest.mark.parametrize(
    "seed", [*seeds(12)[:4], *(pytest.param(seed, marks=pytest.mark.slow) for seed in seeds(12)[4:])]
)
def test_random_lives_are_what_the_model_says(seed: int) -> None:
    play(seed)


# ----------------------------------------------------------------- what is on the disk when there is nothing left to do


def live_bytes(model: TopicModel) -> int:
    """What the frames of a topic's live records take up in segments."""
    live = [model.slot(seq) for seq in model.live]
    return sum(MIN_FRAME_BYTES + len((s.tag or "").encode()) + len((s.node or "").encode()) + s.size for s in live)


@pytest.mark.parametrize("seed", seeds(6))
def test_an_idle_reclaimer_leaves_at_most_twice_the_live_bytes_and_the_active_segment(seed: int) -> None:
    rng = random.Random(seed)
    player = Player(rng, classes=("fsync", "disk"))
    world = World(seed, config=tiny(rng, segment_max_age_ms=0))

    async def scenario(life: Life) -> None:
        for _ in range(60):
            await player.step(life)
        await settle_maintenance(life)
        await player.compare(life)
        found = data_files(world)
        for topic in life.engine.registry.topics.values():
            mine = {path: size for path, size in found.items() if f"/{topic.id:016x}/" in path}
            segments = topic.segment_set.segments if topic.segment_set is not None else set()
            active = sum(segment.data_bytes for segment in segments if not segment.sealed)
            live = live_bytes(player.models[topic.name])
            told = [segment.to_wire() for segment in segments]
            assert sum(mine.values()) <= 2 * live + active, f"seed {seed} {topic.name}: {mine} {live} {active} {told}"
            assert all(size == found.pop(path) for path, size in mine.items())
        assert not found, f"seed {seed}: files of nobody: {found}"

    try:
        assert world.live(scenario)
    except BaseException as error:
        error.add_note("\n".join([f"seed {seed}", *player.log]))
        raise


# ----------------------------------------------------------------- everything at once


class LongTurns(InlineOffload):
    """Thread calls that take their time, so that everything else gets in between."""

    async def _turns(self) -> None:
        assert self._random is not None
        for _ in range(self._random.choice([0, 0, 1, 3, 20])):
            await trio.lowlevel.cancel_shielded_checkpoint()


class Crowd:
    """One client that appends and deletes, readers beside it, and all the maintenance there is, at the same time."""

    def __init__(self, seed: int, life: Life) -> None:
        self.rng = random.Random(seed)
        self.life = life
        self.sent: dict[int, bytes] = {}
        self.dead: dict[int, int] = {}
        """Seq to the step in which its deletion was asked for."""
        self.gone: set[int] = set()
        """Those whose deletion was answered."""
        self.tags: dict[int, str | None] = {}
        self.step = 0
        self.done = trio.Event()

    async def client(self, steps: int) -> None:
        engine, rng = self.life.engine, self.rng
        for _ in range(steps):
            self.step += 1
            await trio.sleep(rng.choice([0, 0, 0.001]))
            if rng.random() < 0.65 or not self.sent:
                parts = [
                    (f'{{"s": {self.step},"i":{i} }}'.encode(), rng.choice([*TAGS, None]))
                    for i in range(rng.randint(1, 6))
                ]
                records = [RecordIn(data=msgspec.Raw(data), tag=tag) for data, tag in parts]
                result = await engine.appends.append("t", AppendRequest(records=records), Performance())
                for i, (data, tag) in enumerate(parts):
                    self.sent[result.first_seq + i] = data
                    self.tags[result.first_seq + i] = tag
                continue
            match = TagMatch(rng.choice(TAGS), prefix=rng.random() < 0.3) if rng.random() < 0.7 else None
            before = rng.randint(1, max(self.sent)) if match is None or rng.random() < 0.5 else None
            if match is None and rng.random() < 0.6:
                continue
            doomed = [
                seq
                for seq in self.sent
                if seq not in self.dead
                and (before is None or seq < before)
                and (match is None or match.matches(self.tags[seq]))
            ]
            self.dead.update(dict.fromkeys(doomed, self.step))
            result_of = await engine.deletions.delete_records("t", before, match, Performance())
            assert result_of.deleted == len(doomed)
            self.gone.update(doomed)
        self.done.set()

    async def reader(self, seed: int) -> None:
        rng = random.Random(seed)
        while True:
            await trio.sleep(rng.choice([0, 0.001]))
            last_round = self.done.is_set()
            known, gone = set(self.sent), set(self.gone)
            start = position = rng.choice([0, 0, rng.randint(0, max(self.sent, default=0))])
            seen: dict[int, bytes] = {}
            match = rng.choice([None, TagMatch(rng.choice(TAGS), prefix=rng.random() < 0.3)])
            wanted = parse_filter(json.dumps(match.to_wire())) if match is not None else None
            while True:
                request = ReadRequest(
                    from_seq=position, limit=rng.choice([3, 20, 1000]), include_tags=True, filter=wanted
                )
                result = await self.life.engine.reads.read("t", request, Performance())
                assert result.tombstone is None, f"{result.tombstone} at {position}"
                rows = msgspec.json.decode(b"[" + result.records + b"]", type=list[Row])
                seen.update({row.seq: bytes(row.data) for row in rows})
                position = result.next_from_seq
                if result.caught_up:
                    break
            assert match is None or all(match.matches(self.tags.get(seq, match.pattern)) for seq in seen)
            known = {seq for seq in known if seq > start and (match is None or match.matches(self.tags[seq]))}
            missed = known - set(seen) - set(self.dead)
            assert not missed, f"live records {sorted(missed)} were not delivered"
            assert not gone & set(seen), f"deleted records {sorted(gone & set(seen))} were delivered"
            assert all(self.sent.get(seq, data) == data for seq, data in seen.items())
            if last_round:
                return

    async def maintenance(self, what: str, seed: int) -> None:
        rng = random.Random(seed)
        call: Any = {
            "checkpoint": self.life.compactor.checkpoint,
            "reclaim": self.life.reclaimer.pass_over,
            "relocate": self.life.relocator.pass_over,
        }[what]
        while not self.done.is_set():
            await trio.sleep(rng.choice([0, 0.0005, 0.003]))
            await call()


@pytest.mark.parametrize(
    ("seed", "requests"), [(8, 30), *(pytest.param(seed, 120, marks=pytest.mark.slow) for seed in seeds(4))]
)
def test_readers_beside_all_kinds_of_maintenance_miss_nothing_and_see_no_damage(
    seed: int, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world_module, "InlineOffload", LongTurns)
    rng = random.Random(seed)
    world = World(seed, config=tiny(rng, segment_max_age_ms=rng.choice([0, 5])))

    async def scenario(life: Life) -> None:
        await life.engine.topic_lifecycle.put("t", TopicConfigPatch(durability=rng.choice(["fsync", "disk", "memory"])))
        crowd = Crowd(seed, life)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crowd.client, requests)
            for i in range(3):
                nursery.start_soon(crowd.reader, seed * 10 + i)
            for i, what in enumerate(("checkpoint", "reclaim", "relocate")):
                nursery.start_soon(crowd.maintenance, what, seed * 10 + i)
        for topic in life.engine.registry.topics.values():
            topic.log.check()

    assert world.live(scenario)


# ----------------------------------------------------------------- what these have found


def test_columns_of_more_segments_than_the_cache_has_room_for() -> None:
    """One load dropped what the one before had brought, without end."""

    async def scenario(life: Life) -> None:
        engine = life.engine
        await engine.topic_lifecycle.put("t", TopicConfigPatch(durability="fsync"))
        for i in range(64):
            records = [RecordIn(data=msgspec.Raw(b"%d" % i), tag=f"t{i % 3}")]
            await engine.appends.append("t", AppendRequest(records=records), Performance())
        await life.compactor.checkpoint()
        with trio.fail_after(60):
            for tag in ("t0", "t1"):
                assert (
                    await engine.deletions.delete_records("t", None, TagMatch(tag, prefix=False), Performance())
                ).deleted
            result = await engine.reads.read("t", ReadRequest(limit=1000), Performance())
            assert result.count == 21
            await life.reclaimer.pass_over()
            result = await engine.reads.read("t", ReadRequest(limit=1000), Performance())
            assert result.count == 21

    assert World(config=settings(segment_max_events=8, cache_bytes=0)).live(scenario)


async def _relocated(life: Life, deleted: list[int], durability: Literal["disk", "fsync"] = "fsync") -> None:
    """A topic with segments of which the first may go to the cold directory, some of its records deleted."""
    engine = life.engine
    await engine.topic_lifecycle.put("t", TopicConfigPatch(durability=durability))
    records = [RecordIn(data=msgspec.Raw(b"%d" % seq), tag=f"t{seq}") for seq in range(1, 21)]
    await engine.appends.append("t", AppendRequest(records=records), Performance())
    await life.compactor.checkpoint()
    for seq in deleted:
        await engine.deletions.delete_records("t", None, TagMatch(f"t{seq}", prefix=False), Performance())


COLD_SETTINGS = settings(segment_max_events=8, cold_dir=Path(COLD), hot_retain_segments=1)


async def _seqs(life: Life) -> list[int]:
    result = await life.engine.reads.read("t", ReadRequest(limit=1000), Performance())
    return [row.seq for row in msgspec.json.decode(b"[" + result.records + b"]", type=list[Row])]


def test_what_was_deleted_before_a_relocation_stays_deleted_behind_it() -> None:
    """The flags went to the hot copy after it had been copied, and the part said that they were written."""
    world = World(config=COLD_SETTINGS)
    left = [seq for seq in range(1, 21) if seq not in (2, 5)]

    async def scenario(life: Life) -> None:
        await _relocated(life, [2, 5])
        assert await life.relocator.pass_over() == 1
        assert await _seqs(life) == left

    async def again(life: Life) -> None:
        assert await _seqs(life) == left

    assert world.live(scenario)
    assert world.live(again)
    assert world.live(again)


def test_a_cold_segment_without_its_flags_is_not_rewritten_over_and_over() -> None:
    async def scenario(life: Life) -> None:
        await _relocated(life, [])
        assert await life.relocator.pass_over() == 1
        for seq in range(2, 8):  # the front stays
            await life.engine.deletions.delete_records("t", None, TagMatch(f"t{seq}", prefix=False), Performance())
        with trio.fail_after(60):
            await life.reclaimer.pass_over()
        await settle_maintenance(life)
        assert await _seqs(life) == [1, *range(8, 21)]
        segment = next(path for path in data_files(world) if path.startswith(COLD))
        assert data_files(world)[segment] == FILE_HEADER_BYTES + 2 * (MIN_FRAME_BYTES + 3)

    world = World(config=COLD_SETTINGS)
    assert world.live(scenario)


async def _half_of_it_deleted(life: Life) -> None:
    """Five segments, three of them cold, of which every second record is deleted by tag."""
    await life.engine.topic_lifecycle.put("t", TopicConfigPatch(durability="fsync"))
    for _ in range(10):
        records = [RecordIn(data=msgspec.Raw(b"1"), tag="keep" if i == 0 else "dead") for i in range(4)]
        await life.engine.appends.append("t", AppendRequest(records=records), Performance())
    await life.compactor.checkpoint()
    assert await life.relocator.pass_over() == 3
    await life.engine.deletions.delete_records("t", None, TagMatch("dead", prefix=False), Performance())


@pytest.mark.parametrize("late", [False, True])
def test_cold_segments_are_rewritten_after_a_deletion_though_hot_ones_are_replaced_in_the_same_round(
    late: bool,
) -> None:
    """A round that found its topic changed put the flags of cold segments off; replacing hot segments then made the
    topic's part durable, so that nothing sent the next round to it. `late`: a checkpoint comes between the two."""

    async def scenario(life: Life) -> None:
        await _half_of_it_deleted(life)
        if late:
            await life.compactor.checkpoint()
        for _ in range(4):  # nothing but the reclaimer from here on: no checkpoint, and no change of the topic
            await life.reclaimer.pass_over()
        assert await _seqs(life) == list(range(1, 41, 4))
        sizes = data_files(world)
        live = 10 * (MIN_FRAME_BYTES + len("keep") + 1)
        assert sum(sizes.values()) == live + FILE_HEADER_BYTES * len(sizes), sizes

    world = World(config=settings(segment_max_events=8, cold_dir=Path(COLD), hot_retain_segments=2))
    assert world.live(scenario)


def test_a_segment_that_cannot_be_replaced_keeps_no_other_one_from_it() -> None:
    """The oldest cold segment cannot be written anew; the scan went no further, in this tier or the other."""

    async def scenario(life: Life) -> None:
        await _half_of_it_deleted(life)
        await life.compactor.checkpoint()
        bad = life.fs.inject(Fault(error=errno.EIO, name="create", path=f"{COLD}/*{1:020d}.data.tmp", times=None))
        for _ in range(3):
            with suppress(OSError):
                await life.reclaimer.pass_over()
        assert bad.hits
        sizes = {path.split("/")[-1]: size for path, size in data_files(world).items()}
        live = FILE_HEADER_BYTES + 2 * (MIN_FRAME_BYTES + len("keep") + 1)
        assert {name: size for name, size in sizes.items() if size != live}.keys() == {segment_name(1, "data")}, sizes

    world = World(config=settings(segment_max_events=8, cold_dir=Path(COLD), hot_retain_segments=2))
    assert world.live(scenario)


def test_what_a_reclaimer_looks_at_before_the_checkpoint_it_looks_at_behind_it() -> None:
    async def scenario(life: Life) -> None:
        await _relocated(life, [])
        await life.engine.deletions.delete_records("t", 17, None, Performance())
        await life.reclaimer.pass_over()
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
        assert len(data_files(world)) == 1, data_files(world)

    world = World(config=COLD_SETTINGS)
    assert world.live(scenario)


def test_leaving_ephemeral_with_a_deletion_inside_a_block_and_no_cache() -> None:
    """The block was dropped when its first run was written out, and the rest of its records with it."""

    async def scenario(life: Life) -> None:
        engine = life.engine
        await engine.topic_lifecycle.put("t", TopicConfigPatch(durability="ephemeral"))
        for first in range(1, 1024, 341):  # noqa: B007  # behind the first ceiling, so that a commit waits for a sync
            records = [RecordIn(data=msgspec.Raw(b"1"))] * 341
            await engine.appends.append("t", AppendRequest(records=records), Performance())
        records = [RecordIn(data=msgspec.Raw(b"%d" % seq), tag=f"t{seq}") for seq in range(3)]
        await engine.appends.append("t", AppendRequest(records=records), Performance())
        await engine.deletions.delete_records("t", None, TagMatch("t1", prefix=False), Performance())
        with trio.fail_after(60):
            await engine.topic_lifecycle.put("t", TopicConfigPatch(durability="fsync"))
        assert engine.registry.topic("t").log.count == first + 340 + 2
        assert (await _seqs(life))[:1] == [1]
        assert (await engine.reads.read("t", ReadRequest(from_seq=1023), Performance())).count == 2

    assert World(config=settings(cache_bytes=0)).live(scenario)


def test_a_match_on_an_active_segment_whose_columns_are_not_loaded() -> None:
    """It was answered 500."""

    async def scenario(life: Life) -> None:
        engine = life.engine
        for name in ("t", "u"):
            await engine.topic_lifecycle.put(name, TopicConfigPatch(durability="fsync"))
            records = [RecordIn(data=msgspec.Raw(b"1"), tag=f"t{seq % 3}") for seq in range(6)]
            await engine.appends.append(name, AppendRequest(records=records), Performance())
            await engine.deletions.delete_records(name, None, TagMatch("t1", prefix=False), Performance())
            await life.compactor.checkpoint()
        for name in ("t", "u"):
            for topic in engine.registry.topics.values():
                for span in topic.log.stored.all():
                    span.detach()
            assert (
                await engine.deletions.delete_records(name, None, TagMatch("t2", prefix=False), Performance())
            ).deleted == 2

    assert World(config=settings(cache_bytes=0)).live(scenario)


@pytest.mark.parametrize("removed", [True, False])
def test_a_segment_that_was_removed_before_a_kill_is_not_named_in_a_copy_behind_it(removed: bool) -> None:
    """The part on disk named it until the next one; nobody removed it, or forgot it, until the topic changed."""

    async def scenario(life: Life) -> None:
        await _relocated(life, [], "disk")
        await life.engine.deletions.delete_records("t", 17, None, Performance())
        await trio.sleep(3)  # no seq stays reserved, so that the next start finds nothing to change in the part
        await life.compactor.checkpoint()
        if removed:
            await life.reclaimer.pass_over()

    async def later(life: Life) -> None:
        # A removal is in the log, and has the start look at the topic; without one nothing does.
        assert (life.engine.registry.topic("t") in life.engine.registry.changed) == removed
        files, _ = await life.engine.checkpoint(0)
        assert {f"{ROOT}/{name}" for name in files if not name.startswith("cold:")} <= set(after.fs.tree())
        await settle_maintenance(life)
        assert len(data_files(after)) == 1

    world = World(config=COLD_SETTINGS)
    assert world.live(scenario, end="kill")
    after = world.after("kill")
    assert after.live(later)


def test_dead_records_with_long_tags_do_not_keep_their_segment() -> None:
    async def scenario(life: Life) -> None:
        await life.engine.topic_lifecycle.put("t", TopicConfigPatch(durability="fsync"))
        records = [RecordIn(data=msgspec.Raw(b"1"), tag="x" * 256 if seq % 2 else None) for seq in range(16)]
        await life.engine.appends.append("t", AppendRequest(records=records), Performance())
        await life.compactor.checkpoint()
        await life.engine.deletions.delete_records("t", None, TagMatch("x", prefix=True), Performance())
        await settle_maintenance(life)
        assert sum(data_files(world).values()) <= 2 * 8 * (MIN_FRAME_BYTES + 1)

    world = World(config=settings(segment_max_events=16))
    assert world.live(scenario)
