"""The directory of a former owner, when it was set aside: what it says of the bucket, and what is found in its log
(`docs/design/standby.md` section 6)."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Final

import msgspec
import pytest
import trio

from tests.bucket.archived import ArchivedLife, archived, bucket_settings
from tests.bucket.simulated_objects import SimFault, SimObjects
from tests.bucket.standby_lives import URL, StandbyLife, following, live
from tests.bucket.test_lazy_restore import completion_of
from tests.engine.operations.test_stages import stage
from tests.engine.queues.queue_calls import ack, claim, seqs_of
from tests.simulation.clock import BASE_MS, SimClock
from tests.simulation.disk import SimFs
from tests.simulation.model import view_of
from tests.simulation.world import ROOT, quiet
from topics.bucket.local_note import BadNote, BucketNote, read_note
from topics.bucket.offline.bucket_reader import BucketReader
from topics.bucket.ownership.owner_format import decode_owner
from topics.bucket.round_format import decode_round, encode_round
from topics.bucket.standby.directory import prepare_directory
from topics.bucket.standby.diverged_note import NAME, read_diverged
from topics.bucket.standby.shared_cut import shared_cut
from topics.model import Performance, RouterPatch
from topics.storage.files.datadir import DataDir, DataDirError
from topics.storage.files.fs import Fs, join, write_all
from topics.storage.offline.log_tail import LogTail
from topics.storage.offline.tail_facts import TailFacts, TailRecord, TopicTail

CONFIG: Final = bucket_settings(
    bucket_takeover=True, bucket_base_ms=1000, segment_max_events=4, segment_compression="zstd"
)
"""Checkpoints are on demand: there is no task that takes them."""

ASIDE: Final = join(ROOT, "diverged-1")

Script = Callable[[ArchivedLife], Awaitable[None]]


async def shared(life: ArchivedLife) -> None:
    """What the bucket has: topics of several kinds, a route, jobs, a stage."""
    for name in ("log", "copies", "q", "other"):
        await life.put(name, **({"type": "queue"} if name == "q" else {}), durability="disk")
    await life.engine.routers.put("r", RouterPatch(source="log", dest="copies", start="earliest"))
    await life.append("log", *range(10))
    await life.append("q", 1, 2, 3)
    await stage(life, "early", "staged before", topic="log")


async def nothing(life: ArchivedLife) -> None:
    """No change at all."""


async def unshared(life: ArchivedLife) -> None:
    """Changes of every kind that the bucket does not get."""
    await life.append("log", {"data": "a", "tag": "t", "node": "n", "meta": {"k": "v"}}, "b", "c")
    await life.delete("log", match="t")
    await life.append("q", {"data": 4, "priority": 7}, {"data": 5, "not_before": BASE_MS + 10_000}, 6)
    claimed = seqs_of(await claim(life, most=3))
    await ack(life, [claimed[0], claimed[1]])
    await life.append("new", "first")
    await stage(life, "late", "staged behind", topic="log")
    await stage(life, "other", "never committed", topic="log")
    await life.engine.stage_commits.commit("log", ["early", "late"], "key", Performance())
    await life.put("other", ttl_ms=3_600_000)


async def stored(life: ArchivedLife) -> None:
    """The same, and a checkpoint, so that a start would not read all of it."""
    await unshared(life)
    await life.engine.compactor.checkpoint()


async def left(before: Script, behind: Script, *, crash: bool = False) -> tuple[SimFs, SimObjects]:
    """The directory of an owner of which the bucket has what `before` did, and not what `behind` did; another directory
    has become the owner."""
    objects, fs, clock = SimObjects(), SimFs(), SimClock(BASE_MS)
    async with archived(objects, CONFIG, fs=fs, clock=clock, clean=False, bases=True) as life:
        await before(life)
        await life.archive.vouch_for([writer.synced_position()[0] for writer in life.engine.store.writers])
        await trio.sleep(5)
        await life.archived()
        objects.faults = lambda op, name: SimFault.BEFORE if op.startswith("put") else None
        await behind(life)
        await trio.sleep(1)
        await life.engine.store.sync_shards()
    objects.faults = lambda op, name: None
    fs = fs.after_process_kill()
    note = noted(fs)
    objects._set("owner", objects.objects["owner"].replace(note.dir.encode(), b"0" * 32))
    return fs, objects


def noted(fs: Fs) -> BucketNote:
    note = read_note(fs, DataDir(ROOT))
    assert note is not None
    return note


@cache
def _aside(behind: Script) -> SimFs:
    made: list[SimFs] = []

    async def script() -> None:
        fs, objects = await left(shared, behind)
        assert prepare_directory(fs, ROOT, URL, objects, 1, takes=True) is not None
        made.append(fs)

    live(script)
    return made[0]


def aside(behind: Script = unshared) -> SimFs:
    """The disk of a former owner, as a standby's, with what it had set aside."""
    return _aside(behind).after_process_kill()


def tail_of(fs: SimFs) -> LogTail:
    return LogTail(fs, ASIDE, read_diverged(fs, ASIDE).positions)


def facts_of(fs: SimFs) -> TailFacts:
    with quiet():
        return tail_of(fs).facts()


def records_of(fs: SimFs, topic: str | None = None) -> list[TailRecord]:
    with quiet():
        return list(tail_of(fs).records(topic))


def by_name(facts: TailFacts) -> dict[str | None, TopicTail]:
    return {topic.name: topic for topic in facts.topics}


def data_of(found: list[TailRecord]) -> dict[str | None, list[Any]]:
    datas: dict[str | None, list[Any]] = {}
    for one in sorted(found, key=lambda one: (one.topic or "", one.record.seq)):
        datas.setdefault(one.topic, []).append(msgspec.json.decode(one.record.data))
    return datas


def last_file(fs: SimFs) -> str:
    """The file of the log behind the places in which most is."""
    begins = read_diverged(fs, ASIDE).positions
    assert begins is not None
    shard = max(facts_of(fs).shards, key=lambda one: one.bytes)
    datadir = DataDir(ASIDE)
    return join(datadir.shard_dir(shard.shard, len(begins)), f"wal-{shard.begin.ordinal:020d}.log")


@pytest.mark.parametrize("behind", [unshared, stored])
def test_what_was_not_carried_over_is_counted_by_topic(behind: Script) -> None:
    facts = facts_of(aside(behind))
    assert facts.refused is None
    assert facts.findings == []
    topics = by_name(facts)
    log = topics["log"]
    assert (log.records, log.first_seq, log.last_seq, log.gone) == (5, 11, 15, 1)
    assert log.synced == 5
    assert log.durability == "disk"
    assert log.frames.keys() >= {"Delete", "Forwarded", "Stage"}
    jobs = topics["q"]
    assert (jobs.records, jobs.first_seq, jobs.last_seq, jobs.acked, jobs.gone) == (3, 4, 6, 2, 1)
    assert topics["copies"].records == 0
    assert topics["copies"].copies > 0
    assert (topics["new"].records, topics["new"].frames) == (1, {"TopicCreate": 1})
    assert topics["other"].frames["ConfigUpdate"] == 1
    assert topics["log?stage=early"].records == 0


@pytest.mark.parametrize("behind", [unshared, stored])
def test_the_records_are_those_that_are_not_gone_again(behind: Script) -> None:
    fs = aside(behind)
    found = records_of(fs)
    assert data_of(found) == {
        "q": [5, 6],
        "log": ["b", "c", "staged before", "staged behind"],
        "new": ["first"],
    }
    assert [(one.not_before, one.priority) for one in found if one.topic == "q"] == [
        (BASE_MS + 10_000, None),
        (0, None),
    ]
    assert data_of(records_of(fs, "new")) == {"new": ["first"]}


def test_nothing_beyond_the_bucket_is_nothing_found() -> None:
    fs = aside(nothing)
    facts = facts_of(fs)
    assert (facts.topics, facts.findings, records_of(fs)) == ([], [], [])


def test_the_place_is_that_of_the_bucket_and_not_the_one_that_was_noted() -> None:
    """The note is behind by some rounds when the owner is gone."""

    async def script() -> None:
        fs, objects = await left(shared, unshared)
        before = noted(fs)
        newest = max(int(name[7:]) for name in objects.objects if name.startswith("rounds/"))
        assert before.round < newest
        assert prepare_directory(fs, ROOT, URL, objects, 1, takes=True) is not None
        found = read_diverged(fs, ASIDE)
        assert (found.exact, found.round, found.epoch) == (True, newest, 1)
        assert found.positions != before.positions

    live(script)


def test_without_the_rounds_the_place_is_the_noted_one() -> None:
    async def script() -> None:
        fs, objects = await left(shared, unshared)
        note = noted(fs)
        owner, reader = decode_owner(objects.objects["owner"]), BucketReader(objects)
        assert shared_cut(fs, DataDir(ROOT), reader, note) is not None
        wrong = msgspec.structs.replace(note, hash=b"another")
        assert shared_cut(fs, DataDir(ROOT), reader, wrong) is None
        gone = msgspec.structs.replace(note, round=note.round + 10_000)
        assert shared_cut(fs, DataDir(ROOT), reader, gone) is None
        assert owner.dir == "0" * 32

    live(script)


def test_half_a_cut_is_not_shared() -> None:
    """Nobody has applied the first rounds of a cut whose last one is missing."""

    async def script() -> None:
        fs, objects = await left(shared, unshared)
        note, reader = noted(fs), BucketReader(objects)
        whole = shared_cut(fs, DataDir(ROOT), reader, note)
        assert whole is not None
        found = reader.round(whole.round)
        assert found.head.runs
        found.head.ends_cut = False
        blob = encode_round(found.head, [bytes(data) for _, data in found.pieces()])
        objects._set(f"rounds/{whole.round:020d}", blob)
        before = shared_cut(fs, DataDir(ROOT), reader, note)
        assert before is not None
        assert before.round == whole.round - 1
        noted_ = msgspec.structs.replace(
            note, round=whole.round, hash=decode_round(blob).hash, positions=found.head.positions
        )
        assert shared_cut(fs, DataDir(ROOT), reader, noted_) == before

    live(script)


def test_what_a_first_attempt_has_noted_stays() -> None:
    """When a start goes on with moving files, the log may be elsewhere already."""

    async def script() -> None:
        fs, objects = await left(shared, unshared)
        crashed = fs.after_process_kill()
        assert prepare_directory(fs, ROOT, URL, objects, 1, takes=True) is not None
        noted_ = read_diverged(fs, ASIDE)
        crashed.mkdir(ASIDE)
        blob = fs.read(join(ASIDE, NAME))
        with crashed.open(join(ASIDE, NAME), create=True) as file:
            write_all(file, blob, 0)
        crashed.rename(join(ROOT, "wal"), join(ASIDE, "wal"))
        assert prepare_directory(crashed, ROOT, URL, objects, 1, takes=True) is not None
        assert read_diverged(crashed, ASIDE) == noted_
        assert by_name(facts_of(crashed))["log"].records == 5

    live(script)


def test_a_file_that_says_nothing_is_refused() -> None:
    fs = aside()
    whole = fs.read(join(ASIDE, NAME))
    for content in (
        *(b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"x" * (2 << 20), b'{"bucket":"b","epoch":-1}'),
        *(whole.replace(b'"epoch": 1', b'"epoch": -1'), whole[: len(whole) // 2]),
    ):
        with fs.open(join(ASIDE, NAME)) as file:
            file.truncate(0)
            write_all(file, content, 0)
        with pytest.raises(BadNote):
            read_diverged(fs, ASIDE)


def test_a_torn_end_is_told_and_the_rest_is_there() -> None:
    fs = aside()
    path = last_file(fs)
    with quiet():
        before = facts_of(fs)
    content = fs.read(path)
    used = len(content.rstrip(b"\0"))
    with fs.open(path) as file:
        write_all(file, bytes(6), used - 6)
    facts = facts_of(fs)
    assert [(finding.path, finding.severity) for finding in facts.findings] == [(path, "note")]
    assert sum(topic.records for topic in facts.topics) >= sum(topic.records for topic in before.topics) - 1


def test_behind_damage_the_report_goes_on() -> None:
    """A start would be refused, so nobody knows what is gone again."""
    fs = aside()
    path = last_file(fs)
    begin = max(one.begin.offset for one in facts_of(fs).shards if f"shard-{one.shard:02d}" in path)
    before = by_name(facts_of(fs))
    fs.flip_bit(path, begin + 60, 0)
    facts = facts_of(fs)
    assert [(finding.path, finding.offset, finding.severity) for finding in facts.findings] == [(path, begin, "damage")]
    assert facts.refused is not None
    after = by_name(facts)
    assert 0 < sum(one.records for one in after.values()) <= sum(one.records for one in before.values())
    assert all(topic.gone is None for topic in facts.topics if topic.records)
    assert {one.topic for one in records_of(fs)} <= {"log", "q", "new"}


@pytest.mark.parametrize("how", ["too short", "cut", "gone", "no shard", "no header"])
def test_what_is_missing_of_the_log_is_told(how: str) -> None:
    fs = aside()
    path = last_file(fs)
    if how in ("too short", "cut"):
        with fs.open(path) as file:
            file.truncate(16 if how == "too short" else 64)
    elif how == "no header":
        with fs.open(path) as file:
            write_all(file, b"\xff" * 32, 0)
    else:
        directory = path.rpartition("/")[0]
        for name in fs.listdir(directory):
            fs.unlink(join(directory, name))
        if how == "no shard":
            fs.rmdir(directory)
    facts = facts_of(fs)
    assert [(finding.path, finding.severity) for finding in facts.findings] == [(path, "damage")]
    assert facts.refused is not None or how == "cut"


def test_places_of_other_shards_are_refused() -> None:
    fs = aside()
    for places in ([], [(0, 0)], [(0, 0)] * 3):
        if len(places) < 3:
            with pytest.raises(DataDirError, match="shards"):
                LogTail(fs, ASIDE, places)
    with pytest.raises(DataDirError, match="FORMAT"):
        LogTail(fs, join(ROOT, "elsewhere"), [(0, 0)])


def test_if_no_place_is_known_all_of_the_log_is_shown() -> None:
    fs = aside()
    with quiet():
        facts = LogTail(fs, ASIDE, None).facts()
    assert by_name(facts)["log"].records > 5
    assert by_name(facts)["log"].last_seq == 15


async def many(life: ArchivedLife) -> None:
    """Sealed segments, in the bucket; some records of one are deleted after that."""
    await life.put("log", durability="disk", compression="zstd")
    await life.put("plain", durability="disk", compression="off")
    for name in ("log", "plain"):
        for i in range(8):
            await life.append(name, *[{"data": {"n": i, "text": "word " * 1200}}] * 2)
    await life.engine.compactor.checkpoint()
    await life.engine.reclaimer.pass_over()
    await life.engine.compactor.checkpoint()
    await trio.sleep(5)


def data_reads(objects: SimObjects) -> list[str]:
    return [name for op, name in objects.calls if op == "get_range" and name.endswith(".data")]


@pytest.mark.parametrize("links", [True, False])
def test_equal_segments_come_home_from_the_directory_that_was_set_aside(
    links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(SimFs, "link", refused)

    async def script() -> None:
        fs, objects = await left(many, nothing)
        assert prepare_directory(fs, ROOT, URL, objects, 1, takes=True) is not None
        async with following(fs, objects, CONFIG) as life:
            await home(life, objects, room=True)
            for name in ("log", "plain"):
                assert len((await view_of(life.engine, name)).records) == 16
        same = {path for path in home_files(fs) if fs._file(path) is fs._file(of_aside(path))}
        assert {DataDir(ROOT).topic_dir(1 << 32) in path for path in same} == ({True} if links else set())

    live(script)


def test_what_differs_is_read_from_the_bucket() -> None:
    async def script() -> None:
        fs, objects = await left(many, nothing)
        assert prepare_directory(fs, ROOT, URL, objects, 1, takes=True) is not None
        changed = next(path for path in fs.tree() if path.startswith(ASIDE) and path.endswith(".data"))
        fs.flip_bit(changed, 50, 0)
        async with following(fs, objects, CONFIG) as life:
            await home(life, objects, room=True, expected=1)
            for name in ("log", "plain"):
                assert len((await view_of(life.engine, name)).records) == 16
        assert fs._file(of_aside(changed)) is fs._file(changed)

    live(script)


def test_without_room_and_without_a_bucket_links_are_made_all_the_same() -> None:
    async def script() -> None:
        fs, objects = await left(many, nothing)
        assert prepare_directory(fs, ROOT, URL, objects, 1, takes=True) is not None
        async with following(fs, objects, CONFIG) as life:
            await home(life, objects, room=False)
            assert len((await view_of(life.engine, "log")).records) == 16
        found = home_files(fs)
        assert found
        assert all(fs._file(path) is fs._file(of_aside(path)) for path in found)

    live(script)


def refused(fs: SimFs, source: str, target: str) -> None:
    raise OSError(errno.EOPNOTSUPP, "no links", source)


def of_aside(path: str) -> str:
    return path if path.startswith(ASIDE) else join(ASIDE, path.removeprefix(f"{ROOT}/"))


def home_files(fs: SimFs) -> list[str]:
    """The `.data` files that the former owner has, too."""
    topics = DataDir(ROOT).topics_dir
    return [
        path for path in fs.tree() if path.startswith(topics) and path.endswith(".data") and fs.exists(of_aside(path))
    ]


async def home(life: StandbyLife, objects: SimObjects, *, room: bool, expected: int = 0) -> None:
    """Bring everything home that can be, and assert how many segments were read from the bucket for it."""
    before = len(data_reads(objects))
    completion = completion_of(life, has_room=lambda: room)
    state = await completion.pass_over()
    assert completion.brought
    assert room is not bool(state.left)
    assert len(set(data_reads(objects)[before:])) == expected
