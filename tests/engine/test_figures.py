"""What the engine tells of itself when it is scraped: of whom one by one, and the sums over all."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.engine.life import Life, living
from tests.engine.redrives.test_redrives import claim, condemn, put_group
from topics.auth.keys import ALL, OPEN, Key
from topics.engine import engine_metrics
from topics.job_model import ClaimRequest, HeldRequest
from topics.model import Performance, RouterPatch
from topics.queue.job_results import RESULT_BYTES
from topics.telemetry.figures import EngineFigures, JobFigures

pytestmark = pytest.mark.trio


def covering(*prefixes: str) -> Key:
    return Key(b"digest", ALL, prefixes)


def shown(figures: EngineFigures) -> list[str]:
    return [sample.name for sample in figures.topic_samples]


async def made(life: Life, *names: str) -> None:
    for name in names:
        await life.put(name, durability="ephemeral")


async def test_a_scrape_shows_the_topics_that_it_may_and_counts_all() -> None:
    async with living() as life:
        await made(life, "b1", "a2", "a1")
        await life.append("a1", 1, 2)
        await life.append("b1", 3)
        assert shown(await life.engine.metrics.figures()) == ["a1", "a2", "b1"]
        figures = await life.engine.metrics.figures(covering("a"))
        assert shown(figures) == ["a1", "a2"]
        assert (figures.topics, figures.records_live, figures.by_class["ephemeral"]) == (3, 3, 3)
        assert not figures.topics_truncated
        assert shown(await life.engine.metrics.figures(covering("none"))) == []


async def test_so_many_of_those_that_it_may_see_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_metrics, "METRIC_TOPICS", 2)
    async with living() as life:
        await made(life, "a1", "a2", "a3", "b1", "b2")
        for key, names, truncated in (
            (OPEN, ["a1", "a2"], True), (covering("a"), ["a1", "a2"], True), (covering("b"), ["b1", "b2"], False),
            (covering("a3", "b2"), ["a3", "b2"], False),
        ):  # fmt: skip
            figures = await life.engine.metrics.figures(key)
            assert (shown(figures), figures.topics_truncated) == (names, truncated)


async def test_a_router_is_shown_to_those_who_may_see_both_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with living() as life:
        for name, source, dest in (("a1", "ax", "ay"), ("a2", "ax", "by"), ("a3", "bx", "az"), ("b1", "ax", "aw")):
            await life.engine.routers.put(name, RouterPatch(source=source, dest=dest))
        figures = await life.engine.metrics.figures(covering("a"))
        assert [sample.router for sample in figures.router_samples] == ["a1"]
        assert (figures.routers, figures.routers_truncated) == (4, False)
        monkeypatch.setattr(engine_metrics, "METRIC_ROUTERS", 1)
        assert not (await life.engine.metrics.figures(covering("a"))).routers_truncated
        figures = await life.engine.metrics.figures(covering("a", "b"))
        assert [sample.router for sample in figures.router_samples] == ["a1"]
        assert figures.routers_truncated


async def test_topics_may_come_and_go_while_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_metrics, "CENSUS_STEP", 1)
    async with living() as life:
        await made(life, *(f"t{n}" for n in range(20)))
        await life.engine.routers.put("r", RouterPatch(source="t3", dest="t4"))
        found: list[EngineFigures] = []

        async def scrape() -> None:
            found.append(await life.engine.metrics.figures())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(scrape)
            for n in range(20):
                await life.engine.topic_lifecycle.delete(f"t{n}", if_empty=False)
                await made(life, f"new{n}")
        [figures] = found
        names = shown(figures)
        assert names == sorted(set(names))
        assert set(shown(await life.engine.metrics.figures())) == {f"new{n}" for n in range(20)}


async def test_queues_are_counted_with_their_leases() -> None:
    async with living() as life:
        await life.put("q", type="queue")
        await life.append("q", 1, 2, 3)
        figures = await life.engine.metrics.figures()
        assert (figures.queue_topics, figures.queue_leases) == (1, 0)
        assert figures.topic_samples[0].jobs == JobFigures(3, 0, 0, paused=False, dead_lettered=0)


async def test_results_that_are_not_delivered_yet_are_counted(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("done", cap_records=1, discard="reject")
        await life.append("done", "in the way")
        await life.put("q", type="queue", completed="done")
        await life.append("q", 1, 2)
        claim = ClaimRequest(node="n", most=2, lease_ms=60_000, wait_ms=0)
        assert len((await life.engine.queues.claim("q", claim, Performance())).jobs) == 2
        held = HeldRequest(node="n", seqs=[1, 2], lease_ids=None, results={1: b"7", 2: b"null"})
        await life.engine.queues.ack("q", held, Performance())
        await trio.sleep(1)
        figures = await life.engine.metrics.figures()
        assert (figures.results_waiting, figures.results_bytes) == (2, 2 * RESULT_BYTES + 5)
        await life.delete("done", before_seq=2)
        await life.put("done", cap_records=10)
        await trio.sleep(31)
        figures = await life.engine.metrics.figures()
        assert (figures.results_waiting, figures.results_bytes) == (0, 0)


async def test_the_records_of_a_group_are_counted_and_leases_that_are_over_are_not(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("log", durability="disk")
        await life.append("log", 1, 2, 3, 4)
        await put_group(life, dead_letter="dead")
        await claim(life, "log", "g", most=2)
        await condemn(life, "log", 1, group="g")
        (sample,) = (await life.engine.metrics.figures()).group_samples
        assert sample.jobs == JobFigures(2, 1, 0, paused=False, dead_lettered=1)
        await trio.sleep(61)
        (sample,) = (await life.engine.metrics.figures()).group_samples
        assert (sample.jobs.ready, sample.jobs.in_flight) == (3, 0)
