"""A manifest that cannot be read costs nothing, though segments were rewritten or dropped since the last snapshot: the
log says what has become of the records that are not in the files any more (`docs/spec/crash.md` 8 and 9).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from tests.simulation.model import Client, View
from tests.simulation.test_crash_sweep import see
from tests.simulation.test_recovery_rules import lived
from tests.simulation.world import Life
from topics.job_model import ClaimRequest, HeldRequest, NackTerms
from topics.log.tag_match import TagMatch
from topics.model import Performance

SMALL: Final[dict[str, Any]] = {
    "segment_max_events": 8,
    "segment_max_bytes": 1 << 20,
    "segment_max_age_ms": 0,
    "rewrite_live_ratio": 0.9,
    "hot_retain_segments": 1,
}
NAME: Final = "topic"
Change = Callable[[Life, Client], Awaitable[None]]


def after_a_bad_manifest(before: Change, since: Change, *, records: int = 16, files: int = -1, **config: Any) -> View:
    """What a start shows that has the snapshot of a moment between the two changes of some records, and the log. Behind
    the second one the reclaimer has passed, and the manifest that knows of that has a bit that is wrong. There are so
    many `.data` then, if that is said."""

    async def script(life: Life, client: Client) -> None:
        await client.create(NAME, durability="fsync", **config)
        for i in range(records):
            await client.append(NAME, 1, tag="even" if i % 2 else "odd")
        await life.compactor.checkpoint()
        await before(life, client)
        await life.compactor.checkpoint()
        await since(life, client)
        await life.reclaimer.pass_over()
        taken.append(await client.look(NAME))

    taken: list[View | None] = []
    world = lived(script, **SMALL)
    data = [path for path in world.fs.tree() if path.endswith(".data")]
    assert files in (-1, len(data)), data
    manifest = next(path for path in world.fs.tree() if path.endswith("/topic.cbor"))
    world.fs.flip_bit(manifest, 100, 3)
    start = world.after("kill")
    view = see(start)[NAME]
    assert any(event["event"] == "manifest_damaged" for event in start.events)
    assert view == taken[0]
    assert see(start.after("drop"))[NAME] == view
    return view


async def nothing(_life: Life, _client: Client) -> None:
    pass


def below(seq: int) -> Change:
    async def change(_life: Life, client: Client) -> None:
        await client.delete(NAME, before=seq)

    return change


def tagged(tag: str) -> Change:
    async def change(_life: Life, client: Client) -> None:
        await client.delete(NAME, match=TagMatch(tag, prefix=False))

    return change


def acked(*seqs: int) -> Change:
    """These jobs are claimed and acked, one by one."""

    async def change(life: Life, _client: Client) -> None:
        claimed = await life.engine.queues.claim(
            NAME, ClaimRequest(node="n", most=1000, lease_ms=None, wait_ms=0), Performance()
        )
        held = {job.seq: job.lease_id for job in claimed.jobs}
        for seq in seqs:
            done = HeldRequest(node="n", seqs=[seq], lease_ids=[held[seq]])
            assert (await life.engine.queues.ack(NAME, done, Performance())).done == [seq]
        for seq in held.keys() - set(seqs):
            await life.engine.queues.nack(
                NAME, HeldRequest(node="n", seqs=[seq], lease_ids=[held[seq]]), NackTerms(0), Performance()
            )

    return change


@pytest.mark.parametrize("cap", [3, 10, 14])
def test_what_was_evicted_stays_announced(cap: int) -> None:
    async def capped(_life: Life, client: Client) -> None:
        await client.configure(NAME, cap_records=cap)

    view = after_a_bad_manifest(nothing, capped)
    assert (view.gaps, view.count) == ([(1, 16 - cap, "cap")], cap)


@pytest.mark.parametrize("first", [nothing, tagged("odd"), below(4)])
@pytest.mark.parametrize("cap", [2, 6])
def test_what_was_evicted_stays_announced_where_some_was_deleted_before(first: Change, cap: int) -> None:
    async def capped(_life: Life, client: Client) -> None:
        await client.configure(NAME, cap_records=cap)

    view = after_a_bad_manifest(first, capped)
    assert view.gaps == [(1, min(view.records) - 1, "cap")]


@pytest.mark.parametrize("since", [below(6), below(9), below(14), tagged("odd"), tagged("even")])
@pytest.mark.parametrize("before", [nothing, below(3), tagged("odd")])
def test_what_was_deleted_stays_silent(before: Change, since: Change) -> None:
    assert after_a_bad_manifest(before, since).gaps == []


@pytest.mark.parametrize("order", [range(9, 17), range(16, 8, -1)])
@pytest.mark.parametrize("early", [0, 3])
def test_jobs_of_a_segment_that_was_dropped_are_done(order: range, early: int) -> None:
    before = acked(*order[:early]) if early else nothing
    since = acked(*order[early:])
    view = after_a_bad_manifest(before, since, records=24, files=2, type="queue", lease_ms=1000)
    assert (view.gaps, sorted(view.records)) == ([], [*range(1, 9), *range(17, 25)])
