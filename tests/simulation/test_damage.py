"""Damage: synced bytes that are not there any more. Reported, bounded, and never mistaken for a torn end
(`docs/spec/storage.md` section 3).

Strict recovery refuses and names what is affected. Salvage gives up the damaged range and nothing else, says so to
readers, and leaves a directory on which the next strict start finds nothing wrong.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from tests.everything import EVERYTHING
from tests.simulation.disk import SimFs
from tests.simulation.model import Client, History, Oracle, View
from tests.simulation.test_crash_sweep import see
from tests.simulation.wal_content import salt_of, scan_of, sealed_for
from tests.simulation.world import End, Life, World, all_ends, settings, wrecks_of
from topics.config import Settings
from topics.errors import ApiError
from topics.storage.files.datadir import DataDir, DataDirError
from topics.storage.recovery.damage import Damage
from topics.storage.recovery.salvage import bare_filler
from topics.storage.wal import frames
from topics.storage.wal.frames import Frame, FrameType, UnknownFrameType

WAL = "/data/wal"


def segment_file(topic_id: int, first_seq: int, kind: str) -> str:
    """A file of a segment."""
    return DataDir("/data").segment_path(topic_id, first_seq, kind)


def frames_of(fs: SimFs, path: str) -> list[Frame]:
    """The valid frames from the beginning of a file."""
    content = fs.tree()[path]
    assert content is not None
    return scan_of(content).frames


def frames_with_batch(fs: SimFs, path: str) -> list[tuple[list[Frame], Frame]]:
    """The valid frames of a file, each with all frames of its batch."""
    batches: list[list[Frame]] = []
    for frame in frames_of(fs, path):
        if not frame.flags & frames.CONTINUES:
            batches.append([])
        batches[-1].append(frame)
    return [(batch, frame) for batch in batches for frame in batch]


def wal_files(fs: SimFs) -> list[str]:
    """The WAL files of the one shard, oldest first."""
    return [path for path in fs.tree() if path.startswith(f"{WAL}/wal-") and path.endswith(".log")]


def zero(fs: SimFs, path: str, start: int, end: int) -> None:
    """Make a range of a file zeros, on the disk as in the page cache."""
    content = fs.tree()[path]
    assert content is not None
    for at in range(start, end):
        for bit in range(8):
            if content[at] >> bit & 1:
                fs.flip_bit(path, at, bit)


def overwrite(fs: SimFs, path: str, at: int, data: bytes) -> None:
    """Put bytes into a file, durably."""
    handle = fs.open(path)
    handle.pwrite(data, at)
    handle.fdatasync()
    handle.close()


def written(history: History, *, config: Settings | None = None, checkpoint: bool = False, appends: int = 6) -> World:
    """A machine with two topics in one shard, everything synced and vouched for, after a crash."""
    world = World(config=config or settings())

    async def scenario(life: Life) -> None:
        client = Client(life.engine, history)
        await client.create("orders", durability="fsync")
        await client.create("events", durability="disk")
        for i in range(appends):
            await client.append("orders", 2, size=60, key=f"k{i}")
            await client.append("events", 1, size=200)
            if i == 3:
                await client.delete("orders", before=3)
        await client.append("orders", 1)
        await trio.sleep(0.1)
        if checkpoint:
            await life.compactor.checkpoint()
            await client.append("orders", 1)
            await life.compactor.checkpoint()
            await trio.sleep(0.1)

    assert world.live(scenario, end="kill")
    return world.after("drop")


def salvaged(world: World) -> dict[str, View]:
    """What readers see after a salvage, having checked that the next strict start sees the same."""
    strict = world.settings
    world.settings = settings(recovery="salvage")
    views = see(world)
    for end in ("kill", "drop"):
        again = world.after(end)
        again.settings = strict
        assert see(again) == views, f"a strict start after the salvage and a {end} shows something else"
    return views


def corrupt(view: View) -> list[tuple[int, int]]:
    """The ranges that a reader is told are damaged."""
    return [(first, last) for first, last, reason in view.gaps if reason == "corrupt"]


def the(fs: SimFs, path: str, kind: FrameType, *, seq: int = 0, nth: int = 0) -> Frame:
    """A frame of a file."""
    return [frame for frame in frames_of(fs, path) if frame.type == kind and (not seq or frame.seq == seq)][nth]


def appended(fs: SimFs, path: str, topic_id: int, seq: int) -> Frame:
    """The frame of a record."""
    found = [f for f in frames_of(fs, path) if f.type == FrameType.APPEND and (f.topic_id, f.seq) == (topic_id, seq)]
    return found[0]


def test_a_flipped_bit_below_a_synced_position_refuses_the_start_and_names_what_is_affected() -> None:
    world = written(History())
    (path,) = wal_files(world.fs)
    frame = appended(world.fs, path, 2, 3)
    world.fs.flip_bit(path, frame.offset + 60, 3)
    with pytest.raises(Damage) as refused:
        see(world)
    for part in (path, f"offset {frame.offset}", "events seqs 3 to 3", "TOPICS_RECOVERY=salvage"):
        assert part in str(refused.value)
    assert "orders" not in str(refused.value)


def test_a_refused_start_changes_no_file() -> None:
    world = written(History())
    (path,) = wal_files(world.fs)
    world.fs.flip_bit(path, appended(world.fs, path, 1, 5).offset + 50, 0)
    before = {name: data for name, data in world.fs.tree().items() if not name.endswith("LOCK")}
    with pytest.raises(Damage):
        see(world)
    assert {name: data for name, data in world.fs.tree().items() if not name.endswith("LOCK")} == before


@pytest.mark.parametrize("part", ["length", "header", "payload", "checksum"])
def test_salvage_loses_the_damaged_batch_and_nothing_else(part: str) -> None:
    history = History()
    world = written(history)
    (path,) = wal_files(world.fs)
    whole = see(world.after("kill"))
    frame = appended(world.fs, path, 1, 7)
    offset = {"length": 0, "header": 15, "payload": 50, "checksum": frame.end - frame.offset - 1}[part]
    world.fs.flip_bit(path, frame.offset + offset, 1)
    views = salvaged(world)
    assert corrupt(views["orders"]) == [(7, 8)]
    gone = {7, 8}
    assert views["orders"].records == {
        seq: record for seq, record in whole["orders"].records.items() if seq not in gone
    }
    assert views["events"] == whole["events"]


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_damage_to_each_frame_in_turn_is_never_taken_for_the_end_and_costs_no_record_of_another_batch(
    first: int,
) -> None:
    history = History()
    world = written(history)
    (path,) = wal_files(world.fs)
    whole = see(world.after("kill"))
    every = frames_with_batch(world.fs, path)
    vouched = max(at for at, (_, frame) in enumerate(every) if frame.type == FrameType.SYNCED)
    for batch, frame in every[first : vouched - 1 : 3]:
        damaged = world.after("kill")
        damaged.fs.flip_bit(path, frame.offset + 20, 2)
        strict = damaged.after("kill")
        with pytest.raises(Damage):
            see(strict)
        views = salvaged(damaged)
        if frame.type == FrameType.TOPIC_CREATE:
            continue  # nothing says what the topic was called
        for name, view in views.items():
            lost = {part.seq for part in batch if part.type == FrameType.APPEND and part.topic_id == view.epoch}
            for seq, record in whole[name].records.items():
                if seq not in lost:
                    assert view.records.get(seq) == record, (frame, name, seq, view.gaps)
            told = {seq for first, last in corrupt(view) for seq in range(first, last + 1)}
            assert lost & set(whole[name].records) <= told, (frame, name, view.gaps)
            assert told & set(whole[name].records) <= lost or view.head in told, (frame, name, view.gaps)


def test_a_damaged_range_of_zeros_in_the_middle_is_no_end() -> None:
    world = written(History())
    (path,) = wal_files(world.fs)
    first, last = appended(world.fs, path, 1, 3), appended(world.fs, path, 1, 6)
    zero(world.fs, path, first.offset, last.end)
    with pytest.raises(Damage, match="orders seqs 3 to 6"):
        see(world.after("kill"))
    views = salvaged(world)
    assert corrupt(views["orders"]) == [(3, 6)] or views["orders"].earliest > 6


def test_damage_in_a_file_that_is_not_the_last_is_damage_up_to_its_very_end() -> None:
    world = written(History(), appends=40)
    first = wal_files(world.fs)[0]
    whole = see(world.after("kill"))
    for batch, frame in frames_with_batch(world.fs, first)[-12:]:
        damaged = world.after("kill")
        damaged.fs.flip_bit(first, frame.offset + 20, 2)
        with pytest.raises(Damage, match=first):
            see(damaged.after("kill"))
        views = salvaged(damaged)
        for name, view in views.items():
            missing = set(whole[name].records) - set(view.records)
            own = {part.seq for part in batch if part.topic_id == whole[name].epoch}
            assert missing <= own, (frame, name, missing)
            told = {seq for a, b in corrupt(view) for seq in range(a, b + 1)}
            assert missing <= told
            assert view.head == whole[name].head


def test_damage_in_the_middle_of_a_file_that_is_not_the_last_can_be_salvaged() -> None:
    world = written(History(), appends=40)
    first = wal_files(world.fs)[0]
    whole = see(world.after("kill"))
    frame = appended(world.fs, first, 2, 8)
    world.fs.flip_bit(first, frame.offset + 70, 0)
    views = salvaged(world)
    assert corrupt(views["events"]) == [(8, 8)]
    assert views["orders"] == whole["orders"]


def test_two_damaged_ranges_in_one_file_can_be_salvaged() -> None:
    world = written(History(), appends=40)
    first = wal_files(world.fs)[0]
    whole = see(world.after("kill"))
    for offset in [appended(world.fs, first, *which).offset for which in [(2, 6), (1, 15), (2, 9)]]:
        world.fs.flip_bit(first, offset + 70, 0)
    views = salvaged(world)
    assert corrupt(views["events"]) == [(6, 6), (9, 9)]
    assert corrupt(views["orders"]) == [(15, 16)]
    assert views["orders"].head == whole["orders"].head


def test_salvage_without_anything_behind_the_range_leaves_room_for_what_it_may_have_held() -> None:
    world = written(History(), checkpoint=True)
    (path,) = wal_files(world.fs)
    snapshots = [path for path in world.fs.tree() if path.startswith("/data/meta/snapshot")]
    assert len(snapshots) == 2
    frame = appended(world.fs, path, 1, 14)
    end = frames_of(world.fs, path)[-1].end
    zero(world.fs, path, frame.offset, end)
    try:
        views = salvaged(world)
    except DataDirError:
        return
    assert views["orders"].head >= 14


def test_salvage_keeps_the_original_aside() -> None:
    world = written(History())
    (path,) = wal_files(world.fs)
    world.fs.flip_bit(path, appended(world.fs, path, 1, 5).offset + 50, 0)
    original = world.fs.tree()[path]
    salvaged(world)
    assert world.fs.tree()[f"{path}.0.damaged"] == original


def test_a_deletion_that_was_damaged_brings_its_records_back_and_nothing_else() -> None:
    world = written(History())
    (path,) = wal_files(world.fs)
    world.fs.flip_bit(path, the(world.fs, path, FrameType.DELETE).offset + 45, 0)
    views = salvaged(world)
    assert sorted(views["orders"].records) == list(range(1, 14))
    assert not views["orders"].gaps


def test_a_torn_end_with_valid_frames_behind_it_is_cut_and_kept_aside() -> None:
    """Unsynced pages reach a disk in any order: what follows a hole that no sync has covered is not damage."""
    world = World(config=settings())
    history = History()

    async def scenario(life: Life) -> None:
        client = Client(life.engine, history)
        await client.create("orders", durability="fsync")
        await client.append("orders", 2)
        await client.append("orders", 1, size=900)
        await client.append("orders", 1, size=900)

    assert world.live(scenario, end="kill")
    left = world.after("keep")
    (path,) = wal_files(left.fs)
    torn, behind = appended(left.fs, path, 1, 3), appended(left.fs, path, 1, 4)
    known = [f for f in frames_of(left.fs, path) if f.type == FrameType.SYNCED]
    if any(f.offset > torn.offset for f in known):
        zero(left.fs, path, *next((f.offset, f.end) for f in known if f.offset > torn.offset))
    zero(left.fs, path, torn.offset, torn.offset + 100)
    views = see(left)
    assert sorted(views["orders"].records) == [1, 2]
    aside = left.fs.tree()[f"{path}.{torn.offset}.cut"]
    assert aside is not None
    content = left.fs.tree()[path]
    assert content is not None
    at = behind.offset
    rest = aside[at - torn.offset :]
    assert frames.scan_window(rest, at, file_end=at + len(rest), salt=salt_of(content)).frames[0].seq == 4


def test_a_missing_file_in_the_middle_of_the_log_is_refused() -> None:
    world = written(History(), appends=80)
    files = wal_files(world.fs)
    assert len(files) > 2
    world.fs.unlink(files[1])
    with pytest.raises((DataDirError, Damage), match="gap"):
        see(world)


def test_a_missing_first_file_is_refused_when_no_snapshot_covers_it() -> None:
    world = written(History(), appends=40)
    world.fs.unlink(wal_files(world.fs)[0])
    with pytest.raises(DataDirError, match="does not reach back"):
        see(world)


def test_a_missing_file_does_no_harm_when_the_snapshots_are_past_it_and_else_refuses_the_start() -> None:
    world = written(History(), appends=40, checkpoint=True)
    whole = see(world.after("kill"))
    other = world.after("kill")
    first, last = wal_files(world.fs)
    world.fs.unlink(first)
    assert see(world) == whole
    other.fs.unlink(last)
    with pytest.raises(DataDirError, match="gap"):
        see(other)


@pytest.mark.parametrize("kinds", [("data",), ("idx",), ("data", "idx")])
def test_a_missing_segment_file_is_a_corrupt_hole_or_made_anew(kinds: tuple[str, ...]) -> None:
    """Of the index nothing is lost; what was in the records' own file is, and readers are told."""
    world = written(History(), appends=40, checkpoint=True)
    whole = see(world.after("kill"))
    for kind in kinds:
        world.fs.unlink(segment_file(2, 1, kind))
    world.fs.sync_dir(DataDir("/data").topic_dir(2))
    views = see(world)
    assert views["orders"] == whole["orders"]
    if "data" not in kinds:
        assert views["events"] == whole["events"]
        return
    assert views["events"].gaps == [(1, 1024, "mixed")], "its ceiling was lost with the machine"
    assert (views["events"].head, views["events"].count) == (whole["events"].head, 0)
    for end in ("kill", "drop"):
        assert see(world.after("drop" if end == "drop" else "kill")) == views


def test_a_damaged_newest_snapshot_falls_back_to_the_one_before() -> None:
    world = written(History(), appends=40, checkpoint=True)
    whole = see(world.after("kill"))
    newest = max(path for path in world.fs.tree() if path.startswith("/data/meta/snapshot"))
    world.fs.flip_bit(newest, 40, 0)
    assert see(world) == whole


def test_two_damaged_snapshots_do_no_harm_while_the_log_reaches_back_to_its_start() -> None:
    world = written(History(), checkpoint=True)
    whole = see(world.after("kill"))
    for path in [path for path in world.fs.tree() if path.startswith("/data/meta/snapshot")]:
        world.fs.flip_bit(path, 40, 0)
    assert see(world) == whole


def cut_log() -> World:
    """The log was cut; there is a topic without a record besides."""
    history = History()
    world = World(config=settings())

    async def scenario(life: Life) -> None:
        client = Client(life.engine, history)
        await client.create("empty", durability="fsync")
        await client.create("capped", durability="fsync", cap_records=4)
        await client.create("whole", durability="disk")
        for _ in range(4):
            for _ in range(20):
                await client.append("capped", 1, size=900)
            await client.append("whole", 2)
            await life.compactor.checkpoint()
        await client.append("whole", 1)

    assert world.live(scenario, end="kill")
    left = world.after("keep")
    assert not wal_files(left.fs)[0].endswith("0" * 20 + ".log"), "no file was dropped"
    Oracle(history).judge(see(left.after("kill")), "machine", now_ms=0)
    return left


def snapshots(world: World) -> list[str]:
    return [path for path in world.fs.tree() if path.startswith("/data/meta/") and path.endswith(".cbor")]


@pytest.mark.parametrize("harm", ["flipped", "empty", "missing"])
def test_two_bad_snapshots_are_made_up_for_by_the_one_in_reserve(harm: str) -> None:
    left = cut_log()
    whole = see(left.after("kill"))
    *both, reserve = sorted(snapshots(left), key=lambda path: "reserve" in path)
    assert (len(both), reserve) == (2, "/data/meta/reserve.cbor")
    for path in both:
        if harm == "missing":
            left.fs.unlink(path)
            continue
        left.fs.flip_bit(path, 40, 0)
        if harm == "empty":
            handle = left.fs.open(path)
            handle.truncate(0)
            handle.fdatasync()
            handle.close()
    left.fs.sync_dir("/data/meta")
    assert see(left) == whole
    again = left.after("drop")
    assert see(again) == whole
    assert len([path for path in again.fs.tree() if path.endswith(".damaged")]) == (0 if harm == "missing" else 2)
    for path in ("/data/meta/reserve.cbor",):  # by now it is not needed any more
        again.fs.flip_bit(path, 40, 0)
    assert see(again) == whole


def test_without_any_snapshot_a_cut_log_is_refused_and_salvage_takes_the_manifests() -> None:
    left = cut_log()
    whole = see(left.after("kill"))
    for path in snapshots(left):
        left.fs.flip_bit(path, 40, 0)
    with pytest.raises(DataDirError, match=r"no snapshot can be read.*does not reach back.*TOPICS_RECOVERY=salvage"):
        see(left)
    left.settings = settings(recovery="salvage")
    newest = max(view.epoch for view in whole.values())
    del whole["empty"]
    assert see(left) == whole
    assert any(event["event"] == "rebuilt_from_manifests" for event in left.events)
    left.settings = settings()
    again = left.after("drop")
    assert see(again) == whole

    async def make_again(life: Life) -> None:
        await Client(life.engine, History()).create("empty", durability="fsync")
        assert life.engine.registry.topic("empty").id > newest + 1000

    assert again.live(make_again, end="kill")


@pytest.mark.parametrize("operations", range(1, 60, 3))
def test_a_crash_while_salvage_takes_the_manifests_changes_nothing(operations: int) -> None:
    left = cut_log()
    whole = see(left.after("kill"))
    del whole["empty"]
    for path in snapshots(left):
        left.fs.flip_bit(path, 40, 0)
    left.settings = settings(recovery="salvage")
    left.fs.crash_at = left.fs.mutations + operations

    async def nothing(life: Life) -> None:
        pass

    left.live(nothing, end="kill")
    ends: tuple[End, ...] = ("drop", "keep", "reorder")
    for end in ends:
        assert see(left.after(end)) == whole


def test_a_frame_of_an_unknown_type_is_refused_by_its_number() -> None:
    world = written(History())
    (path,) = wal_files(world.fs)
    end = frames_of(world.fs, path)[-1].end
    content = world.fs.tree()[path]
    assert content is not None
    unknown = frames.encode_control(77, {})  # type: ignore[arg-type]
    overwrite(world.fs, path, end, sealed_for(content, unknown, end))
    with pytest.raises(UnknownFrameType, match="type 77"):
        see(world)


def test_a_record_that_is_damaged_behind_the_snapshot_is_a_corrupt_hole_for_its_readers() -> None:
    """Nobody replays it, so it is found when it is read; the others of its segment are served."""
    history = History()
    world = written(history, checkpoint=True)
    whole = see(world.after("kill"))
    path = segment_file(2, 1, "data")
    content = world.fs.tree()[path]
    assert content is not None
    world.fs.flip_bit(path, content.index(b'{"n":%d,' % whole["events"].records[4].data) + 60, 0)
    views = see(world)
    assert corrupt(views["events"]) == [(4, 4)]
    assert set(views["events"].records) == set(whole["events"].records) - {4}
    assert views["orders"] == whole["orders"]


def test_a_bit_in_the_log_behind_the_snapshot_hurts_nobody() -> None:
    """Its records are in segments."""
    world = written(History(), checkpoint=True)
    whole = see(world.after("kill"))
    (path,) = wal_files(world.fs)
    world.fs.flip_bit(path, appended(world.fs, path, 2, 4).offset + 60, 0)
    assert see(world) == whole


def test_appends_go_on_behind_what_was_salvaged() -> None:
    history = History()
    world = written(history)
    (path,) = wal_files(world.fs)
    world.fs.flip_bit(path, appended(world.fs, path, 2, 4).offset + 60, 0)
    salvaged(world)
    again = world.after("kill")
    again.settings = settings()

    async def go_on(life: Life) -> None:
        client = Client(life.engine, History())
        result = await client.append("events", 30, size=900)
        assert result is not None
        try:
            await life.compactor.checkpoint()
        except ApiError as error:
            raise AssertionError(error) from error

    assert again.live(go_on, end="kill")
    assert len(see(again.after("drop"))["events"].records) == 35


@pytest.mark.slow
def test_a_crash_anywhere_in_a_salvage_changes_nothing_about_its_outcome() -> None:
    world = written(History())
    (path,) = wal_files(world.fs)
    world.fs.flip_bit(path, appended(world.fs, path, 1, 7).offset + 50, 1)
    world.settings = settings(recovery="salvage")
    wrecks = wrecks_of(world, lambda: 0)
    views = see(world)
    assert corrupt(views["orders"]) == [(7, 8)]
    for wreck in wrecks[:: 1 if EVERYTHING else 3]:
        for end, seed in all_ends(wreck.point, 2):
            again = wreck.world(end, seed, world.settings)
            seen = see(again)
            assert seen["orders"] == views["orders"], f"{wreck} {end}/{seed}"
            assert seen["events"].records == views["events"].records, f"{wreck} {end}/{seed}"
            assert see(again.after("drop")) == seen


def test_salvage_of_a_file_that_ends_before_replay_begins_comes_to_an_end() -> None:
    """Found by the simulator: it copied what was in front of the range from behind the file's end, for ever."""
    world = written(History(), appends=40, checkpoint=True)
    whole = see(world.after("kill"))
    handle = world.fs.open(wal_files(world.fs)[-1])
    handle.truncate(100)
    handle.fdatasync()
    handle.close()
    world.settings = replace(world.settings, recovery="salvage")
    views = see(world)
    assert views.keys() == whole.keys()
    world.settings = replace(world.settings, recovery="strict")
    assert see(world) == views


def test_a_hole_that_is_damaged_is_made_again_up_to_the_ceiling_though_the_machine_stayed_up() -> None:
    """A recovery has given up seqs behind the head, and the head was shown above them; then the process is killed, and
    a bit has changed in the frame of the hole."""
    world = World(config=settings())

    async def scenario(life: Life) -> None:
        client = Client(life.engine, History())
        await client.create("t", durability="disk")
        await client.append("t", 3, size=0)
        await trio.sleep(0.1)

    assert world.live(scenario, end="kill")
    world = world.after("drop")

    async def rest(life: Life) -> None:
        await trio.sleep(0.5)

    assert world.live(rest, end="kill")
    world = world.after("kill")
    before = see(world.after("kill"))["t"].head
    assert before > 1000
    path = wal_files(world.fs)[-1]
    world.fs.flip_bit(path, the(world.fs, path, FrameType.HOLE).offset + 40, 0)
    assert salvaged(world)["t"].head >= before


# ----------------------------------------------------------------- ranges without room for the verdict


MANY = 12
CLASSES = ("fsync", "disk", "memory", "ephemeral")


def small_frames(*, checkpoint: bool = False) -> World:
    """A machine with many topics in one shard, of which the log says nothing behind a small record of each."""
    world = World(config=settings(wal_file_bytes=64 << 10))

    async def scenario(life: Life) -> None:
        client = Client(life.engine, History())
        for i in range(MANY):
            await client.create(f"t{i}", durability=CLASSES[i % 4])
        if checkpoint:
            await life.compactor.checkpoint()
            await life.compactor.checkpoint()
        for _ in range(2):
            for i in range(MANY):
                await client.append(f"t{i}", 1, size=0)
            await trio.sleep(0.1)

    assert world.live(scenario, end="kill")
    return world.after("drop")


def damage_last_record(world: World, name: str, whole: dict[str, View]) -> int:
    """Flip a bit of the last record of a topic. Returns its seq."""
    (path,) = wal_files(world.fs)
    seq = max(whole[name].records)
    frame = appended(world.fs, path, whole[name].epoch, seq)
    assert frame.end - frame.offset < 80, "no small frame"
    world.fs.flip_bit(path, frame.offset + 50, 1)
    return seq


def judge_short(views: dict[str, View], whole: dict[str, View], name: str, seq: int) -> None:
    """One record is gone and announced; of the other topics nothing is gone."""
    assert views[name].gap_of(seq) == "corrupt"
    for other, view in whole.items():
        expected = {at: record for at, record in view.records.items() if (other, at) != (name, seq)}
        assert views[other].records == expected, other
        assert views[other].head >= view.head


@pytest.mark.parametrize("name", ["t0", "t4", "t5", "t6"])
def test_a_range_without_room_for_the_verdict_is_salvaged_and_costs_its_record_only(name: str) -> None:
    world = small_frames()
    whole = see(world.after("kill"))
    seq = damage_last_record(world, name, whole)
    with pytest.raises(Damage):
        see(world.after("kill"))
    judge_short(salvaged(world), whole, name, seq)


def test_two_ranges_without_room_for_the_verdict_are_both_announced() -> None:
    world = small_frames()
    whole = see(world.after("kill"))
    (path,) = wal_files(world.fs)
    epoch = whole["t4"].epoch
    for frame in [appended(world.fs, path, epoch, seq) for seq in (1, 2)]:
        world.fs.flip_bit(path, frame.offset + 50, 1)
    views = salvaged(world)
    assert views["t4"].records == {}
    assert {views["t4"].gap_of(1), views["t4"].gap_of(2)} == {"corrupt"}
    for other in whole.keys() - {"t4"}:
        assert views[other].records == whole[other].records


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_range_without_room_for_the_verdict_is_salvaged_where_the_snapshots_are_bad_too(checkpoint: bool) -> None:
    world = small_frames(checkpoint=checkpoint)
    whole = see(world.after("kill"))
    seq = damage_last_record(world, "t4", whole)
    for path in snapshots(world):
        world.fs.flip_bit(path, 40, 0)
    judge_short(salvaged(world), whole, "t4", seq)


@pytest.mark.parametrize("stops", [False, True])
def test_no_seq_of_a_range_without_room_for_the_verdict_is_given_out_again(stops: bool) -> None:
    world = small_frames()
    whole = see(world.after("kill"))
    seq = damage_last_record(world, "t4", whole)
    views = salvaged(world)
    again = world.after("kill")
    again.settings = settings()
    given: list[int] = []

    async def go_on(life: Life) -> None:
        result = await Client(life.engine, History()).append("t4", 3)
        assert result is not None
        given.append(result.first_seq)
        await trio.sleep(0.1)

    assert again.live(go_on, end="stop" if stops else "kill")
    assert given[0] > views["t4"].head >= seq
    later = see(again.after("drop"))
    assert set(later["t4"].records) == {*views["t4"].records, given[0], given[0] + 1, given[0] + 2}
    assert later["t4"].gap_of(seq) == "corrupt"


def test_a_crash_anywhere_in_the_salvage_of_a_range_without_room_changes_nothing_about_its_outcome() -> None:
    world = small_frames()
    whole = see(world.after("kill"))
    seq = damage_last_record(world, "t4", whole)
    world.settings = replace(world.settings, recovery="salvage")
    wrecks = wrecks_of(world, lambda: 0)
    judge_short(see(world), whole, "t4", seq)
    assert len(wrecks) > 20
    for wreck in wrecks[:: 1 if EVERYTHING else 5]:
        for end, seed in all_ends(wreck.point, 1):
            again = wreck.world(end, seed, world.settings)
            seen = see(again)
            judge_short(seen, whole, "t4", seq)
            strict = again.after("drop")
            strict.settings = settings()
            assert see(strict) == seen, f"{wreck} {end}/{seed}"


def test_every_length_that_a_range_can_have_has_a_filler() -> None:
    """No frame is shorter than a mark of a checkpoint."""
    shortest = len(frames.encode_control(FrameType.CHECKPOINT_MARK, {}))
    for length in range(shortest, 400):
        data = bare_filler(1, length)
        assert data is not None, length
        assert len(data) == length
        scan = frames.scan_window(data.sealed(7, 32), 32, file_end=32 + length, salt=7)
        payload = frames.control_payload(data.sealed(7, 32), 32, scan.frames[0])
        assert payload.keys() <= {"", "-", "--"}, length
    for length in range(2 * shortest, 400):
        data = bare_filler(2, length)
        assert data is not None, length
        assert len(data) == length
