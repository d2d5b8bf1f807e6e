"""Routers as the engine runs them: what arrives, in which order, how often, and what becomes of it all."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import trio

from tests.engine.life import Called, HeldOffload, Life, living, refusal, settings, settle
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from tests.simulation.world import quiet
from topics.engine.forwarding import forwarders, source_columns
from topics.engine.forwarding.forwarders import CATCH_UP_S, Forwarders
from topics.engine.forwarding.source_columns import SourceColumns
from topics.engine.record_collector import DECODE_BYTES
from topics.errors import ApiError
from topics.log.copies import MAX_HOPS
from topics.model import RouterPatch, RouterState
from topics.raw_bytes import data_of_bytes
from topics.runtime.offload import Pool
from topics.sched.governor import CALM
from topics.storage.segments.topic_segments import SegmentSet
from topics.storage.wal.frames import FrameType

pytestmark = pytest.mark.trio

CLASSES = ["ephemeral", "memory", "disk", "fsync"]


async def route(life: Life, name: str, source: str, dest: str, **patch: Any) -> RouterState:
    """A router from the earliest on, unless told otherwise."""
    patch.setdefault("start", "earliest")
    return (await life.engine.routers.put(name, RouterPatch(source=source, dest=dest, **patch)))[0]


async def update(life: Life, name: str, **patch: Any) -> RouterState:
    state, created = await life.engine.routers.put(name, RouterPatch(**patch))
    assert not created
    return state


async def datas(life: Life, name: str) -> list[Any]:
    """What a reader of a topic gets, after a look at its figures."""
    found, gaps = await life.all(name)
    state = await life.engine.topic_states.of(name, touch=False)
    seqs = [record["$seq"] for record in found]
    assert state.count == len(seqs)
    assert state.earliest_seq == (seqs[0] if seqs else state.head_seq + 1)
    missed = sum(last - first + 1 for first, last, _ in gaps)
    assert missed + len(seqs) <= state.head_seq
    return [record["data"] for record in found]


async def figures(life: Life, name: str) -> tuple[int, int, int]:
    """Cursor, lag and total."""
    state = life.engine.routers.state(name)
    return state.cursor_seq, state.lag, state.forwarded_total


def copies_logged(life: Life) -> int:
    """How many copies Forwarded frames name as made."""
    return sum(payload["count"] for _, payload in life.frames(FrameType.FORWARDED))


# ----------------------------------------------------------------- order and number


@pytest.mark.parametrize("durability", CLASSES)
async def test_a_chain_carries_everything_in_order_and_once(durability: Any, autojump_clock: Any) -> None:
    async with living(settings(wal_shards=2)) as life:
        names = [f"t{n}" for n in range(6)]
        for name in names:
            await life.put(name, durability=durability)
        for n in range(5):
            await route(life, f"r{n}", names[n], names[n + 1])
        expected = []
        for n in range(40):
            batch = [100 * n + i for i in range(n % 4 + 1)]
            await life.append("t0", *batch)
            expected += batch
        for name in names[1:]:
            assert await datas(life, name) == expected
        for n in range(5):
            assert await figures(life, f"r{n}") == (len(expected), 0, len(expected))


async def test_direct_appends_interleave_with_copies(autojump_clock: Any) -> None:
    async with living() as life:
        await route(life, "r", "a", "b")
        for n in range(10):
            await life.append("a", n)
            await life.append("b", f"direct {n}")
        found = await datas(life, "b")
        assert [data for data in found if isinstance(data, int)] == list(range(10))
        assert [data for data in found if isinstance(data, str)] == [f"direct {n}" for n in range(10)]


@pytest.mark.parametrize(("guarantee", "times"), [("at_least_once", 2), ("exactly_once", 1)])
async def test_a_diamond(guarantee: str, times: int, autojump_clock: Any) -> None:
    async with living() as life:
        for name, ends in {"r1": "ab", "r2": "ac", "r3": "bd", "r4": "cd"}.items():
            await route(life, name, ends[0], ends[1], allow_cycle=True, guarantee=guarantee)
        for n in range(20):
            await life.append("a", n)
        assert sorted(await datas(life, "d")) == sorted(list(range(20)) * times)
        totals = [(await figures(life, name))[2] for name in ("r3", "r4")]
        assert sum(totals) == 20 * times


async def test_a_fan_of_a_hundred_logs_each_record_once(autojump_clock: Any) -> None:
    async with living(settings(max_topics=200)) as life:
        for n in range(100):
            await route(life, f"r{n}", "a", f"d{n}")
        for n in range(5):
            await life.append("a", *range(10 * n, 10 * n + 10))
        for n in range(100):
            assert await datas(life, f"d{n}") == list(range(50))
            assert await figures(life, f"r{n}") == (50, 0, 50)
        assert sum(1 for frame, _ in life.frames(FrameType.APPEND)) == 50


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, [0, 1, 2, 3, 4]),
        ("x", [1]),
        (["tag", "Eq", "xy"], [2]),
        (["tag", "Glob", "x*"], [1, 2, 3]),
        (["tag", "Glob", "*"], [1, 2, 3, 4]),
        ("x*", [3]),
        ("none", []),
    ],
)
async def test_a_filter_chooses_by_tag_and_never_what_has_none(
    wanted: Any, expected: list[int], autojump_clock: Any
) -> None:
    async with living() as life:
        await route(life, "r", "a", "b", filter=wanted)
        await life.append(
            "a", *[{"data": n, **({"tag": tag} if tag else {})} for n, tag in enumerate((None, "x", "xy", "x*", "y"))]
        )
        assert await datas(life, "b") == expected
        assert await figures(life, "r") == (5, 0, len(expected))
        assert (await life.all("b"))[1] == []


async def test_a_filter_finds_no_data_in_raw_bytes(autojump_clock: Any) -> None:
    raw = data_of_bytes(b"\0\xff", "image/png")
    async with living() as life:
        await route(life, "r", "a", "b", filter=["data", "/$bytes", "Exists", True])
        await route(life, "s", "a", "c", filter=["data", "", "Exists", False])
        await life.append("a", msgspec.Raw(raw), {"$bytes": "AP8="})
        assert await datas(life, "b") == [{"$bytes": "AP8="}]
        assert await datas(life, "c") == [json.loads(raw)]


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("wanted", [["data", "/1000", "Eq", 2], ["meta", "k", "Eq", "v"], ["node", "Eq", "n"]])
async def test_a_turn_decodes_no_more_for_a_filter_than_a_step_of_a_read(
    wanted: Any, stored: bool, monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    """A turn is one step of the loop, and decoding a MiB can take it 30 ms."""
    turns: list[int] = []
    serve, matching = Forwarders.serve, source_columns.matching

    def served(self: Forwarders, fanout: Any) -> Any:
        turns.append(0)
        return serve(self, fanout)

    def matched(taken: SourceColumns, chosen: Any, filter: Any) -> list[int]:
        turns[-1] += sum(taken.sizes[i] for i in chosen)
        return matching(taken, chosen, filter)

    monkeypatch.setattr(Forwarders, "serve", served)
    monkeypatch.setattr(forwarders, "matching", matched)
    async with living() as life:
        await life.append("a", *[[1] * 2000] * 700, [1] * 200_000, [1] * 1000 + [2])
        if stored:
            await life.compactor.checkpoint()
            life.engine.registry.topics["a"].blocks.clear()
        await route(life, "r", "a", "b", filter=wanted)
        found = await datas(life, "b")
        assert found == ([[1] * 1000 + [2]] if wanted[0] == "data" else [])
        assert (await figures(life, "r"))[1] == 0
    assert sum(turns) > 700 * 6000
    if wanted[0] != "node":
        assert sum(turn > 2 * DECODE_BYTES for turn in turns) == 1  # with the record that is larger by itself
        assert max(turns) < 2 * DECODE_BYTES + 600_001


@pytest.mark.parametrize("node", [True, False])
@pytest.mark.parametrize("tag", [True, False])
async def test_node_and_tag_pass_as_told_and_meta_and_data_always(node: bool, tag: bool, autojump_clock: Any) -> None:
    async with living() as life:
        await route(life, "r", "a", "b", preserve_node=node, preserve_tag=tag)
        await life.append("a", {"data": {"k": [1]}, "node": "n", "tag": "t", "meta": {"m": "é"}}, {"data": None})
        for _ in range(2):  # from memory, and from a segment
            found, _ = await life.all("b", include_tags=True)
            expected = {"data": {"k": [1]}, "meta": {"m": "é"}}
            expected |= {"$node": "n"} if node else {}
            expected |= {"$tag": "t"} if tag else {}
            assert {key: found[0][key] for key in found[0] if key not in ("$seq", "$ts")} == expected
            assert found[1].keys() == {"$seq", "$ts", "data"}
            await life.compactor.checkpoint()
            life.engine.registry.topics["b"].blocks.clear()


# ----------------------------------------------------------------- origins


async def test_a_ring_of_three_brings_each_record_to_the_others_and_no_further(autojump_clock: Any) -> None:
    async with living() as life:
        for name, ends in {"r1": "ab", "r2": "bc", "r3": "ca"}.items():
            await route(life, name, ends[0], ends[1], allow_cycle=True)
        for n in range(5):
            for topic in "abc":
                await life.append(topic, f"{topic}{n}")
        await trio.sleep(1)
        expected = sorted(f"{topic}{n}" for topic in "abc" for n in range(5))
        for topic in "abc":
            assert sorted(await datas(life, topic)) == expected
        await trio.sleep(10)
        for name in ("r1", "r2", "r3"):
            assert await figures(life, name) == (15, 0, 10)


async def test_a_ring_longer_than_the_limit_ends_with_it(autojump_clock: Any) -> None:
    n = MAX_HOPS + 3
    async with living(settings(wal_shards=2)) as life:
        for i in range(n):
            await route(life, f"r{i}", f"t{i}", f"t{(i + 1) % n}", allow_cycle=True)
        await life.append("t0", "x")
        await trio.sleep(2)
        heads = [life.engine.registry.topics[f"t{i}"].log.head_seq for i in range(n)]
        assert heads == [1] * (MAX_HOPS + 1) + [0] * 2
        await life.compactor.checkpoint()  # the count of hops is on disk as well
        await route(life, "late", f"t{MAX_HOPS}", "far", allow_cycle=True)
        await route(life, "near", f"t{MAX_HOPS - 1}", "far", allow_cycle=True)
        assert await datas(life, "far") == ["x"]


@pytest.mark.parametrize("nodes", [2, 3, 4])
async def test_in_a_mirror_each_has_what_the_others_wrote_once(nodes: int, autojump_clock: Any) -> None:
    async with living(settings(wal_shards=2)) as life:
        for a in range(nodes):
            for b in range(nodes):
                if a != b:
                    await route(life, f"r{a}{b}", f"t{a}", f"t{b}", allow_cycle=True, guarantee="exactly_once")
        async with trio.open_nursery() as nursery:
            for a in range(nodes):
                for n in range(12):
                    nursery.start_soon(life.append, f"t{a}", f"{a}.{n}")
        await trio.sleep(5)
        expected = sorted(f"{a}.{n}" for a in range(nodes) for n in range(12))
        for a in range(nodes):
            assert sorted(await datas(life, f"t{a}")) == expected


async def test_two_routers_of_exactly_once_between_two_topics_bring_each_record_once(autojump_clock: Any) -> None:
    async with living() as life:
        await route(life, "r1", "a", "b", guarantee="exactly_once")
        await life.append("a", *range(10))
        await route(life, "r2", "a", "b", guarantee="exactly_once")
        await life.append("a", *range(10, 20))
        assert await datas(life, "b") == list(range(20))
        for record in (await life.all("b"))[0]:
            assert record["meta"]["_topics_router"].startswith(
                f"{life.engine.registry.topics['a'].id}:{record['data'] + 1}:r"
            )


# ----------------------------------------------------------------- a read comes after what was acked


@pytest.mark.parametrize("source_class", CLASSES)
@pytest.mark.parametrize("dest_class", CLASSES)
async def test_a_reader_of_a_dest_sees_what_was_acked_on_the_source(
    source_class: Any, dest_class: Any, autojump_clock: Any
) -> None:
    async with living(settings(wal_shards=2)) as life:
        await life.put("a", durability=source_class)
        await life.put("b", durability=dest_class)
        await route(life, "r", "a", "b")
        for n in range(1, 8):
            await life.append("a", n)
            if n % 2:
                assert (await life.engine.topic_states.of("b", touch=False)).count == n
            else:
                assert await life.seqs("b") == list(range(1, n + 1))


async def test_catching_up_is_bounded_whatever_number_of_topics_is_read(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life:
        await life.put("a", durability="memory")
        for n in range(3):
            await route(life, f"r{n}", "a", f"d{n}")
        await life.append("a", 0)
        await trio.sleep(0.5)  # after a second of idleness its reserve would be lowered, and raised by a sync
        offload.hold()
        await life.append("a", 1)  # acked, and not written
        for topics in (("d0",), ("d0", "d1", "d2")):
            began = trio.current_time()
            await life.engine.routers.catch_up(topics)
            assert trio.current_time() - began == pytest.approx(CATCH_UP_S)
        offload.let_go()
        assert await datas(life, "d2") == [0, 1]


async def test_nobody_waits_for_a_full_dest(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("b", cap_records=2, discard="reject")
        await route(life, "r", "a", "b")
        await route(life, "on", "b", "c")
        await life.append("a", *range(5))
        await trio.sleep(10)
        began = trio.current_time()
        assert await datas(life, "c") == await datas(life, "b") == [0, 1]
        assert trio.current_time() == began
        assert await figures(life, "r") == (2, 3, 2)
        await life.append("a", 5)  # nobody who appends does, either
        assert trio.current_time() == began
        await life.delete("b", before_seq=2)
        await trio.sleep(2)
        assert await datas(life, "b") == [1, 2]
        assert await datas(life, "c") == [0, 1, 2]
        await life.put("b", cap_records=0)
        await trio.sleep(2)
        assert await datas(life, "b") == [1, 2, 3, 4, 5]
        assert await figures(life, "r") == (6, 0, 6)
        assert (await life.all("b"))[1] == []


# ----------------------------------------------------------------- what cannot be had


async def test_a_record_that_can_never_fit_is_one_seq_of_a_hole(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("b", cap_bytes=20, discard="reject")
        await route(life, "r", "a", "b", filter="t")
        await life.append("a", {"data": 1, "tag": "t"}, 2, {"data": "x" * 30, "tag": "t"}, {"data": 4, "tag": "t"})
        found, gaps = await life.all("b")
        assert [(record["$seq"], record["data"]) for record in found] == [(1, 1), (3, 4)]
        assert gaps == [(2, 2, "source_trim")]
        assert await figures(life, "r") == (4, 0, 2)


async def test_a_stamp_counts_when_it_is_judged_whether_a_record_can_fit(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("b", cap_bytes=40, discard="reject")
        await route(life, "r", "a", "b", guarantee="exactly_once")
        await life.append("a", "x" * 30, 1)
        assert (await life.all("b"))[1] == [(1, 1, "source_trim")]
        assert await datas(life, "b") == [1]


@pytest.mark.parametrize("durability", CLASSES)
async def test_what_retention_takes_before_a_blocked_router_is_one_seq_of_a_hole(
    durability: Any, autojump_clock: Any
) -> None:
    async with living() as life:
        await life.put("a", durability=durability)
        await life.put("b", cap_records=2, discard="reject")
        await route(life, "r", "a", "b")
        await route(life, "on", "b", "c")
        await life.append("a", *range(8))
        await trio.sleep(3)
        await life.put("a", cap_records=3)
        await life.put("b", cap_records=0)
        await trio.sleep(3)
        for name in "bc":
            assert await datas(life, name) == [0, 1, 5, 6, 7]
            assert (await life.all(name))[1] == [(3, 3, "source_trim")]
        assert await figures(life, "r") == (8, 0, 5)


async def test_a_loss_does_not_go_around_a_cycle_for_ever(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("b", cap_bytes=20, discard="reject")
        await route(life, "r1", "a", "b", allow_cycle=True)
        await route(life, "r2", "b", "a", allow_cycle=True)
        await life.append("a", "x" * 30, 1)
        await trio.sleep(30)
        heads = [life.engine.registry.topics[name].log.head_seq for name in "ab"]
        assert max(heads) <= 4
        assert (await life.all("b"))[1] == [(1, 1, "source_trim")]


async def test_what_is_deleted_before_it_is_forwarded_is_silently_absent(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("b", cap_records=1, discard="reject")
        await route(life, "r", "a", "b")
        await life.append("a", *[{"data": n, "tag": f"t{n % 2}"} for n in range(8)])
        await trio.sleep(1)
        await life.delete("a", before_seq=4)
        await life.delete("a", match="t1")
        await life.put("b", cap_records=0)
        await trio.sleep(2)
        assert await datas(life, "b") == [0, 4, 6]
        assert (await life.all("b"))[1] == []
        assert await figures(life, "r") == (8, 0, 3)


# ----------------------------------------------------------------- copies stay


@pytest.mark.parametrize("stored", [False, True])
async def test_copies_stay_whatever_becomes_of_the_source(stored: bool, autojump_clock: Any) -> None:
    fs = SimFs()
    config = settings(cache_bytes=0, wal_shards=2, wal_file_bytes=16 << 10)
    async with living(config, fs=fs) as life:
        await route(life, "r1", "a", "b")
        await route(life, "r2", "b", "c", preserve_node=False)
        await life.append("a", *[{"data": n, "tag": "t", "node": "n", "meta": {"k": str(n)}} for n in range(20)])
        expected = [await life.all(name, include_tags=True) for name in "bc"]
        assert len(expected[1][0]) == 20
        if stored:
            await life.compactor.checkpoint()
        await life.delete("a", match="t")
        await life.engine.topic_lifecycle.delete("a", if_empty=False)
        await life.engine.topic_lifecycle.delete("b", if_empty=False) if stored else None
        for _ in range(3):
            await life.append("d", *["x" * 3000] * 6)
            await life.compactor.checkpoint()
            await life.engine.reclaimer.pass_over()
        assert await life.all("c", include_tags=True) == expected[1]
        if not stored:
            assert await life.all("b", include_tags=True) == expected[0]
    async with living(config, fs=fs) as life:
        assert await life.all("c", include_tags=True) == expected[1]


async def test_frames_that_several_copies_share_are_read_for_each_of_them(autojump_clock: Any) -> None:
    """The copies of two routers in one dest are made of the same frames, so their places go back and forth."""
    fs = SimFs()
    config = settings(cache_bytes=0)
    async with living(config, fs=fs) as life:
        await route(life, "r1", "a", "b", filter="t")
        await route(life, "r2", "a", "b")
        for n in range(6):
            await life.append("a", {"data": 10 * n, "tag": "t"}, {"data": 10 * n + 1, "tag": "t"}, {"data": 10 * n + 2})
            expected = await datas(life, "b")
        assert len(expected) == 30
        await life.compactor.checkpoint()
        assert await datas(life, "b") == expected
        assert (await life.all("b"))[1] == []
    async with living(config, fs=fs) as life:
        assert await datas(life, "b") == expected


# ----------------------------------------------------------------- updates


async def test_an_update_keeps_cursor_and_total_and_a_new_filter_holds_from_the_cursor_on(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("b", cap_records=3, discard="reject")
        await route(life, "r", "a", "b")
        await life.append("a", *[{"data": n, "tag": f"t{n % 2}"} for n in range(8)])
        await trio.sleep(2)
        assert await figures(life, "r") == (3, 5, 3)
        state = await update(life, "r", filter="t0", start="tail")
        assert (state.cursor_seq, state.forwarded_total, state.start) == (3, 3, "earliest")
        await life.put("b", cap_records=0)
        await trio.sleep(2)
        assert await datas(life, "b") == [0, 1, 2, 4, 6]
        await update(life, "r", filter=None)
        await life.append("a", {"data": 9, "tag": "t1"})
        assert await datas(life, "b") == [0, 1, 2, 4, 6, 9]
        assert await figures(life, "r") == (9, 0, 6)


async def test_an_update_with_batches_on_their_way_repeats_nothing_after_a_restart(autojump_clock: Any) -> None:
    fs, offload = SimFs(), HeldOffload()
    async with living(fs=fs, offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("a", durability="memory")
        await route(life, "r", "a", "b")
        await life.append("a", *range(5))
        await trio.sleep(1)
        offload.hold()
        await settle()
        appending = Called(nursery, lambda: life.append("a", *range(5, 10)))
        updating = Called(nursery, lambda: update(life, "r", preserve_tag=False))
        await settle()
        offload.let_go()
        await trio.sleep(1)
        assert appending.done
        assert updating.done
        assert await datas(life, "b") == list(range(10))
        killed = fs.after_process_kill()
    async with living(fs=killed) as life:
        assert await datas(life, "b") == list(range(10))
        assert (await figures(life, "r"))[2] == 10


# ----------------------------------------------------------------- refusals


async def test_refusals_come_before_anything_is_created(autojump_clock: Any) -> None:
    async with living() as life:
        await route(life, "r", "a", "b")
        cases: list[tuple[str, str, dict[str, Any]]] = [
            ("router_cycle", "r1", {"source": "b", "dest": "a"}),
            ("topic_exists_incompatible", "r1", {"source": "new", "dest": "b"}),
            ("topic_exists_incompatible", "r", {"source": "new", "dest": "b"}),
            ("topic_exists_incompatible", "r", {"source": "a", "dest": "new"}),
            ("topic_not_found", "r1", {"source": "new", "dest": "new2", "create_dest": False}),
            ("invalid_request", "r1", {"source": "new", "dest": "new"}),
            ("invalid_request", "r1", {"source": "new", "dest": "new2", "filter": ["tag", "Glob", "x"]}),
            ("invalid_request", "r1", {"source": "new", "dest": "-new"}),
            ("invalid_request", "r1", {"source": "new"}),
        ]
        for code, name, patch in cases:
            error = await refusal(life.engine.routers.put(name, RouterPatch(**patch)))
            assert error.code == code, patch
            assert list(life.engine.registry.topics) == ["a", "b"], patch
        assert [state.router for state in life.engine.routers.page("", None, None, None, 10)[0]] == ["r"]


@pytest.mark.parametrize("limits", [{"max_topics": 3}, {"max_routers": 1}])
async def test_a_router_over_a_limit_leaves_nothing_behind(limits: dict[str, int], autojump_clock: Any) -> None:
    async with living(settings(**limits)) as life:
        await route(life, "r", "a", "b")
        error = await refusal(route(life, "r1", "c", "d"))
        assert (error.status, error.detail["limit"]) == (429, next(iter(limits)))
        assert list(life.engine.registry.topics) == ["a", "b"]
        assert life.engine.forwarders.forwarders.keys() == {"r"}


# ----------------------------------------------------------------- topics that go


async def test_a_topic_takes_its_routers_with_it(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        for name, ends in {"r1": "ab", "r2": "bc", "r3": "xc"}.items():
            await route(life, name, ends[0], ends[1], allow_cycle=True)
        await life.append("a", 1)
        await life.append("x", 2)
        assert sorted(await datas(life, "c")) == [1, 2]
        assert await life.engine.topic_lifecycle.delete("b", if_empty=False) == (True, ["r1", "r2"])
        assert life.engine.forwarders.forwarders.keys() == {"r3"}
        await life.append("a", 3)
        await life.append("b", 4)
        assert sorted(await datas(life, "c")) == [1, 2]
        assert life.engine.registry.topics["a"].fanout is None
    async with living(fs=fs) as life:
        assert [state.router for state in life.engine.routers.page("", None, None, None, 9)[0]] == ["r3"]
        assert sorted(await datas(life, "c")) == [1, 2]


@pytest.mark.parametrize("seed", range(4))
async def test_races_of_routers_topics_and_appends_leave_no_forwarder_without_router(
    seed: int, autojump_clock: Any
) -> None:
    chance = random.Random(seed)
    async with living(settings(wal_shards=2)) as life:
        engine = life.engine
        tasks = engine._background._nursery
        assert tasks is not None
        baseline = len(tasks.child_tasks)

        async def tried(work: Any) -> None:
            try:
                await work
            except ApiError as error:
                if error.status not in (404, 409):
                    raise

        async with trio.open_nursery() as nursery:
            for n in range(120):
                a, b = chance.sample("abcd", 2)
                work = chance.choice(
                    (
                        lambda a=a, b=b, n=n: route(life, f"{a}>{b}", a, b, allow_cycle=True, guarantee="exactly_once"),
                        lambda a=a, b=b: engine.routers.delete(f"{a}>{b}"),
                        lambda a=a: engine.topic_lifecycle.delete(a, if_empty=False),
                        lambda a=a, n=n: life.append(a, n),
                        lambda a=a, n=n: life.put(a, durability=CLASSES[n % 4]),
                        lambda a=a: life.seqs(a),
                    )
                )
                nursery.start_soon(tried, work())
                if chance.random() < 0.3:
                    await trio.sleep(chance.choice((0, 0, 0.001, 0.05)))
        await trio.sleep(5)
        states = {state.router: state for state in engine.routers.page("", None, None, None, 99)[0]}
        assert states.keys() == engine.forwarders.forwarders.keys()
        incoming = {name for topic in engine.registry.topics.values() for name in topic.incoming or ()}
        assert incoming == states.keys()
        fans = {
            forwarder.router.name
            for topic in engine.registry.topics.values()
            if topic.fanout is not None
            for forwarder in topic.fanout.audience.consumers
        }
        assert fans == states.keys()
        for name, forwarder in engine.forwarders.forwarders.items():
            assert forwarder.source is engine.registry.topics[states[name].source]
            assert forwarder.dest is engine.registry.topics[states[name].dest]
            assert states[name].lag == 0
        assert len(tasks.child_tasks) == baseline
        assert engine.forwarders.failures == 0
        for state in states.values():
            assert await engine.routers.delete(state.router)
        assert not engine.forwarders.forwarders
        assert all(topic.fanout is None and topic.incoming is None for topic in engine.registry.topics.values())


# ----------------------------------------------------------------- classes


async def test_a_copy_counts_as_synced_only_when_its_bytes_in_another_shard_are(
    autojump_clock: Any, monkeypatch: Any
) -> None:
    async with living(settings(wal_shards=2)) as life:
        await life.put("a", durability="disk")
        await life.put("b", durability="disk")
        source, dest = life.engine.registry.topics["a"], life.engine.registry.topics["b"]
        assert source.shard != dest.shard
        await route(life, "r", "a", "b")
        held: list[Any] = []
        with monkeypatch.context() as patch:
            patch.setattr(source.common, "is_synced", lambda shard, end: shard != source.shard)
            patch.setattr(source.common, "when_synced", lambda shard, call: held.append(call))
            await life.append("b", 1)
            await life.append("a", 2, 3)
            assert await life.seqs("b") == [1, 2, 3]
            await life.append("b", 4)
            await trio.sleep(5)
            assert (dest.log.head_seq, dest.synced_seq) == (4, 1)
        for call in held:
            call()
        assert (await life.engine.topic_states.of("b", touch=False)).synced_seq == 4


@pytest.mark.parametrize("source_class", ["memory", "disk"])
async def test_a_copy_into_a_stronger_class_is_made_of_what_is_synced(source_class: Any, autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("a", durability=source_class)
        await life.put("b", durability="fsync")
        await route(life, "r", "a", "b")
        await life.append("a", 1)
        await trio.sleep(5)
        await life.append("a", 2)  # the tick has long been due: this one is synced at once
        await settle()
        await life.append("a", 3)
        await settle()
        dest, source = life.engine.registry.topics["b"], life.engine.registry.topics["a"]
        assert (source.synced_seq, source.log.head_seq, dest.log.head_seq) == (2, 3, 2)
        began = trio.current_time()
        assert await life.seqs("b") == [1, 2, 3]  # a reader asks for the sync
        assert trio.current_time() == began
        await life.append("a", 4)
        await trio.sleep(1)  # without one it comes with the next tick
        assert (source.synced_seq, dest.log.head_seq) == (4, 4)


async def test_from_an_ephemeral_source_copies_are_logged_and_into_an_ephemeral_dest_nothing_is(
    autojump_clock: Any,
) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.put("a", durability="ephemeral")
        await life.put("b", durability="disk")
        await life.put("c", durability="ephemeral")
        await route(life, "r1", "a", "b")
        await route(life, "r2", "b", "c")
        await life.append("a", {"data": 1, "tag": "t"}, 2)
        assert await datas(life, "b") == await datas(life, "c") == [1, 2]
        await trio.sleep(1)
        assert [frame.topic_id for frame, _ in life.frames(FrameType.APPEND)] == [
            life.engine.registry.topics["b"].id
        ] * 2
        assert {payload["router"] for _, payload in life.frames(FrameType.FORWARDED)} == {"r1", "r2"}
        killed = fs.after_process_kill()
    async with living(fs=killed) as life:
        assert await datas(life, "b") == [1, 2]
        assert await datas(life, "c") == []
        assert (await life.all("c"))[1] != []
        assert (await figures(life, "r2"))[2] == 2


@pytest.mark.parametrize("end", ["a", "b"])
async def test_topics_change_their_classes_while_they_are_routed(end: str, autojump_clock: Any) -> None:
    fs = SimFs()
    expected: list[int] = []
    async with living(settings(wal_shards=2, cache_bytes=0), fs=fs) as life:
        await route(life, "r1", "a", "b")
        await route(life, "r2", "b", "c")
        for durability in CLASSES * 2:
            for other in CLASSES:
                expected.append(len(expected))
                await life.append("a", expected[-1])
                await life.put(end, durability=durability)
                expected.append(len(expected))
                await life.append("a", expected[-1])
                await life.put(end, durability=other)
        for name in "bc":
            assert await datas(life, name) == expected
        await life.compactor.checkpoint()
        for name in "bc":
            assert await datas(life, name) == expected
    async with living(settings(wal_shards=2, cache_bytes=0), fs=fs) as life:
        for name in "abc":
            assert await datas(life, name) == expected


async def test_an_ephemeral_source_that_is_stored_is_forwarded_to_its_head(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("a", durability="ephemeral")
        await life.put("b", cap_records=1, discard="reject")
        await route(life, "r", "a", "b")
        await life.append("a", *[{"data": n, "tag": f"t{n // 3}"} for n in range(6)])
        await trio.sleep(1)
        await life.delete("a", match="t1")  # the last ones: they are not written out
        await life.put("a", durability="disk")
        await life.put("b", cap_records=0)
        await trio.sleep(2)
        assert await datas(life, "b") == [0, 1, 2]
        assert await figures(life, "r") == (6, 0, 3)


# ----------------------------------------------------------------- lives


@pytest.mark.parametrize("clean", [True, False])
async def test_a_restart_keeps_cursor_total_and_lag(clean: bool, autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock, clean=clean) as life:
        await life.put("b", cap_records=3, discard="reject")
        await route(life, "r", "a", "b", guarantee="exactly_once")
        await life.append("a", *range(7))
        await trio.sleep(2)
        before = life.engine.routers.state("r")
        assert (before.cursor_seq, before.lag, before.forwarded_total) == (3, 4, 3)
        if not clean:
            fs = fs.after_process_kill()
    async with living(fs=fs, clock=clock) as life:
        assert life.engine.routers.state("r") == before
        assert await datas(life, "b") == [0, 1, 2]
        await life.put("b", cap_records=0)
        await trio.sleep(2)
        assert await datas(life, "b") == list(range(7))
        assert await figures(life, "r") == (7, 0, 7)


async def test_what_forwards_from_a_topic_of_the_lowest_band_waits_while_that_is_paused(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("a", priority=-500)
        await route(life, "r1", "a", "b")
        await route(life, "r2", "x", "y")
        life.engine.delivery.scheduler.pause_lowest()
        await life.append("a", 1)
        await life.append("x", 2)
        await trio.sleep(10)
        assert [life.engine.registry.topics[name].log.head_seq for name in "by"] == [0, 1]
        life.engine.delivery.scheduler.resume_lowest()
        await settle()
        assert life.engine.registry.topics["b"].log.head_seq == 1


async def test_a_forwarder_that_fails_is_started_again_and_counted(autojump_clock: Any, monkeypatch: Any) -> None:
    async with living() as life:
        await route(life, "r1", "a", "b")
        await route(life, "r2", "a", "c")
        choose = Forwarders._choose
        times: list[float] = []

        def fail(forwarders: Forwarders, forwarder: Any, taken: Any, looked_at: int) -> Any:
            if forwarder.router.name == "r1" and len(times) < 4:
                times.append(trio.current_time())
                raise ZeroDivisionError
            return choose(forwarders, forwarder, taken, looked_at)

        monkeypatch.setattr(Forwarders, "_choose", fail)
        with quiet():
            await life.append("a", 1)
            began = trio.current_time()
            assert await datas(life, "c") == [1]
            assert trio.current_time() - began < 0.1
            await trio.sleep(5)
        assert await datas(life, "b") == [1]
        assert life.engine.forwarders.failures == len(times) == 4
        pauses = [later - earlier for earlier, later in pairwise(times)]
        assert pauses == sorted(pauses)
        assert pauses[0] > 0


async def test_a_forwarder_whose_reading_fails_is_started_again_and_counted(
    autojump_clock: Any, monkeypatch: Any
) -> None:
    async with living(settings(cache_bytes=0)) as life:
        await life.append("a", *range(5))
        await trio.sleep(1)
        life.engine.registry.topics["a"].blocks.clear()
        loader = life.engine.loader
        load = loader.load
        failed: list[float] = []

        async def fail(*args: Any) -> Any:
            if len(failed) < 2:
                failed.append(trio.current_time())
                raise ZeroDivisionError
            return await load(*args)

        monkeypatch.setattr(loader, "load", fail)
        with quiet():
            await route(life, "r", "a", "b")
            await trio.sleep(5)
        assert life.engine.forwarders.failures == len(failed) == 2
        assert await datas(life, "b") == list(range(5))


async def test_a_slow_disk_holds_up_only_the_forwarder_that_needs_it(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life:
        await life.append("a", *range(5))
        await trio.sleep(1)
        life.engine.registry.topics["a"].blocks.clear()
        offload.hold(Pool.HOT_READ)
        await route(life, "r1", "a", "b")
        await route(life, "r2", "a", "c", start="tail")
        await life.append("a", 5)
        count = (await life.engine.topic_states.of("c", touch=False)).count
        reads = life.engine.registry.topics["b"].log.count
        deleted = await life.engine.routers.delete("r1")  # it does not wait for it, either
        offload.let_go(Pool.HOT_READ)
        assert (count, reads, deleted) == (1, 0, True)
        await trio.sleep(1)
        assert await datas(life, "b") == []


# ----------------------------------------------------------------- what copies are made of


async def test_the_log_that_copies_are_made_of_stays_while_a_checkpoint_has_to_pass_over_their_topic(
    autojump_clock: Any,
) -> None:
    async with living(settings(wal_shards=2, wal_file_bytes=1 << 14, cache_bytes=1000), housekeeping=False) as life:
        await route(life, "r", "a", "b")
        source, dest = life.engine.registry.topic("a"), life.engine.registry.topic("b")
        for n in range(100):
            await life.append("a", {"data": "x" * 200, "meta": {"n": str(n)}})
        await life.engine.routers.catch_up(["b"])
        dest.segment_set = SegmentSet()
        made_of = {life.engine.store.files.get(file).path for file in dest.copy_table().files}
        assert len(made_of) > 1

        async def work_on_its_files(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            assert dest.segment_set is not None
            async with dest.segment_set.hot_lock:
                task_status.started()
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            await nursery.start(work_on_its_files)
            for _ in range(3):
                await life.compactor.checkpoint()
                await life.append("a", "more")
            assert source.log.stored.last_seq >= 100
            assert not dest.log.stored.last_seq
            assert all(life.fs.exists(path) for path in made_of)
            found, gaps = await life.all("b")
            assert (len([record for record in found if record["data"] != "more"]), gaps) == (100, [])
            nursery.cancel_scope.cancel()
        for _ in range(3):
            await life.append("a", "more")
            await life.engine.routers.catch_up(["b"])
            await life.compactor.checkpoint()
        assert dest.log.stored.last_seq >= 100
        assert sum(life.fs.exists(path) for path in made_of) <= 1  # that which the shard writes to now


async def test_a_full_dest_over_a_source_that_goes_on_losing_is_told_of_it_once(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("a", cap_records=3)
        await life.put("b", cap_records=2, discard="reject")
        await route(life, "r", "a", "b")
        for n in range(60):
            await life.append("a", n)
            await trio.sleep(0.1)
        assert await datas(life, "b") == [0, 1]
        assert (await life.engine.topic_states.of("b", touch=False)).head_seq == 2
        await life.delete("b", before_seq=3)
        await trio.sleep(CATCH_UP_S + 1)
        found, gaps = await life.all("b")
        assert ([record["data"] for record in found], gaps) == ([57, 58], [(1, 3, "source_trim")])


async def test_a_refused_router_leaves_no_topic_behind_however_many_are_made_meanwhile(autojump_clock: Any) -> None:
    async with living(settings(max_topics=2)) as life:
        refused: list[str] = []

        async def make_router() -> None:
            try:
                await route(life, "r", "a", "b")
            except ApiError as error:
                refused.append(error.code)

        async def make_topic() -> None:
            for _ in range(4):
                await trio.lowlevel.checkpoint()
            try:
                await life.put("other")
            except ApiError as error:
                refused.append(error.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(make_router)
            nursery.start_soon(make_topic)
        assert refused == ["throttled"]
        assert set(life.engine.registry.topics) in ({"a", "b"}, {"other"})


# ----------------------------------------------------------------- under pressure


async def test_under_pressure_routers_are_a_band_lower_and_never_so_low_as_to_be_paused(autojump_clock: Any) -> None:
    async with living() as life:
        for name, priority in {"high": 600, "low": 100, "negative": -5}.items():
            await life.put(name, priority=priority)
            await route(life, f"of-{name}", name, f"{name}-dest")
        topics = [life.engine.registry.topic(name) for name in ("high", "low", "negative")]
        fans = [topic.fanout for topic in topics if topic.fanout is not None]
        priority_of = life.engine.delivery.scheduler._priority_of
        assert [priority_of(fan) for fan in fans] == [600, 100, -5]
        life.engine.governor.steps = CALM._replace(routers_lowered=True)
        assert [priority_of(fan) for fan in fans] == [350, 0, -5]
        assert [priority_of(topic) for topic in topics] == [600, 100, -5]
