"""Deletions with several conditions (`docs/spec/consumers.md` section 7), against a list of records."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from tests.engine.life import Called, HeldOffload, Life, living, settings, settle
from tests.simulation.disk import SimFs
from topics.engine.operations import delete
from topics.log.tag_match import parse_match
from topics.runtime.offload import Pool

pytestmark = pytest.mark.trio

TAGS = (None, "a", "ab", "b")
MATCHES = ("a", ["tag", "Glob", "a*"], ["tag", "Glob", "*"], "b")


class Naive:
    """The records of a topic, as a list of (seq, ts, tag)."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int, str | None]] = []
        self.head = 0

    def delete(
        self, before_seq: int | None, match: Any, *, after_seq: int | None = None, before_ts: int | None = None
    ) -> int:
        wanted = parse_match(match) if match is not None else None
        kept = [
            (seq, ts, tag)
            for seq, ts, tag in self.records
            if (before_seq is not None and seq >= before_seq)
            or (after_seq is not None and seq <= after_seq)
            or (before_ts is not None and ts >= before_ts)
            or (wanted is not None and not wanted.matches(tag))
        ]
        gone, self.records = len(self.records) - len(kept), kept
        return gone

    @property
    def seqs(self) -> list[int]:
        return [seq for seq, _, _ in self.records]


async def seqs_of(life: Life, name: str) -> list[int]:
    found, gaps = await life.all(name)
    assert gaps == []
    return [record["$seq"] for record in found]


async def walk(life: Life, naive: Naive, rng: random.Random, steps: int) -> None:
    """Appends, deletions and checkpoints; every answer and every read agrees with the list."""
    for _ in range(steps):
        kind, head = rng.random(), naive.head
        if kind < 0.5:
            tags = [rng.choice(TAGS) for _ in range(rng.randrange(1, 30))]
            done = await life.append("t", *[{"data": 1, "tag": tag} for tag in tags])
            ts = life.engine.registry.topics["t"].log.last_ts
            naive.records += [(done.first_seq + i, ts, tag) for i, tag in enumerate(tags)]
            naive.head = done.last_seq
        elif kind < 0.85:
            times = [ts for _, ts, _ in naive.records] or [0]
            bounds = {
                "after_seq": rng.choice((None, None, 0, rng.randrange(head + 2), max(head - 3, 0))),
                "before_ts": rng.choice((None, None, rng.choice(times), times[-1] + 1)),
            }
            before = rng.choice((None, None, rng.randrange(head + 3)))
            match = rng.choice((None, *MATCHES))
            if all(given is None for given in (before, match, *bounds.values())):
                before = 1
            wanted = parse_match(match) if match is not None else None
            counted = await life.engine.deletions.count_records("t", before, wanted, **bounds)
            assert (counted.count, counted.head_seq) == (len(naive.records), head), "nothing was deleted"
            answer = await life.delete("t", before, match, **bounds)
            assert counted.deleted == answer.deleted
            assert answer.deleted == naive.delete(before, match, **bounds)
            assert (answer.count, answer.head_seq) == (len(naive.records), head)
            assert answer.earliest_seq == (naive.seqs[0] if naive.records else head + 1)
        elif kind < 0.95:
            await life.compactor.checkpoint()
        await trio.sleep(rng.choice((0, 0.002, 0.5)))
        assert await seqs_of(life, "t") == naive.seqs


@pytest.mark.parametrize("seed", range(12))
async def test_all_conditions_that_are_given_have_to_hold(
    seed: int, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, naive, fs = random.Random(seed), Naive(), SimFs()
    monkeypatch.setattr(delete, "DELETE_SLICE", rng.choice((3, 10_000)))
    monkeypatch.setattr(delete, "DELETE_SPREAD", rng.choice((5, 40_000)))
    config = settings(cache_bytes=rng.choice((0, 1 << 20)))
    for _ in range(3):
        async with living(config, fs=fs) as life:
            if not naive.head:
                await life.put("t", durability="fsync")
            assert await seqs_of(life, "t") == naive.seqs
            await walk(life, naive, rng, 25)
            fs = fs.after_machine_crash("drop", seed) if rng.random() < 0.7 else fs


async def test_a_deletion_with_a_beginning_is_carried_out_in_slices_and_survives_a_crash(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, count = SimFs(), 20_000
    monkeypatch.setattr(delete, "DELETE_SLICE", count // 8)
    async with living(fs=fs) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="fsync")
        for _ in range(count // 5000):
            await life.append("t", *range(5000))
        gone = Called(nursery, lambda: life.delete("t", after_seq=10))
        topic = life.engine.registry.topics["t"]
        while topic.working is None:
            await trio.lowlevel.checkpoint()
        assert not gone.done
        killed = fs.after_process_kill()
        await settle()
        assert gone.result.deleted == count - 10
        assert await life.seqs("t") == list(range(1, 11))
        assert (await life.append("t", 1)).first_seq == count + 1
    async with living(fs=killed) as life:
        assert await life.seqs("t") in (list(range(1, 11)), list(range(1, 1001)))
        assert (await life.append("t", 1)).first_seq == count + 1


async def test_only_what_is_present_at_the_call(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="fsync")
        await life.append("t", 1, 2)
        offload.hold(Pool.WAL)
        early = Called(nursery, lambda: life.append("t", 3))
        await settle()
        gone = Called(nursery, lambda: life.delete("t", after_seq=1, before_ts=2**63))
        await settle()
        offload.let_go(Pool.WAL)
        await settle()
        assert early.done
        assert gone.result.deleted == 1
        assert await life.seqs("t") == [1, 3]


async def test_a_job_behind_a_seq_is_deleted_and_its_lease_ends(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.put("t", type="queue", durability="fsync")
        await life.append("t", 1, 2, 3)
        await life.delete("t", after_seq=1, before_seq=3)
        state = (await life.engine.topic_states.of("t", touch=False)).queue
        assert (state.ready, state.in_flight) == (2, 0)  # type: ignore[union-attr]
        fs = fs.after_machine_crash("drop", 1)
    async with living(fs=fs) as life:
        state = (await life.engine.topic_states.of("t", touch=False)).queue
        assert (state.ready, state.in_flight) == (2, 0)  # type: ignore[union-attr]


async def test_a_hole_of_any_length_costs_nothing(autojump_clock: Any) -> None:
    async with living(clean=False) as life:
        await life.put("t", durability="ephemeral")
        await life.append("t", 1, 2)
        life.engine.registry.topics["t"].log.add_hole(3, 1 << 50, "lost")
        life.engine.registry.topics["t"].assigned = 1 << 50
        assert (await life.delete("t", after_seq=1)).deleted == 1
        assert (await life.delete("t", after_seq=1 << 40)).deleted == 0
