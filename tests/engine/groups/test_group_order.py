"""Groups with an order for each key, over lives of the engine (`docs/design/key_order.md` section 5)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.engine.groups.test_group_calls import ack, claim, put, state
from tests.engine.life import Called, Life, living, settings
from tests.simulation.disk import SimFs
from topics.filters.record_filter import parse_filter
from topics.job_model import HeldRequest, NackTerms
from topics.model import Performance

pytestmark = pytest.mark.trio

LARGE = parse_filter('["data","/n","Ge",10]')


async def records(life: Life, *keys: str | None, field: str = "tag", n: int = 10) -> None:
    await life.append("t", *({"data": {"n": n}, field: key} if key else {"data": {"n": n}} for key in keys))


async def nack(life: Life, *seqs: int, **terms: Any) -> None:
    request = HeldRequest(node="n", seqs=list(seqs), lease_ids=None)
    await life.engine.queues.nack("t", request, NackTerms(**terms), Performance(), "g")


@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
@pytest.mark.parametrize("field", ["tag", "node"])
async def test_one_record_of_a_key_is_leased_at_a_time(durability: str, field: str, autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("t", durability=durability)
        await put(life, order_by=field)
        await put(life, "other")
        await records(life, "a", "a", None, "b", "a", None, field=field)
        assert await claim(life) == [1, 3, 4, 6]
        call = Called(nursery, lambda: claim(life, wait_ms=10_000))
        await trio.sleep(1)
        assert not call.done
        await ack(life, 1)
        await trio.sleep(0.1)
        assert call.result == [2]
        await nack(life, 2, delay_ms=3000)
        assert await claim(life) == []
        assert await claim(life, wait_ms=5000) == [2]
        await ack(life, 2, 3, 4, 6)
        assert await claim(life) == [5]
        await ack(life, 5)
        seen = await state(life)
        assert (seen.floor, seen.queue.ready, seen.queue.in_flight, seen.unfinished) == (6, 0, 0, 0)
        assert await claim(life, group="other") == [1, 2, 3, 4, 5, 6]


async def test_what_the_filter_refuses_holds_nothing_up(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t")
        await put(life, order_by="tag", filter=LARGE)
        await records(life, "a", n=1)
        await records(life, "a", "a")
        await records(life, "b", n=1)
        await records(life, "b")
        assert await claim(life) == [2, 5]
        await ack(life, 2)
        assert await claim(life) == [3]
        assert (await state(life)).queue.ready == 0
        await put(life, filter=None)
        assert await claim(life) == []  # all of them were refused before, and stay finished
        await records(life, "a", "c", n=1)
        assert await claim(life) == [7]
        await ack(life, 3, 5, 7)
        assert await claim(life) == [6]


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("wanted", [None, LARGE])
async def test_the_order_is_the_same_after_a_restart(
    end: str, checkpoint: bool, wanted: Any, autojump_clock: Any
) -> None:
    fs = SimFs()
    async with living(settings(segment_max_events=2), fs=fs, clean=end == "stop") as life:
        await life.put("t", durability="fsync")
        await put(life, order_by="tag", leases_durable=True, filter=wanted)
        await records(life, "a", "b", "a", "b", "c", "c", "a")
        assert await claim(life, 3) == [1, 2, 5]
        await ack(life, 2)
        await nack(life, 5, delay_ms=60_000)
        if checkpoint:
            await life.compactor.checkpoint()
        clock = life.clock
        if end == "kill":
            fs = fs.after_process_kill()
    async with living(fs=fs, clock=clock) as life:
        assert (await state(life)).order_by == "tag"
        assert await claim(life) == [4]
        await ack(life, 1, 4)
        assert await claim(life) == [3]
        await trio.sleep(70)
        assert await claim(life) == [3, 5]
        life.engine.registry.topic("t").groups.by_name["g"].state.check()  # type: ignore[union-attr]


async def test_another_order_begins_beside_the_leases_of_the_one_before(autojump_clock: Any) -> None:
    async with living(settings(segment_max_events=2)) as life:
        await life.put("t")
        await records(life, "a", "a", "a", "b", "b")
        await put(life)
        assert await claim(life, 2) == [1, 2]
        await nack(life, 1)
        await put(life, order_by="tag")
        assert await claim(life) == [4]  # 2 is still held, though 1 is before it
        await ack(life, 2)
        assert await claim(life) == [1]
        await put(life, order_by="node")
        assert await claim(life, 1) == [3]
        await put(life, order_by=None)
        assert await claim(life) == [5]
        await ack(life, 1, 3, 4, 5)
        assert (await state(life)).floor == 5


async def test_keys_of_records_that_are_only_on_disk_are_read(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(settings(segment_max_events=50), fs=fs) as life:
        await life.put("t", durability="fsync")
        for _ in range(4):
            await records(life, *["a"] * 60)
        await records(life, "b", None)
        await put(life, order_by="tag")
        await put(life, "some", order_by="tag", filter=LARGE)
        await life.compactor.checkpoint()
        clock = life.clock
    async with living(settings(max_scan=70), fs=fs, clock=clock) as life:
        assert [await claim(life, 3) for _ in range(3)] == [[1], [241, 242], []]
        # A claim with a filter ends where it has looked at as many records as it may.
        found = [await claim(life, 3, "some") for _ in range(5)]
        assert [seqs for seqs in found if seqs] == [[1], [241, 242]]


@pytest.mark.parametrize("wanted", [None, LARGE])
async def test_runs_alone_do_not_stop_a_group(wanted: Any, autojump_clock: Any) -> None:
    """With as many finished runs as `max_unfinished`, the record above the floor is given out all the same."""
    async with living() as life:
        await life.put("t")
        await put(life, order_by="tag", filter=wanted)
        await records(life, *("a", None) * 6)
        assert await claim(life) == [1, 2, 4, 6, 8, 10, 12]
        await ack(life, 2, 4, 6, 8, 10, 12)
        await put(life, max_unfinished=1)
        for seq in (1, 3, 5, 7, 9):
            await ack(life, seq)
            assert await claim(life) == [seq + 2]
        await ack(life, 11)
        assert (await state(life)).floor == 12


@pytest.mark.parametrize("gap", [1, 3])
async def test_refused_records_alone_do_not_stop_a_group(gap: int, autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t")
        await put(life, max_unfinished=1, filter=LARGE)
        for n in range(10):
            await records(life, "a", n=10 if n % (gap + 1) else 1)
        done = []
        for _ in range(20):
            for seq in await claim(life, 5):
                done.append(seq)
                await ack(life, seq)
        assert done == [n + 1 for n in range(10) if n % (gap + 1)]


async def test_an_expired_record_frees_the_next_of_its_key(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("t", ttl_ms=60_000)
        await put(life, order_by="tag", lease_ms=600_000)
        await records(life, "a")
        await trio.sleep(10)
        await records(life, "a")
        assert await claim(life) == [1]
        call = Called(nursery, lambda: claim(life, wait_ms=300_000))
        await trio.sleep(53)
        assert call.result == [2]
