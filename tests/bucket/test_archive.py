"""The archive writes the log to the bucket, whole and in order, after any faults of the store."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.bucket.archived import (
    archived,
    bucket_settings,
    check_log,
    local_log,
    log_in,
    owner_of,
    restored,
    rounds_in,
)
from tests.bucket.simulated_objects import SimFault, SimObjects, random_faults
from tests.engine.life import living
from tests.everything import slow_after
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from topics.bucket import archive as archive_module
from topics.bucket import log_reader, place_search
from topics.bucket.object_names import round_name
from topics.bucket.ownership.lease import Lease
from topics.bucket.ownership.owner_object import BucketRefused
from topics.model import RouterPatch

pytestmark = pytest.mark.trio


async def test_what_is_synced_is_in_the_bucket_and_a_clean_stop_gives_it_up(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, fs=fs) as life:
        await life.put("a", durability="disk")
        await life.append("a", *range(10))
        await trio.sleep(3)
        check_log(objects, fs)
        assert (owner_of(objects).state, owner_of(objects).epoch) == ("held", 1)
        await life.append("a", *range(10))
    check_log(objects, fs)
    assert (owner_of(objects).state, owner_of(objects).round) == ("free", len(rounds_in(objects)))


async def test_an_idle_daemon_writes_no_rounds(autojump_clock: Any) -> None:
    objects = SimObjects()
    async with archived(objects) as life:
        await life.put("a")
        await trio.sleep(10)
        before = len(objects.calls)
        await trio.sleep(600)
        assert len(objects.calls) == before


async def test_a_killed_daemon_goes_on_in_the_same_history(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    for epoch in range(1, 5):
        async with archived(objects, fs=fs, clean=False) as life:
            await life.put("a", durability="fsync")
            await life.append("a", epoch)
            await trio.sleep(0.3 * epoch)
        assert owner_of(objects).epoch == epoch
        fs = fs.after_process_kill()
    async with archived(objects, fs=fs):
        pass
    check_log(objects, fs)
    assert sum(found.head.begins_history for found in rounds_in(objects)) == 1


async def test_new_topics_have_ids_of_their_epoch(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    for epoch, name in ((1, "a"), (2, "b")):
        async with archived(objects, fs=fs) as life:
            await life.put(name)
            await life.append(name, epoch)
            assert life.engine.registry.topics[name].id == epoch << 32
    async with living(bucket_settings(), fs=fs) as plain:
        assert {name: await plain.seqs(name) for name in ("a", "b")} == {"a": [1], "b": [1]}


@pytest.mark.parametrize("fault", [SimFault.AFTER, SimFault.BEFORE, SimFault.LATE, SimFault.THROTTLED, SimFault.HANG])
@pytest.mark.parametrize("share", [1.0, 0.4])
async def test_puts_whose_answers_are_lost_late_or_errors_are_decided(
    fault: SimFault, share: float, autojump_clock: Any
) -> None:
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, fs=fs) as life:
        await life.put("a")
        for attempt in range(6):  # a store with eight calls that hang is not asked any more
            left = iter([fault])
            chosen = random_faults(attempt, share, [fault])
            objects.faults = lambda op, name, left=left, chosen=chosen: (  # type: ignore[misc]
                next(left, None) if op.startswith("put") and chosen(op, name) else None
            )
            await life.append("a", *range(5))
            await life.archived()
        objects.faults = lambda op, name: None
        objects.arrive()
        check_log(objects, fs, whole=False)
    check_log(objects, fs)
    assert {found.head.epoch for found in rounds_in(objects)} == {1}


@pytest.mark.parametrize("seed", slow_after(2, range(12)))
async def test_a_bad_store_and_kills_lose_nothing(seed: int, autojump_clock: Any) -> None:
    objects, fs = SimObjects(seed), SimFs()
    async with archived(objects, fs=fs, clean=False) as life:
        await life.put("a", durability="fsync")
        await life.archived()
    kinds = [fault for fault in SimFault if fault not in (SimFault.DENIED, SimFault.WRONG)]
    for number in range(6):
        fs = fs.after_process_kill()
        objects.faults = random_faults(seed * 100 + number, 0.35, kinds)
        async with archived(objects, fs=fs, clean=False, settle=False) as life:
            for i in range(4):
                await life.append("a", i)
                await trio.sleep(0.1 + 0.7 * ((seed + number + i) % 4))
    objects.faults = lambda op, name: None
    objects.arrive()
    fs = fs.after_process_kill()
    async with archived(objects, fs=fs):
        pass
    check_log(objects, fs)


async def test_a_round_whose_note_was_lost_is_taken_over(autojump_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    objects, fs = SimObjects(), SimFs()
    monkeypatch.setattr(archive_module, "NOTE_S", 10**6)
    async with archived(objects, fs=fs, clean=False) as life:
        await life.put("a", durability="fsync")
        for i in range(5):
            await life.append("a", i)
            await life.archived()
    written = len(rounds_in(objects))
    fs = fs.after_process_kill()
    async with archived(objects, fs=fs) as life:
        assert life.archive.epoch == 2
        assert life.archive.place.files.keys() == local_log(fs).keys()
        await life.archived()
        assert rounds_in(objects)[written].head.epoch == 2
    check_log(objects, fs)


async def test_a_late_put_of_the_killed_process_is_taken_over(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, fs=fs, clean=False) as life:
        await life.put("a", durability="fsync")
        await life.archived()
        objects.faults = lambda op, name: SimFault.LATE if op == "put_new" else None
        await life.append("a", 1)
        await trio.sleep(1.2)
    fs = fs.after_process_kill()

    def arrive_behind_the_listing(op: str, name: str) -> None:
        if (op, name) == ("put_if", "owner"):
            objects.arrive()

    objects.faults = lambda op, name: None
    objects.entered = arrive_behind_the_listing
    async with archived(objects, fs=fs) as life:
        await life.archived()
    check_log(objects, fs)
    assert sum(found.head.begins_history for found in rounds_in(objects)) == 1


async def test_large_cuts_are_divided_and_only_the_last_part_ends_the_cut(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "ROUND_BYTES", 1000)
    monkeypatch.setattr(log_reader.divided, "__defaults__", (1000,))
    objects, fs = SimObjects(), SimFs()
    config = bucket_settings(wal_file_bytes=65536)
    async with archived(objects, config, fs=fs) as life:
        await life.put("a")
        await life.put("b")
        for name in "ab":
            await life.append(name, *["x" * 5000] * 40)
        await life.archived()
        check_log(objects, fs)
    heads = [found.head for found in rounds_in(objects)]
    assert len(heads) > 200
    assert {head.body_bytes for head in heads[1:] if not head.ends_cut} == {1000}
    assert heads[-1].ends_cut
    assert len({run.ordinal for head in heads for run in head.runs}) > 3


async def test_after_a_kill_within_a_cut_the_empty_round_of_the_epoch_ends_no_cut(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader.divided, "__defaults__", (1000,))
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, fs=fs, clean=False) as life:
        await life.put("a", durability="fsync")
        await life.archived()
        last = life.archive.place.number
        objects.faults = lambda op, name: SimFault.BEFORE if name == round_name(last + 3) else None
        await life.append("a", "x" * 5000)
        await trio.sleep(5)
    objects.faults = lambda op, name: None
    fs = fs.after_process_kill()
    async with archived(objects, fs=fs) as life:
        await life.archived()
    check_log(objects, fs)
    heads = [found.head for found in rounds_in(objects)]
    assert [head.ends_cut for head in heads[last - 1 : last + 3]] == [True, False, False, False]
    assert [(head.epoch, bool(head.runs)) for head in heads[last + 1 : last + 4]] == [(1, True), (2, False), (2, True)]
    assert heads[-1].ends_cut


@pytest.mark.parametrize("seconds", [50, pytest.param(3600, marks=pytest.mark.slow)])
async def test_the_bucket_away_under_load_and_back(seconds: int, autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, fs=fs) as life:
        await life.put("a")
        await life.archived()
        objects.faults = lambda op, name: SimFault.BEFORE
        count = 50 if seconds < 3600 else 600
        for i in range(count):
            await life.append("a", i)
            if i % 20 == 10:
                await life.compactor.checkpoint()
            await trio.sleep(seconds / count)
        assert life.archive.look().state == "waiting"
        assert life.archive.look().lag_ms > 800 * seconds
        assert life.archive.look().lag_bytes > 1000
        objects.faults = lambda op, name: None
        await trio.sleep(60)
        assert (life.archive.look().state, life.archive.look().lag_ms) == ("working", 0)
        check_log(objects, fs)


async def test_the_bucket_away_at_the_start_stops_nothing(autojump_clock: Any) -> None:
    objects, fs = SimObjects(faults=lambda op, name: SimFault.BEFORE), SimFs()
    async with archived(objects, fs=fs) as life:
        await life.put("a")
        await life.append("a", 1)
        assert life.archive.look().state == "waiting"
        objects.faults = lambda op, name: None
        await trio.sleep(60)
        check_log(objects, fs)
        assert life.engine.registry.next_topic_id >= 1 << 32


async def test_files_of_the_log_stay_until_the_note_says_that_they_are_in_the_bucket(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    config = bucket_settings(wal_file_bytes=65536, wal_shards=1)
    async with archived(objects, config, fs=fs) as life:
        await life.put("a")
        await life.archived()
        objects.faults = lambda op, name: SimFault.BEFORE
        for _ in range(8):
            await life.append("a", *["x" * 5000] * 12)
            await life.compactor.checkpoint()
        assert len(local_log(fs)) >= 8
        objects.faults = lambda op, name: None
        await trio.sleep(60)
        await life.append("a", 1)
        await trio.sleep(20)
        await life.compactor.checkpoint()
        await life.compactor.checkpoint()
        assert len(local_log(fs)) <= 3
        first = min(ordinal for _, ordinal in local_log(fs))
        assert life.archive.round_of_file(0, first) > 1


async def test_beyond_the_backlog_the_place_is_given_up_and_a_history_begins(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    config = bucket_settings(wal_file_bytes=65536, wal_shards=1, bucket_backlog_bytes=200_000)
    async with archived(objects, config, fs=fs) as life:
        await life.put("a")
        await life.archived()
        assert life.archive.look().backlog_limit_bytes == 200_000
        objects.faults = lambda op, name: SimFault.BEFORE
        for _ in range(8):
            await life.append("a", *["x" * 5000] * 12)
            await life.compactor.checkpoint()
            await trio.sleep(2)
        assert len(local_log(fs)) <= 3, "they are not kept any more"
        objects.faults = lambda op, name: None
        await trio.sleep(120)
        heads = [found.head for found in rounds_in(objects)]
        assert [head.number for head in heads if head.begins_history] == [1, life.archive.history_begun_at]
        assert (life.archive.epoch, heads[-1].epoch) == (2, 2)
        check_log(objects, fs, whole=False)


async def test_a_place_that_was_given_up_stays_given_up_over_a_kill(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    config = bucket_settings(wal_file_bytes=65536, wal_shards=1, bucket_backlog_bytes=200_000)
    async with archived(objects, config, fs=fs, clean=False) as life:
        await life.put("a", durability="fsync")
        await life.archived()
        objects.faults = lambda op, name: SimFault.BEFORE
        for _ in range(8):
            await life.append("a", *["x" * 5000] * 12)
            await life.compactor.checkpoint()
            await trio.sleep(2)
    objects.faults = lambda op, name: None
    fs = fs.after_process_kill()
    async with archived(objects, config, fs=fs) as life:
        await life.archived()
        assert [found.head.begins_history for found in rounds_in(objects)].count(True) == 2


async def test_another_directory_is_refused_until_it_takes(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(archive_module.log, "error", lambda event, *, consequence, **_: told.append(consequence))
    objects, fs, other = SimObjects(), SimFs(), SimFs()
    async with archived(objects, fs=fs, clean=False) as life:
        await life.put("a", durability="fsync")
        await life.archived()
    with pytest.RaisesGroup(pytest.RaisesExc(BucketRefused, match="owned by another data directory")):
        async with archived(objects, fs=other):
            raise AssertionError("it has started")
    assert told == ["the start is refused"]
    other = other.after_process_kill()
    async with archived(objects, bucket_settings(bucket_take=True), fs=other) as life:
        await life.put("b")
        await life.archived()
        assert life.archive.epoch == 2
    check_log(objects, other)
    assert next(found.head.number for found in rounds_in(objects) if found.head.begins_history) == 1
    with pytest.RaisesGroup(pytest.RaisesExc(BucketRefused, match="has written to the bucket since")):
        async with archived(objects, fs=fs.after_process_kill()):
            raise AssertionError("it has started")


async def test_a_setting_that_was_left_in_the_environment_is_warned_of(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(place_search.log, "warning", lambda event, **_: warned.append(event))
    objects, fs, other = SimObjects(), SimFs(), SimFs()
    for disk, take, unneeded in ((fs, False, False), (fs, True, True), (other, True, False), (other, True, True)):
        warned.clear()
        async with archived(objects, bucket_settings(bucket_take=take), fs=disk, clean=False) as life:
            await life.put(f"t{len(objects.objects)}")
            await life.archived()
        assert warned == ["bucket_take_unneeded"] * unneeded


async def test_the_former_owner_writes_no_round_behind_the_one_that_took(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, fs, other = SimObjects(), SimFs(), SimFs()
    async with archived(objects, fs=fs, clean=False) as life:
        await life.put("a", durability="fsync")
        await life.archived()
        async with archived(objects, bucket_settings(bucket_take=True), fs=other) as second:
            await second.put("b")
            await second.archived()
            await life.append("a", 1)
            told: list[str] = []
            monkeypatch.setattr(
                archive_module.log, "error", lambda event, *, consequence, **_: told.append(consequence)
            )
            await trio.sleep(10)
            assert told == ["the daemon works on; nothing is archived meanwhile"]
            assert life.archive.look().state == "refused"
            assert "owned by another" in life.archive.look().problem
            assert await life.seqs("a") == [1], "the daemon works on"
        check_log(objects, other)
        assert len({found.head.nonce for found in rounds_in(objects)}) == 2


async def test_a_taker_goes_on_behind_a_late_round_of_the_former_owner(autojump_clock: Any) -> None:
    objects, fs, other = SimObjects(), SimFs(), SimFs()
    async with archived(objects, fs=fs, clean=False) as life:
        await life.put("a", durability="fsync")
        await life.archived()
        objects.faults = lambda op, name: SimFault.LATE if op == "put_new" else None
        await life.append("a", 1)
        await trio.sleep(1.2)
    objects.faults = lambda op, name: None
    objects.entered = lambda op, name: objects.arrive() if (op, name) == ("put_if", "owner") else None
    async with archived(objects, bucket_settings(bucket_take=True), fs=other) as life:
        await life.archived()
    check_log(objects, other)


async def test_another_bucket_is_refused_until_it_is_taken(autojump_clock: Any) -> None:
    fs = SimFs()
    async with archived(SimObjects(), fs=fs) as life:
        await life.put("a")
    empty, other = SimObjects(), SimObjects()
    with pytest.RaisesGroup(pytest.RaisesExc(BucketRefused, match="there is no bucket")):
        async with archived(empty, fs=fs):
            raise AssertionError("it has started")
    assert empty.objects == {}, "the URL may be wrong, or a disk not mounted"
    async with archived(other):
        pass
    with pytest.RaisesGroup(pytest.RaisesExc(BucketRefused, match="another one")):
        async with archived(other, fs=fs.after_process_kill()):
            raise AssertionError("it has started")
    async with archived(empty, bucket_settings(bucket_take=True), fs=fs.after_process_kill()) as life:
        await life.archived()
    assert rounds_in(empty)[0].head.begins_history


async def test_a_bucket_that_went_back_is_refused(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, fs=fs) as life:
        await life.put("a")
    objects.delete([max(name for name in objects.objects if name.startswith("rounds/"))])
    with pytest.RaisesGroup(pytest.RaisesExc(BucketRefused, match="diverged")):
        async with archived(objects, fs=fs):
            raise AssertionError("it has started")


async def test_a_directory_that_went_back_is_refused(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, fs=fs, clean=False) as life:
        await life.put("a", durability="fsync")
        await life.archived()
    earlier = fs.after_process_kill()
    async with archived(objects, fs=fs.after_process_kill()) as life:
        await life.append("a", 1)
    with pytest.RaisesGroup(pytest.RaisesExc(BucketRefused, match="diverged")):
        async with archived(objects, fs=earlier):
            raise AssertionError("it has started")


async def test_a_store_that_denies_refuses_the_start(autojump_clock: Any) -> None:
    objects = SimObjects(faults=lambda op, name: SimFault.DENIED)
    with pytest.RaisesGroup(pytest.RaisesExc(BucketRefused)):
        async with archived(objects):
            raise AssertionError("it has started")


async def test_another_number_of_shards_begins_a_history(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, fs=fs) as life:
        await life.put("a")
        await life.append("a", 1)
    async with archived(objects, bucket_settings(wal_shards=3), fs=fs) as life:
        await life.archived()
        rounds = rounds_in(objects)
        assert rounds[-1].head.shards == 3
        assert [found.head.begins_history for found in rounds].count(True) == 2
        assert {shard for shard, _ in log_in(rounds)} == {0, 1, 2}


async def test_a_copy_of_a_directory_is_another_directory(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, fs=fs, clean=False) as life:
        await life.put("a", durability="fsync")
        await life.archived()
        dir_id = owner_of(objects).dir
    fs = fs.after_process_kill()
    with fs.open("/data/RESTORED", create=True) as handle:
        handle.fdatasync()
    fs.sync_dir("/data")
    with pytest.RaisesGroup(pytest.RaisesExc(BucketRefused, match="owned by another")):
        async with archived(objects, fs=fs):
            raise AssertionError("it has started")
    async with archived(objects, bucket_settings(bucket_take=True), fs=fs.after_process_kill()) as life:
        await life.archived()
        assert owner_of(objects).dir != dir_id
        assert life.archive.history_begun_at > 1


@pytest.mark.parametrize("seed", slow_after(1, range(3)))
async def test_every_end_of_a_cut_is_a_moment_copies_have_their_sources(seed: int, autojump_clock: Any) -> None:
    """The log up to each cut is recovered as it is: no copy of a router lacks its source."""
    objects, fs = SimObjects(seed), SimFs()
    config = bucket_settings(bucket_round_ms=50, wal_file_bytes=1 << 20)
    async with archived(objects, config, fs=fs) as life:
        for name in ("a", "b", "c"):
            await life.put(name, durability="disk")
        engine = life.engine
        shards = {name: engine.registry.topics[name].shard for name in ("a", "b", "c")}
        assert len(set(shards.values())) == 2
        await make_router(life, "a", "b")
        await make_router(life, "b", "c")
        for i in range(40):
            await life.append("a", i)
            await trio.sleep(0.01 * ((seed + i) % 5))
        await life.archived()
    rounds = rounds_in(objects)
    ends = [i for i, found in enumerate(rounds, 1) if found.head.ends_cut]
    assert len(ends) > 5
    most = 0
    for end in ends:
        copy = restored(rounds[:end])
        async with living(config, fs=copy, clock=SimClock(), clean=False) as plain:
            await trio.sleep(1)
            known = plain.engine.registry.topics
            found = {name: (await plain.all(name)) if name in known else ([], []) for name in ("a", "b", "c")}
            datas = {name: [record["data"] for record in rows] for name, (rows, _) in found.items()}
            for name, (_, gaps) in found.items():
                assert all(reason != "corrupt" for *_, reason in gaps), (name, gaps)
            assert datas["b"] == datas["a"][: len(datas["b"])]
            assert datas["c"] == datas["b"][: len(datas["c"])]
            most = max(most, len(datas["c"]))
    assert most == 40


async def make_router(life: Any, source: str, dest: str) -> None:
    await life.engine.routers.put(f"{source}-{dest}", RouterPatch(source=source, dest=dest, start="earliest"))


@pytest.mark.parametrize("epoch", [1 << 24, 1 << 40, 10**30])
async def test_an_epoch_that_cannot_be_is_refused_and_topics_go_on_getting_ids(epoch: int, autojump_clock: Any) -> None:
    objects = SimObjects()
    async with archived(objects):
        pass
    before = objects.objects["owner"]
    objects.put_if("owner", before.replace(b'"epoch": 1,', b'"epoch": %d,' % epoch), objects.head("owner").etag)
    assert objects.objects["owner"] != before
    async with archived(objects, settle=False, clean=False) as life:
        await trio.sleep(10)
        assert life.archive.state == "refused"
        assert "damaged" in life.archive.problem
        await life.put("a")
        await life.append("a", 1)


async def test_an_owner_that_is_too_large_is_refused(autojump_clock: Any) -> None:
    objects = SimObjects()
    async with archived(objects):
        pass
    objects.put_if("owner", b"{" + b" " * (1 << 20), objects.head("owner").etag)
    async with archived(objects, settle=False, clean=False) as life:
        await trio.sleep(10)
        assert life.archive.state == "refused"
        assert "owner" in life.archive.problem


async def test_an_archive_that_has_lost_its_lease_says_that_the_daemon_ends(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, told = SimClock(), list[str]()
    monkeypatch.setattr(archive_module.log, "error", lambda event, *, consequence, **_: told.append(consequence))
    async with archived(SimObjects(), clock=clock, clean=False) as life:
        await life.put("a", durability="fsync")
        await life.archived()
        lease = Lease(3000, clock.boottime_ms(), clock.boottime_ms)
        monkeypatch.setattr(life.archive._ownership, "lease", lease)
        lease.lose("another daemon has taken the bucket")
        await life.append("a", 1)
        monkeypatch.setattr(life.archive, "_given_up", True)
        await trio.sleep(10)
    assert len(told) == 1
    assert told[0].endswith("and ends")
