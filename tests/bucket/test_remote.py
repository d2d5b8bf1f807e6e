"""The class `remote`: nothing is acked or seen before a round in the bucket has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import trio

from tests.bucket.archived import ArchivedLife, archived, bucket_settings, restored, rounds_in
from tests.bucket.simulated_objects import SIM_FAULTS, SimFault, SimObjects, random_faults
from tests.engine.delivery.client import Streams
from tests.engine.life import living
from tests.everything import slow_after
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from tests.simulation.offload import InlineOffload
from topics.errors import ApiError
from topics.runtime.offload import Pool
from topics.storage.wal import round_waits

pytestmark = pytest.mark.trio

CONFIG = bucket_settings(bucket_round_ms=600_000, admission_ms=1000)
"""Rounds are made only when something waits for one."""

ROUND_S = 0.04
T = TypeVar("T")


def away(op: str, name: str) -> SimFault | None:
    """A store that takes no rounds."""
    return SimFault.BEFORE if name.startswith("rounds/") else None


async def there(objects: SimObjects, name: str) -> list[int]:
    """The seqs of a topic that the bucket has, and that survive the loss of the machine."""
    rounds = rounds_in(objects.copied())
    while not rounds[-1].head.ends_cut:
        rounds.pop()
    async with living(bucket_settings(), fs=restored(rounds)) as life:
        if name not in life.engine.registry.topics:
            return []
        return await life.seqs(name)


async def opened(life: ArchivedLife) -> None:
    """Wait until the bucket has a base."""
    await life.archive.vouch_for([writer.synced_position()[0] for writer in life.engine.store.writers])


async def test_an_ack_comes_when_a_round_has_the_record_and_not_before(autojump_clock: Any) -> None:
    objects = SimObjects()
    async with archived(objects, CONFIG, bases=True) as life:
        await opened(life)
        await life.put("a", durability="remote")
        before = len(rounds_in(objects))
        await life.append("a", 1, 2)
        assert len(rounds_in(objects)) == before + 1
        assert await there(objects, "a") == await life.seqs("a") == [1, 2]
        await life.delete("a", 2)
        assert await there(objects, "a") == [2]


class SlowRounds(InlineOffload):
    """A round takes `ROUND_S`, half for being made, half for being put."""

    async def perform(self, kind: Pool, call: Callable[[], T]) -> T:
        if kind is Pool.BUCKET_CHANGE:
            await trio.sleep(ROUND_S / 2)
        return await super().perform(kind, call)


async def test_clients_that_are_answered_together_are_in_one_round_again(autojump_clock: Any) -> None:
    objects = SimObjects()
    async with archived(objects, CONFIG, bases=True, offload=SlowRounds()) as life:
        await opened(life)
        await life.put("a", durability="remote")
        before = len(rounds_in(objects))

        async def client(number: int) -> None:
            for value in range(8):
                await life.append("a", value)
                await trio.sleep(number * ROUND_S / 100)

        async with trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(client, number)
        # At the beginning the first one does not know of the others. At the end some have nothing more to append.
        assert len(rounds_in(objects)) - before <= 8 + 3


async def test_a_client_that_is_alone_waits_for_no_others(autojump_clock: Any) -> None:
    objects = SimObjects()
    async with archived(objects, CONFIG, bases=True, offload=SlowRounds()) as life:
        await opened(life)
        await life.put("a", durability="remote")
        async with trio.open_nursery() as nursery:
            for value in range(5):
                nursery.start_soon(life.append, "a", value)
        await trio.sleep(1)
        await life.append("a", 5)  # behind a cut for five
        began = trio.current_time()
        for value in range(20):
            await life.append("a", value)
        assert trio.current_time() - began < 21 * ROUND_S


async def test_nobody_sees_what_the_bucket_has_not(autojump_clock: Any) -> None:
    objects = SimObjects()
    async with archived(objects, CONFIG, bases=True) as life:
        await opened(life)
        await life.put("a", durability="remote")
        await life.append("a", 1)
        objects.faults = away
        acked = trio.Event()

        async def append() -> None:
            await life.append("a", 2)
            acked.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(append)
            await trio.sleep(0.2)
            topic = life.engine.registry.topics["a"]
            assert topic.assigned == 2
            assert await life.seqs("a") == [1]
            assert not acked.is_set()
            objects.faults = lambda op, name: None
            await acked.wait()
        assert await life.seqs("a") == await there(objects, "a") == [1, 2]


async def test_a_bucket_that_is_away_is_told_and_leaves_nothing_half_done(autojump_clock: Any) -> None:
    objects = SimObjects()
    async with archived(objects, CONFIG, bases=True) as life:
        await opened(life)
        for name, durability in (("r", "remote"), ("f", "fsync")):
            await life.put(name, durability=durability)
            await life.append(name, 1)
        objects.faults = away
        with trio.move_on_after(0.5):
            await life.append("r", 2)  # so that it is noticed
        topic = life.engine.registry.topics["r"]
        assigned = topic.assigned
        began = trio.current_time()
        with pytest.raises(ApiError, match="not_ready"):
            await life.append("r", 3)
        assert trio.current_time() - began <= 1.0
        for call in (life.delete("r", 2), life.put("r", ttl_ms=5), life.put("new", durability="remote")):
            with pytest.raises(ApiError, match="not_ready"):
                await call
        assert topic.assigned == assigned == 2
        await life.append("f", 2)
        assert await life.seqs("f") == [1, 2]
        objects.faults = lambda op, name: None
        await trio.sleep(60)
        assert await life.seqs("r") == await there(objects, "r") == [1, 2]


async def test_a_client_whose_append_waits_is_told_that_its_outcome_is_open(autojump_clock: Any) -> None:
    objects = SimObjects()
    async with archived(objects, CONFIG, bases=True) as life:
        await opened(life)
        await life.put("a", durability="remote")
        objects.faults = away
        began = trio.current_time()
        with pytest.raises(ApiError, match="read_only"):
            await life.append("a", 1)
        assert trio.current_time() - began <= round_waits.TELL_AFTER_MS / 1000 + 2
        objects.faults = lambda op, name: None
        await trio.sleep(60)
        assert await life.seqs("a") == [1]


async def test_without_a_base_nothing_can_be_restored_so_nothing_is_acked(autojump_clock: Any) -> None:
    objects = SimObjects(
        faults=lambda op, name: SimFault.BEFORE if op == "put_new" and name.startswith("bases/") else None
    )
    async with archived(objects, CONFIG, bases=True) as life:
        await trio.sleep(2)
        with pytest.raises(ApiError, match="no base"):
            await life.put("a", durability="remote")
        objects.faults = lambda op, name: None
        await opened(life)
        await life.put("a", durability="remote")
        await life.append("a", 1)


async def test_a_recovered_tail_is_in_the_bucket_before_it_is_seen(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, CONFIG, fs=fs, bases=True, clean=False) as life:
        await opened(life)
        await life.put("a", durability="remote")
        await life.append("a", 1)
        objects.faults = away
        with trio.move_on_after(0.5):
            await life.append("a", 2)
    fs = fs.after_process_kill()
    with trio.move_on_after(30) as limit:
        async with archived(objects, CONFIG, fs=fs, bases=True, clean=False):
            raise AssertionError("it is shown")
    assert limit.cancelled_caught
    objects.faults = lambda op, name: None
    async with archived(objects, CONFIG, fs=fs.after_process_kill(), bases=True) as life:
        assert await there(objects, "a") == await life.seqs("a") == [1, 2]


async def test_a_checkpoint_keeps_the_log_of_what_waits(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    config = bucket_settings(wal_shards=1, bucket_round_ms=600_000)
    async with archived(objects, config, fs=fs, bases=True, clean=False) as life:
        await opened(life)
        await life.put("a", durability="remote")
        await life.put("f", durability="fsync")
        await life.append("a", 1)
        objects.faults = away
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.append, "a", 2)
            await trio.sleep(0.3)
            await life.append("f", *range(50))
            for _ in range(3):
                await life.compactor.checkpoint()
            nursery.cancel_scope.cancel()
    objects.faults = lambda op, name: None
    async with archived(objects, config, fs=fs.after_process_kill(), bases=True) as life:
        assert await life.seqs("a") == [1, 2]
        assert len(await life.seqs("f")) == 50


async def test_a_change_of_class_ends_in_a_round(autojump_clock: Any) -> None:
    objects = SimObjects()
    async with archived(objects, CONFIG, bases=True) as life:
        await opened(life)
        await life.put("a", durability="memory")
        await life.append("a", 1, 2, 3)
        await life.put("a", durability="remote")
        assert await there(objects, "a") == [1, 2, 3]
        objects.faults = away
        with pytest.raises(ApiError, match="read_only"):
            await life.put("a", durability="disk")
        assert life.engine.registry.topics["a"].is_remote
        objects.faults = lambda op, name: None
        await trio.sleep(60)
        assert life.engine.registry.topics["a"].config.durability == "disk"


async def test_the_state_says_how_far_the_bucket_holds_and_a_watch_waits_for_it(
    nursery: trio.Nursery, autojump_clock: Any
) -> None:
    objects = SimObjects()
    config = bucket_settings(bucket_round_ms=3000)
    async with archived(objects, config, bases=True) as life:
        await opened(life)
        await life.put("a", durability="fsync")
        await trio.sleep(5)
        streams = Streams(life, nursery)
        reader = await streams.watch("a", consistency="remote")
        await life.append("a", 1, 2)
        state = await life.engine.topic_states.of("a", touch=False)
        assert (state.synced_seq, state.bucket_seq) == (2, 0)
        await trio.sleep(0.5)
        assert reader.seqs("a") == []
        await trio.sleep(5)
        state = await life.engine.topic_states.of("a", touch=False)
        assert (state.synced_seq, state.bucket_seq) == (2, 2)
        assert reader.seqs("a") == [1, 2]


async def test_the_class_needs_a_bucket() -> None:
    async with living(bucket_settings(bucket="")) as life:
        with pytest.raises(ApiError, match="durability: remote needs"):
            await life.put("a", durability="remote")


@pytest.mark.parametrize("seed", slow_after(1, range(3)))
async def test_whatever_is_acked_is_in_the_bucket_over_kills_and_faults(seed: int, autojump_clock: Any) -> None:
    objects, fs, clock = SimObjects(seed), SimFs(), SimClock()
    acked: list[int] = []
    seen: dict[int, Any] = {}
    kinds = [fault for fault in SIM_FAULTS if fault not in (SimFault.DENIED, SimFault.HANG, SimFault.HANG_AFTER)]
    for life_number in range(4):
        objects.faults = lambda op, name: None
        async with archived(objects, CONFIG, fs=fs, clock=clock, bases=True, clean=False) as life:
            await opened(life)
            await life.put("a", durability="remote")
            found, _ = await life.all("a")
            for record in found:
                assert seen.setdefault(record["$seq"], record["data"]) == record["data"]
            assert set(acked) <= {record["$seq"] for record in found}
            objects.faults = random_faults(seed * 100 + life_number, 0.3, kinds)

            async def append(number: int, life: ArchivedLife = life) -> None:
                try:
                    answer = await life.append("a", number)
                except ApiError:
                    return
                acked.append(answer.first_seq)
                assert answer.first_seq in await there(objects, "a")
                for record in (await life.all("a"))[0]:
                    assert seen.setdefault(record["$seq"], record["data"]) == record["data"]

            with trio.move_on_after(3):
                async with trio.open_nursery() as nursery:
                    for number in range(8):
                        nursery.start_soon(append, 100 * life_number + number)
                        await trio.sleep(0.05)
        objects.arrive()
        fs = fs.after_process_kill()
    assert acked
