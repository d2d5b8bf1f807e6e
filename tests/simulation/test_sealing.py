"""Limits of segments for each topic, and sealing when somebody asks for it (`docs/spec/consumers.md` section 7). What a
crash leaves is asked by the row `seal-on-demand` of the crash table."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
import trio

from tests.simulation.disk import Fault, Op
from tests.simulation.model import Client
from tests.simulation.segment_lives import exactly
from tests.simulation.test_crash_sweep import see
from tests.simulation.test_recovery_rules import lived, lives_on
from tests.simulation.test_unguarded_rules import held
from tests.simulation.world import Life
from topics.errors import ApiError
from topics.storage.maintenance.compactor import LOCK_WAIT_S, REST
from topics.storage.segments import topic_segments
from topics.storage.segments.topic_segments import Segment

LIMITS = ("segment_max_events", "segment_max_bytes", "segment_max_age_ms")


def segments(life: Life, name: str) -> list[tuple[int, int, bool]]:
    """First seq and slots of each segment of a topic, and whether it is sealed."""
    found = []
    for span in life.engine.registry.topics[name].log.stored.all():
        assert isinstance(span.segment, Segment)
        found.append((span.segment.first, span.segment.n, span.segment.sealed))
    return found


async def refused(life: Life, name: str) -> str:
    """The code with which a call for sealing is refused."""
    with pytest.raises(ApiError) as caught:
        await life.engine.topic_seals.seal(name)
    return caught.value.code


# ----------------------------------------------------------------- limits


def test_a_topic_has_its_own_number_of_records_in_a_segment_and_others_that_of_the_daemon() -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("own", durability="disk", segment_max_events=3)
        await client.create("daemon's", durability="disk")
        for name in ("own", "daemon's"):
            await client.append(name, 7)
        await life.compactor.checkpoint()
        assert segments(life, "own") == [(1, 3, True), (4, 3, True), (7, 1, False)]
        assert segments(life, "daemon's") == [(1, 5, True), (6, 2, False)]
        await client.configure("own", segment_max_events=None)
        await client.append("own", 5)
        await life.compactor.checkpoint()
        assert segments(life, "own")[2:] == [(7, 5, True), (12, 1, False)]

    lived(script, segment_max_events=5)


def test_a_topic_has_its_own_number_of_bytes_in_a_segment() -> None:
    async def script(life: Life, client: Client) -> None:
        for name, most in (("own", 1024), ("other", None)):
            await client.create(name, durability="disk", segment_max_bytes=most)
            await client.append(name, 8, size=300)
        await life.compactor.checkpoint()
        assert len(segments(life, "own")) > 2
        assert segments(life, "other") == [(1, 8, False)]

    lived(script)


@pytest.mark.parametrize(("of_daemon", "of_topic"), [(0, 5000), (3_600_000, 5000), (5000, 0)])
def test_a_topic_has_its_own_age_at_which_a_segment_is_sealed(of_daemon: int, of_topic: int) -> None:
    """Time alone makes the reclaimer look at the topic again: nobody writes to it any more."""

    async def script(life: Life, client: Client) -> None:
        await client.create("own", durability="disk", segment_max_age_ms=of_topic)
        await client.create("daemon's", durability="disk")
        for name in ("own", "daemon's"):
            await client.append(name, 2)
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
        await trio.sleep(6)
        await life.reclaimer.pass_over()
        await life.compactor.checkpoint()
        assert segments(life, "own") == [(1, 2, of_topic == 5000)]
        assert segments(life, "daemon's") == [(1, 2, of_daemon == 5000)]

    lived(script, segment_max_age_ms=of_daemon, reclaim_ms=3_600_000, checkpoint_ms=3_600_000)


def test_segments_that_are_small_for_their_topic_are_merged_and_those_that_are_full_for_it_are_not() -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("full", durability="disk", segment_max_events=2)
        await client.create("small", durability="disk", segment_max_events=100)
        for name in ("full", "small"):
            for _ in range(3):
                await client.append(name, 2)
                await life.engine.topic_seals.seal(name)
        await life.reclaimer.pass_over()
        assert segments(life, "full") == [(1, 2, True), (3, 2, True), (5, 2, True)]
        assert segments(life, "small") == [(1, 6, True)]

    lived(script, reclaim_ms=3_600_000)


def test_many_segments_of_a_topic_are_not_smaller_than_those_of_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then they grow, and small ones are merged, until there are fewer."""
    monkeypatch.setattr(topic_segments, "MANY_SEGMENTS", 4)

    async def script(life: Life, client: Client) -> None:
        await client.create("few", durability="disk", segment_max_events=1)
        await client.create("small", durability="disk", segment_max_bytes=1024)
        await client.create("large", durability="disk", segment_max_events=50)
        for name, records in (("few", 10), ("small", 10), ("large", 150)):
            await client.append(name, records, size=600 if name == "small" else 30)
        await life.compactor.checkpoint()
        assert segments(life, "few") == [*((seq, 1, True) for seq in (1, 2, 3, 4)), (5, 6, False)]
        assert segments(life, "small") == [*((seq, 1, True) for seq in (1, 2, 3, 4)), (5, 6, False)]
        assert segments(life, "large") == [(1, 50, True), (51, 50, True), (101, 50, True)]
        await client.append("few", 15)
        await life.compactor.checkpoint()
        assert segments(life, "few")[4:] == [(5, 20, True), (25, 1, False)]
        await life.reclaimer.pass_over()
        assert segments(life, "few") == [(1, 4, True), (5, 20, True), (25, 1, False)]
        await client.append("few", 2)
        await life.compactor.checkpoint()
        assert segments(life, "few")[2:] == [(25, 1, True), (26, 1, True), (27, 1, False)]

    lived(script, segment_max_events=20, segment_max_bytes=65536, reclaim_ms=3_600_000, checkpoint_ms=3_600_000)


def test_the_limits_of_a_topic_are_there_after_a_crash() -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("a", durability="fsync", segment_max_events=2, segment_max_age_ms=0)
        await life.compactor.checkpoint()
        await client.configure("a", segment_max_bytes=4096)

    async def later(life: Life, client: Client) -> None:
        config = life.engine.registry.topics["a"].config
        assert [getattr(config, name) for name in LIMITS] == [2, 4096, 0]
        await client.append("a", 5)
        await life.compactor.checkpoint()
        assert len(segments(life, "a")) == 3

    lives_on(lived(script).after("drop"), later)


# ----------------------------------------------------------------- sealing


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_what_was_published_is_sealed_and_later_records_go_to_a_new_segment(durability: str) -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("a", durability=durability)
        await client.append("a", 3)
        assert await life.engine.topic_seals.seal("a") == 1
        assert segments(life, "a") == [(1, 3, True)]
        before = life.engine.store.snapshot_number
        assert await life.engine.topic_seals.seal("a") == 1
        assert life.engine.store.snapshot_number == before, "there is nothing to be sealed"
        await client.append("a", 2)
        await life.compactor.checkpoint()
        await client.append("a", 1)
        assert await life.engine.topic_seals.seal("a") == 2  # with what there is in the active segment, and what is new
        assert segments(life, "a") == [(1, 3, True), (4, 3, True)]
        await client.append("a", 1)
        await life.compactor.checkpoint()
        assert await life.engine.topic_seals.seal("a") == 3  # as it is
        assert segments(life, "a")[2:] == [(7, 1, True)]

    world = lived(script, reclaim_ms=3_600_000, checkpoint_ms=3_600_000)
    assert sorted(see(world.after("drop"))["a"].records) == list(range(1, 8))


def test_other_topics_go_on_with_their_segments() -> None:
    async def script(life: Life, client: Client) -> None:
        for name in ("a", "b"):
            await client.create(name, durability="disk")
            await client.append(name, 2)
        await life.engine.topic_seals.seal("a")
        assert (segments(life, "a"), segments(life, "b")) == ([(1, 2, True)], [(1, 2, False)])

    lived(script)


def test_many_records_are_sealed_where_they_end() -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("a", durability="disk", segment_max_events=150)
        for _ in range(4):
            await client.append("a", 100)
        assert await life.engine.topic_seals.seal("a") == 3
        assert segments(life, "a") == [(1, 150, True), (151, 150, True), (301, 100, True)]

    lived(script)


def test_a_topic_of_which_nothing_is_stored_has_no_segments() -> None:
    async def script(life: Life, client: Client) -> None:
        for name in ("ephemeral", "disk"):
            await client.create(name, durability=name)
        await client.append("ephemeral", 3)
        assert [await life.engine.topic_seals.seal(name) for name in ("ephemeral", "disk")] == [0, 0]
        await client.append("disk", 3)
        await life.compactor.checkpoint()
        assert segments(life, "disk") == [(1, 3, False)]  # the call from before was answered
        await client.configure("disk", durability="ephemeral")
        await client.append("disk", 1)
        assert await life.engine.topic_seals.seal("disk") == 1
        assert segments(life, "disk") == [(1, 3, True)]
        assert await refused(life, "missing") == "topic_not_found"

    lived(script, reclaim_ms=3_600_000, checkpoint_ms=3_600_000)


def test_a_segment_of_which_everything_was_deleted_does_not_count() -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("a", durability="disk")
        await client.append("a", 2)
        await life.engine.topic_seals.seal("a")
        await client.append("a", 2, tag="x")
        await life.engine.topic_seals.seal("a")
        await client.delete("a", match=exactly("x"))
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
        assert await life.engine.topic_seals.seal("a") == 1

    lived(script, segment_max_events=2, reclaim_ms=3_600_000)


def test_calls_at_the_same_time_share_a_checkpoint() -> None:
    async def script(life: Life, client: Client) -> None:
        names = [f"t{i}" for i in range(9)]
        for name in names:
            await client.create(name, durability="disk")
            await client.append(name, 2)
        before = life.engine.store.snapshot_number
        async with trio.open_nursery() as calls:
            for name in (*names, "t0"):
                calls.start_soon(life.engine.topic_seals.seal, name)
        assert life.engine.store.snapshot_number - before == 1
        assert [segments(life, name) for name in names] == [[(1, 2, True)]] * 9

    lived(script, reclaim_ms=3_600_000, checkpoint_ms=3_600_000)


def during(life: Life, is_it: Callable[[Op], bool], work: Callable[[], None]) -> None:
    """Call `work` once, at the first operation for which `is_it`."""
    done: list[Op] = []

    def watch(op: Op) -> None:
        if not done and is_it(op):
            done.append(op)
            trio.from_thread.run_sync(work) if _is_in_thread() else work()

    life.fs.subscribe(watch)


def _is_in_thread() -> bool:
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return True
    return False


def test_a_call_that_comes_when_its_topic_was_captured_is_answered_by_the_checkpoint_after_it() -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("a", durability="disk")
        await client.append("a", 2)
        before = life.engine.store.snapshot_number
        async with trio.open_nursery() as calls:
            during(
                life,
                lambda op: op.name == "rename" and op.detail.endswith("/topic.cbor"),
                lambda: calls.start_soon(life.engine.topic_seals.seal, "a"),
            )
            await life.compactor.checkpoint()
        assert life.engine.store.snapshot_number - before == 2
        assert segments(life, "a") == [(1, 2, True)]

    lived(script, reclaim_ms=3_600_000, checkpoint_ms=3_600_000)


def test_a_topic_whose_files_somebody_works_on_is_sealed_by_the_checkpoint_after_that() -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("a", durability="disk")
        await client.append("a", 2)
        await life.compactor.checkpoint()
        async with held(life, "a"):
            assert await refused(life, "a") == "read_only"
            assert segments(life, "a") == [(1, 2, False)]
        await life.compactor.checkpoint()
        assert segments(life, "a") == [(1, 2, True)]

    lived(script, reclaim_ms=3_600_000, checkpoint_ms=3_600_000)


@pytest.mark.parametrize("name", ["create", "pwrite", "fdatasync", "rename"])
def test_a_disk_that_fails_is_said_and_the_next_checkpoint_seals(name: str) -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("a", durability="disk")
        await client.append("a", 2)
        met: list[Op] = []
        life.fs.inject(Fault(name=name, path="/data/topics/*", error=errno.EIO, hook=met.append))
        assert await refused(life, "a") == "read_only"
        assert len(met) == 1
        await life.compactor.checkpoint()
        assert segments(life, "a") == [(1, 2, True)]

    lived(script, reclaim_ms=3_600_000, checkpoint_ms=3_600_000)


def test_calls_that_share_a_checkpoint_share_its_failure() -> None:
    async def script(life: Life, client: Client) -> None:
        for name in "ab":
            await client.create(name, durability="disk")
            await client.append(name, 2)
        met: list[Op] = []
        life.fs.inject(Fault(name="fdatasync", path="/data/topics/*", error=errno.EIO, hook=met.append))
        codes: list[str] = []

        async def call(name: str) -> None:
            codes.append(await refused(life, name))

        async with trio.open_nursery() as calls:
            calls.start_soon(call, "a")
            calls.start_soon(call, "b")
        assert (codes, len(met)) == (["read_only"] * 2, 1)
        await life.compactor.checkpoint()
        assert segments(life, "a") == segments(life, "b") == [(1, 2, True)]

    lived(script, reclaim_ms=3_600_000, checkpoint_ms=3_600_000)


def test_a_client_that_hangs_up_during_the_checkpoint_costs_others_nothing() -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("a", durability="disk")
        await client.append("a", 2)
        impatient = trio.CancelScope()

        async def hang_up() -> None:
            with impatient:
                await life.compactor.checkpoint()

        def next_one() -> None:
            calls.start_soon(hang_up)
            during(life, lambda op: op.name == "create" and op.path.endswith(".tags"), impatient.cancel)
            during(life, lambda op: op.path.startswith("/data/meta/snapshot."), last_one)

        def last_one() -> None:
            calls.start_soon(life.engine.topic_seals.seal, "a")

        async with trio.open_nursery() as calls:
            # The first checkpoint has captured the topic when the others are told to begin.
            during(life, lambda op: op.name == "rename" and op.detail.endswith("/topic.cbor"), next_one)
            await life.compactor.checkpoint()
        assert impatient.cancelled_caught
        assert segments(life, "a") == [(1, 2, True)]

    lived(script, reclaim_ms=3_600_000, checkpoint_ms=3_600_000)


async def long_checkpoint(life: Life) -> None:
    """A checkpoint that takes `LOCK_WAIT_S`, because somebody works on the files of `slow`."""
    life.engine.registry.topics["slow"].mark_changed()
    async with held(life, "slow"):
        await life.compactor.checkpoint()


def test_a_checkpoint_for_sealing_waits_longer_the_longer_the_last_one_took() -> None:
    """However many calls there are, checkpoints take up no more than a part of the time."""

    async def script(life: Life, client: Client) -> None:
        for name in ("slow", "a", "b"):
            await client.create(name, durability="disk")
            await client.append(name, 2)
        await life.compactor.checkpoint()
        await long_checkpoint(life)
        before, ended = life.engine.store.snapshot_number, trio.current_time()
        async with trio.open_nursery() as calls:
            for name in "ab":
                calls.start_soon(life.engine.topic_seals.seal, name)
            await trio.sleep((REST - 0.1) * LOCK_WAIT_S)
            assert life.engine.store.snapshot_number == before
        assert trio.current_time() - ended >= REST * LOCK_WAIT_S
        assert life.engine.store.snapshot_number == before + 1
        assert segments(life, "a") == segments(life, "b") == [(1, 2, True)]

    lived(script, reclaim_ms=3_600_000, checkpoint_ms=3_600_000)


def test_a_checkpoint_that_others_take_meanwhile_answers_a_call_that_waits() -> None:
    async def script(life: Life, client: Client) -> None:
        for name in ("slow", "a"):
            await client.create(name, durability="disk")
            await client.append(name, 2)
        await life.compactor.checkpoint()
        await long_checkpoint(life)
        before = life.engine.store.snapshot_number
        async with trio.open_nursery() as calls:
            calls.start_soon(life.engine.topic_seals.seal, "a")
            await trio.testing.wait_all_tasks_blocked()
            assert segments(life, "a") == [(1, 2, False)]
            await life.compactor.checkpoint()
            assert segments(life, "a") == [(1, 2, True)]
        assert life.engine.store.snapshot_number == before + 1

    lived(script, reclaim_ms=3_600_000, checkpoint_ms=3_600_000)


def test_a_topic_that_is_deleted_meanwhile_is_not_found() -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("a", durability="disk")
        await client.append("a", 2)
        await life.compactor.checkpoint()
        async with held(life, "a"), trio.open_nursery() as calls:
            codes: list[str] = []

            async def call() -> None:
                codes.append(await refused(life, "a"))

            calls.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            await client.delete_topic("a")
        assert codes == ["topic_not_found"]

    lived(script, reclaim_ms=3_600_000, checkpoint_ms=3_600_000)


def test_a_call_that_was_given_up_is_done_by_the_next_checkpoint() -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("a", durability="disk")
        await client.append("a", 2)
        await life.compactor.checkpoint()
        async with held(life, "a"):
            with trio.move_on_after(0.1) as patience:
                await life.engine.topic_seals.seal("a")
            assert patience.cancelled_caught
        await life.compactor.checkpoint()
        assert segments(life, "a") == [(1, 2, True)]

    lived(script, reclaim_ms=3_600_000, checkpoint_ms=3_600_000)


def test_during_a_hold_no_file_that_it_names_is_written_to() -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("a", durability="disk")
        await client.append("a", 2)
        files, _ = await life.engine.checkpoint(10_000)
        before = {name: life.fs.read(f"/data/{name}") for name in files}
        await client.append("a", 1)
        assert await life.engine.topic_seals.seal("a") == 2
        assert segments(life, "a") == [(1, 2, True), (3, 1, True)]
        assert {name: life.fs.read(f"/data/{name}") for name in files} == before

    lived(script, reclaim_ms=3_600_000, checkpoint_ms=3_600_000)
