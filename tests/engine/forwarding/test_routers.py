"""What routers carry, in which order and how often; updates and refusals."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import trio

from tests.engine.forwarding.router_calls import CLASSES, datas, figures, route, update
from tests.engine.life import Called, HeldOffload, Life, living, refusal, settings, settle
from tests.simulation.disk import SimFs
from topics.engine.forwarding import forwarders, source_columns
from topics.engine.forwarding.forwarders import CATCH_UP_S, Forwarders
from topics.engine.forwarding.source_columns import SourceColumns
from topics.engine.record_collector import DECODE_BYTES
from topics.log.copies import MAX_HOPS
from topics.model import RouterPatch
from topics.raw_bytes import data_of_bytes
from topics.storage.wal.frames import FrameType

pytestmark = pytest.mark.trio


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
