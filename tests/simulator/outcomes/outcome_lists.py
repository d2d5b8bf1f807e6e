"""Lists of jobs (`docs/design/jobs.md` section 7), held against what is there."""

from __future__ import annotations

from typing import Final

import msgspec

from tests.simulation.world import Life
from tests.simulator.known import DEAD_LETTER_META, broken
from tests.simulator.outcomes.outcome_seen import rows_of
from topics.engine.engine import Engine
from topics.engine.job_queue import JobQueue
from topics.job_model import JobPageRequest, JobStateName, ShownJob
from topics.model import Performance, QueueState

STATES: Final[tuple[JobStateName, ...]] = ("ready", "in_flight", "delayed")
PAGE: Final = 7


async def listed(
    engine: Engine, name: str, group: str | None, state: JobStateName | None, *, dead: str | None = None
) -> dict[int, ShownJob]:
    """All pages of a list, by seq; with `dead`, of what that topic has of a queue or group. Raises ApiError."""
    found: dict[int, ShownJob] = {}
    after: int | None = 0
    while after is not None:
        request = JobPageRequest(state, None, after, PAGE)
        if dead is None:
            page = await engine.job_lists.page(name, request, Performance(), group)
        else:
            page = await engine.job_lists.letters(name, dead, request, Performance(), group)
        for job in page.jobs:
            seq = seq_of(job)
            if seq <= max(found, default=0):
                broken(f"{name}: the list of {state} jobs has {seq} behind {list(found)}")
            found[seq] = job
        if page.next_after is not None and page.next_after <= after:
            broken(f"{name}: the list of {state} jobs goes on behind {page.next_after}, and was at {after}")
        after = page.next_after
    return found


def seq_of(job: ShownJob) -> int:
    """The seq of a job in a list."""
    seq: int = msgspec.json.decode(b"{" + job.record)["$seq"]
    return seq


async def check_lists(life: Life) -> int:
    """Every list of every queue and group shows what there is, while nothing moves; how many jobs that were. What a
    filter refuses and what expires is let alone."""
    checked = 0
    for name, topic in list(life.engine.registry.topics.items()):
        if topic.config.ttl_ms:
            continue
        if topic.queue is not None:
            state = await life.engine.topic_states.of(name, touch=False)
            counts = state.queue if isinstance(state.queue, QueueState) else None
            checked += await _check_lists(life, name, topic.queue, counts)
        for queue in list(topic.groups.by_name.values()) if topic.groups is not None else ():
            if queue.state.filter is None:
                await life.engine.groups.state(name, queue.group)
                checked += await _check_lists(life, name, queue, None)
    return checked


async def _check_lists(life: Life, name: str, queue: JobQueue, counts: QueueState | None) -> int:
    group, where = queue.group, f"{name}/{queue.group}"
    rows = {row["$seq"] for row in await rows_of(life, name)}
    there = {seq for seq in rows if queue.is_unfinished(seq)}
    whole = await listed(life.engine, name, group, None)
    if whole.keys() != there:
        broken(f"{where}: the jobs are {there}, and listed are {list(whole)}")
    total = 0
    for state in STATES:
        some = await listed(life.engine, name, group, state)
        wrong = [seq for seq, job in some.items() if job.state != state or whole[seq] != job]
        if wrong:
            broken(f"{where}: {wrong} are listed as {state}: {some}, and else as {whole}")
        count = getattr(counts, state) if counts is not None else len(some)
        if count != len(some):
            broken(f"{where}: {some} are listed as {state}, and counted are {counts}")
        total += len(some)
    if total != len(whole):
        broken(f"{where}: {list(whole)} are listed, and by state there are {total}")
    dead = queue.terms(life.engine.registry.topics[name].config).dead_letter
    if dead is not None and dead in life.engine.registry.topics:
        letters = {row["$seq"] for row in await rows_of(life, dead) if _is_of(row.get("meta", {}), name, group)}
        shown = await listed(life.engine, name, group, None, dead=dead)
        if shown.keys() != letters:
            broken(f"{where}: the dead letters are {letters}, and listed are {list(shown)}")
    return total


def _is_of(meta: dict[str, str], name: str, group: str | None) -> bool:
    return meta.get(DEAD_LETTER_META + "from") == name and meta.get(DEAD_LETTER_META + "group") == group
