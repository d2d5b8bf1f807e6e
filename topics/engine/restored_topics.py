"""Deletes what a restore of some topics leaves out: at the first start, before requests are served
(`docs/design/bucket.md` section 6).

The directory has all topics at first, because frames of the log speak of several. They are deleted as by users, so a
crash in between needs nothing: the next start deletes the rest. Copies of their records stay readable, and routers from
or into them go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import trio

from topics.engine.operations.topic_lifecycle import TopicLifecycle
from topics.engine.registry import Registry
from topics.engine.schedules.schedule_calls import ScheduleCalls
from topics.model import Performance

AT_ONCE: Final = 256
"""Deletions on their way: they share syncs."""


class KeptTopics(NamedTuple):
    """The topics that are left when the others are deleted, and how many were deleted."""

    topics: int
    deleted_topics: int
    deleted_schedules: int


async def keep_only(
    matches: Callable[[str], bool], *, registry: Registry, topic_lifecycle: TopicLifecycle, schedules: ScheduleCalls
) -> KeptTopics:
    """Delete the topics whose names do not match, and the schedules that append to such topics. Synced when it returns.
    Raises ApiError if the log cannot be written to. Cancelling leaves some of them."""
    unwanted = [name for name in registry.topics if not matches(name)]
    idle = [schedule.name for schedule in registry.schedules if not matches(schedule.definition.topic)]
    for name in idle:
        await schedules.delete(name, Performance())
    left = iter(unwanted)

    async def work() -> None:
        for name in left:
            await topic_lifecycle.delete(name, if_empty=False)

    async with trio.open_nursery() as nursery:
        for _ in range(min(AT_ONCE, len(unwanted))):
            nursery.start_soon(work)
    return KeptTopics(len(registry.topics), len(unwanted), len(idle))
