"""The groups of one topic in the live daemon. Each is a `JobQueue` over a `Group`: the line of claimers, the streams,
and what the group has finished (`docs/design/groups.md`). Nothing here waits or writes to the log.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import trio
from sortedcontainers import SortedDict

from topics.engine.job_queue import JobQueue
from topics.errors import ApiError
from topics.filters.record_filter import Filter
from topics.groups.group import Group
from topics.groups.group_events import DeleteGroupEvent, PutGroupEvent
from topics.log.span import NotLoaded
from topics.log.topic_log import TopicLog
from topics.model import TopicConfig
from topics.queue.key_order import KeyTerms
from topics.queue.lease_events import AckEvent, Event
from topics.queue.leases import LeaseDecision, NextLive
from topics.queue.limited_claims import FreshRoom
from topics.runtime.instant import Instant
from topics.storage.snapshots.group_dump import FrozenGroups

MOST_PASSED: Final = 256
"""Records that the front of the log passes before a group that nobody uses is told of them. Each append to a full log
moves the front; those of 100 groups took 2 ms. A call that reads or changes a group moves its floor first."""


def group_not_found(topic: str, group: str) -> ApiError:
    """`404 group_not_found`."""
    return ApiError(
        "group_not_found", f"topic {topic!r} has no group {group!r}", detail={"topic": topic, "group": group}
    )


class GroupQueue(JobQueue):
    """One group: its leases over the records of the log, its line and its streams."""

    __slots__ = ("is_behind", "is_loading", "state")

    def __init__(self, state: Group, *, restored: bool = False) -> None:
        super().__init__(state.leases, restored=restored)
        self.state = state
        self.is_behind = False
        """True if the floor could not move as far as it may, because columns are not in memory."""
        self.is_loading = False
        """True while a task loads them."""

    @property
    def group(self) -> str:
        """Its name."""
        return self.state.name

    def terms(self, config: TopicConfig) -> TopicConfig:
        """Return its own settings of leases."""
        return self.state.terms

    def ready(self, log: TopicLog) -> int:
        """Return how many records it has not finished and nobody holds; records that were not looked at count."""
        return self.state.ready(log)

    def fresh(self, log: TopicLog) -> NextLive:
        """Return what finds records that were never given to anybody in this group. Raises NotLoaded."""
        if self.state.room <= 0:
            self.advance(log)
        return self.state.fresh(log)

    def fresh_room(self, log: TopicLog) -> FreshRoom:
        """Return which fresh records a claim may have, where something binds those of one key."""
        return self.state.fresh_room(log)

    @property
    def has_filter(self) -> bool:
        """Return True if a filter says which records there are."""
        return self.state.wanted is not None

    def live_after(self, log: TopicLog, after: int, limit: int) -> array[int]:
        """Return the first `limit` unfinished records above `after`, ascending. Raises NotLoaded."""
        return self.state.live_after(log, after, limit)

    def _begin_keys(self, terms: KeyTerms | None) -> None:
        self.state.begin_keys(terms)

    @property
    def wanted(self) -> Filter | None:
        """Its filter."""
        return self.state.wanted

    def is_unfinished(self, seq: int) -> bool:
        """Return True if it has not finished a live record."""
        return not self.state.is_finished(seq)

    def jobs_after(self, log: TopicLog, after: int, to: int, mask: bytes, most: int) -> tuple[array[int], int]:
        """The same, of the records that it has not finished. Up to the floor these are in the table: they were
        reopened."""
        known = min(self.state.finished.floor, to)
        if after < known:
            return self.leases.jobs_after(after, known, mask, most)
        return super().jobs_after(log, after, to, mask, most)

    def _jobs_among(self, first: int, last: int, mask: bytes) -> array[int]:
        found: array[int] = array("Q")
        for a, b in self.state.finished.outside(first, last):
            found += super()._jobs_among(a, b, mask)
        return found

    def decide_cancel(self, seqs: Sequence[int]) -> LeaseDecision[AckEvent]:
        """The same. Fresh records are finished only as far as there is room for what that leaves to remember: the
        others are `busy`, because records that are finished side by side take little room, or skipped if there is
        none."""
        room = max(self.state.room, 0)
        fresh = [seq for seq in seqs if not self.leases.is_kept(seq)]
        if len(fresh) <= room:
            return super().decide_cancel(seqs)
        left_out = fresh[room:]
        among = set(left_out)
        decision = super().decide_cancel([seq for seq in seqs if seq not in among])
        if room:
            return decision._replace(busy=decision.busy + left_out)
        return decision._replace(skipped=decision.skipped + left_out)

    def must_look(self, log: TopicLog, most: int) -> bool:
        """Return True if records have to be looked at before `most` jobs can be claimed."""
        return self.state.must_look(log, most) and self.room() > 0

    def _carry_out(self, event: Event) -> array[int]:
        return self.state.apply(event)

    def sweep(self, now: Instant, config: TopicConfig) -> bool:
        """Free jobs whose lease or delay is over, as many as fit into a step. Return True if there are more."""
        if self.leases.behind(now.mono, now.wall):
            self.state.touch()
        return super().sweep(now, config)

    def abort(self, seqs: Sequence[int]) -> None:
        """End the reservation of `seqs`: their event will not be committed."""
        self.state.touch()
        super().abort(seqs)

    def gone(self, seqs: Sequence[int]) -> None:
        """Forget records that were deleted."""
        if self.state.leases.knows_any or self.state.matched:
            self._freed(self.state.gone(seqs))

    def lost(self, first: int, last: int, live_among: Callable[[array[int]], array[int]]) -> None:
        """Forget the records from `first` to `last` that were found damaged."""
        self._freed(self.state.lost(first, last, live_among))

    def catch_up(self, log: TopicLog) -> None:
        """Move the floor over records that are gone, as far as columns are in memory. If there may be more, it
        `is_behind`."""
        with suppress(NotLoaded):
            self.advance(log)

    def advance(self, log: TopicLog) -> None:
        """The same, but raises NotLoaded if columns are not in memory. The floor has moved as far as it could then."""
        before = self.leases.in_flight
        self.is_behind = True
        try:
            self.state.advance(log)
            self.is_behind = False
        finally:
            if self._held and self.leases.in_flight < before:
                self._freed([seq for seq in self._held if not self.leases.is_kept(seq)])


class TopicGroups:
    """The groups of one topic, by name."""

    __slots__ = ("_encoded", "_front", "_queues", "by_name", "on_the_way")

    def __init__(self, groups: Iterable[Group] = ()) -> None:
        self.by_name: SortedDict[str, GroupQueue] = SortedDict(
            {one.name: GroupQueue(one, restored=True) for one in groups}
        )
        self.on_the_way: dict[str, trio.Event] = {}
        """The end of the creation, change or deletion of a group that is on its way."""
        self._queues = tuple(self.by_name.values())
        """The same in no order: three times as fast to go through."""
        self._front = 0
        """The first live seq when groups were told of it last."""
        self._encoded: dict[str, tuple[int, bytes]] = {}
        """Each group as it was encoded last for a snapshot, and its version then."""

    def __len__(self) -> int:
        return len(self.by_name)

    def put(self, name: str, event: PutGroupEvent) -> GroupQueue:
        """Carry out a creation or change."""
        queue = self.by_name.get(name)
        if queue is None:
            queue = self.by_name[name] = GroupQueue(Group(name, event))
            self._queues = (*self._queues, queue)
        else:
            queue.state.change(event)
            queue.ring()
        return queue

    def delete(self, name: str, event: DeleteGroupEvent) -> None:
        """Carry out a deletion."""
        queue = self.by_name.pop(name, None)
        self._encoded.pop(name, None)
        if queue is not None:
            self._queues = tuple(self.by_name.values())
            queue.deleted = True
            queue.end()

    def page(self, prefix: str, after: str | None, most: int) -> tuple[list[GroupQueue], bool]:
        """Return at most `most` groups whose names begin with `prefix` and come after `after`, in the order of their
        names, and True if there are more."""
        exclusive = after is not None and after >= prefix
        found: list[GroupQueue] = []
        for name in self.by_name.irange(after if exclusive else prefix, inclusive=(not exclusive, True)):
            if not name.startswith(prefix):
                break
            if len(found) == most:
                return found, True
            found.append(self.by_name[name])
        return found, False

    def gone(self, seqs: Sequence[int]) -> None:
        """Forget records that were deleted."""
        for queue in self.by_name.values():
            queue.gone(seqs)

    def lost(self, first: int, last: int, live_among: Callable[[array[int]], array[int]]) -> None:
        """Forget records that were found damaged."""
        for queue in self.by_name.values():
            queue.lost(first, last, live_among)

    def front_moved(self, log: TopicLog) -> None:
        """Note that the first live seq of the log may be another. A group whose jobs no stream holds may learn of it
        later."""
        front = log.earliest_seq
        if front == self._front:
            return
        self._front = front
        for queue in self._queues:
            passed = front - 1 - queue.state.finished.floor
            is_told = queue.has_holders and (passed > 0 or queue.state.reopened_up_to(front - 1))
            if passed >= MOST_PASSED or is_told:
                queue.catch_up(log)

    def ring(self) -> None:
        """End windows at once: the daemon stops."""
        for queue in self.by_name.values():
            queue.ring()

    def end(self) -> None:
        """Wake all claimers and streams, because the topic is deleted."""
        for queue in self.by_name.values():
            queue.end()

    def lowest_floor(self, log: TopicLog) -> int | None:
        """Return the seq up to which no group needs records; None without groups."""
        for queue in self.by_name.values():
            if queue.state.passed_to + 1 < log.earliest_seq:
                queue.catch_up(log)
        return min((queue.state.passed_to for queue in self.by_name.values()), default=None)

    def freeze(self, now: Instant) -> FrozenGroups:
        """Return the groups for the topic's part of a snapshot; those without a change since are not encoded again."""
        for name in self._encoded.keys() - self.by_name.keys():
            del self._encoded[name]
        return FrozenGroups.of([queue.state for queue in self.by_name.values()], self._encoded, now)
