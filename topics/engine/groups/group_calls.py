"""The calls on groups themselves (`docs/spec/consumers.md` section 4): put, get, list, delete.

A change waits until no other change of that group is on its way, decides in one step, and answers when its Group frame
is synced and published. Once a deletion is decided, no further event of the group is decided: otherwise its frames
could follow the deletion in the log, and a replay would apply them to a group that is made later under the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
import trio
from msgspec import UNSET

from topics.auth.keys import Key
from topics.config import Settings
from topics.engine.commits import Commits, time_commit
from topics.engine.group_queue import GroupQueue, TopicGroups
from topics.engine.loader import Loader
from topics.engine.operations.export import first_at
from topics.engine.queues.lease_commits import groups_of, queue_of
from topics.engine.queues.queue_calls import QueueCalls
from topics.engine.registry import Registry
from topics.engine.topic import Commit, CommitPoint, Topic
from topics.errors import ApiError, invalid
from topics.filters.record_filter import Filter
from topics.groups.group_events import (
    MAX_UNFINISHED,
    TERMS,
    DeleteGroupEvent,
    PutGroupEvent,
    group_event_to_wire,
)
from topics.log.span import NotLoaded
from topics.log.topic_config import resolve_config, targets_of
from topics.model import (
    ConsumerStart,
    GroupPatch,
    GroupState,
    Performance,
    TopicConfig,
)
from topics.runtime.clock import Clock
from topics.storage.wal.frames import FrameType, encode_control
from topics.telemetry.figures import GroupFigures

MAX_FILTER_TEXT: Final = 16 << 20
"""Characters of the filters of all groups together."""


class GroupCalls:
    """The calls on groups. Made once by the engine."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        registry: Registry,
        *,
        commits: Commits,
        queues: QueueCalls,
        loader: Loader,
        on_changed: Callable[[Topic], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._registry = registry
        self._commits = commits
        self._queues = queues
        self._loader = loader
        self._on_changed = on_changed
        self._topics: dict[Topic, None] = {}
        """The topics that have had groups."""
        self._creating = 0
        """Creations that are on their way."""

    def adopt_all(self) -> None:
        """Take over the groups of all topics, after a start."""
        self._topics = dict.fromkeys(topic for topic in self._registry.topics.values() if topic.groups is not None)

    def adopt(self, topic: Topic) -> None:
        """List the groups of a topic that a standby has replayed."""
        if topic.groups is not None:
            self._topics[topic] = None

    def __len__(self) -> int:
        for topic in [topic for topic in self._topics if topic.deleted]:
            del self._topics[topic]
        return sum(len(topic.groups) for topic in self._topics if topic.groups is not None)

    def samples(self, most: int, key: Key) -> tuple[list[GroupFigures], bool]:
        """Return the figures of at most `most` groups of topics that `key` covers, and True if there are more."""
        found: list[GroupFigures] = []
        for topic in sorted(self._topics, key=lambda topic: topic.name):
            if topic.deleted or topic.groups is None or not key.covers(topic.name):
                continue
            for name, queue in topic.groups.by_name.items():
                if len(found) == most:
                    return found, True
                jobs, state = self._queues.figures(topic, queue), queue.state
                found.append(GroupFigures(topic.name, name, state.lag(topic.log), state.missed, jobs))
        return found, False

    # -- looking -----------------------------------------------------------------------------------------------------

    async def state(self, name: str, group: str) -> GroupState:
        """Return a group as of now. Raises 404, `409 not_a_log`, and 503."""
        while True:
            topic = self._registry.topic(name)
            queue = queue_of(topic, group)
            if await self._is_current(topic, queue):
                assert isinstance(queue, GroupQueue)
                return self._state(topic, queue)

    async def page(self, name: str, prefix: str, after: str | None, most: int) -> tuple[list[GroupState], bool]:
        """Return a page of the groups of a topic in the order of their names, and True if there are more. Raises 404,
        `409 not_a_log`, and 503."""
        while True:
            topic = self._registry.topic(name)
            found, more = groups_of(topic).page(prefix, after, most)
            for queue in found:
                if not await self._is_current(topic, queue):
                    break
            else:
                return [self._state(topic, queue) for queue in found], more

    async def page_of_all(
        self, prefix: str, after: tuple[str, str] | None, most: int, key: Key
    ) -> tuple[list[GroupState], bool]:
        """Return a page of the groups of all topics that `key` covers and whose names begin with `prefix`, in the order
        of topics and groups, and True if there are more. Raises 503."""
        topics = sorted((topic.name, topic) for topic in self._topics if topic.name.startswith(prefix))
        named = [
            (name, group)
            for name, topic in topics
            if not topic.deleted and topic.groups is not None and key.covers(name)
            for group in sorted(topic.groups.by_name)
            if after is None or (name, group) > after
        ]
        found = []
        for name, group in named[:most]:
            with suppress(ApiError):  # it may have been deleted meanwhile
                found.append(await self.state(name, group))
        return found, len(named) > most

    async def _is_current(self, topic: Topic, queue: object) -> bool:
        """Return True if expired records and leases of a group have ended; there was no await then. Otherwise do one
        step of that."""
        assert isinstance(queue, GroupQueue)
        if topic.working is not None:
            await topic.working.wait()
        elif queue.sweep(self._registry.instant(), queue.terms(topic.config)):
            await trio.lowlevel.checkpoint()
        else:
            try:
                self._registry.expire(topic)
                queue.advance(topic.log)
                return True
            except NotLoaded:
                await self._loader.expire(topic)
                await self._loader.prepared(topic, partial(queue.advance, topic.log))
                self._on_changed(topic)
        return False

    def _state(self, topic: Topic, queue: GroupQueue) -> GroupState:
        group, log = queue.state, topic.log
        terms = {name: getattr(group.terms, name) for name in TERMS}
        return GroupState(
            topic=topic.name,
            group=group.name,
            epoch=topic.id,
            floor=group.finished.floor,
            lag=group.lag(log),
            missed=group.missed,
            unfinished=len(group.leases) + len(group.finished),
            queue=queue.counters(log),
            max_unfinished=group.max_unfinished,
            filter=None if group.filter is None else msgspec.Raw(group.filter.encode()),
            **terms,
        )

    # -- coming and going --------------------------------------------------------------------------------------------

    async def put(self, name: str, group: str, patch: GroupPatch, perf: Performance) -> tuple[GroupState, bool]:
        """Create or change a group, synced. Return it, and True if it was created. Raises 400, 404, `409 not_a_log`,
        429, and 503.

        Cancelling stops only the waiting, once the change is queued.
        """
        while True:
            topic, known = await self._current(name, group)
            if known is not None or patch.start.place != "ts" or await self._is_loaded(topic, patch.start):
                break
        terms = resolve_config(known.state.terms if known is not None else None, patch.terms, topic=name, of_group=True)
        self._check_targets(terms)
        text = patch.filter.text if isinstance(patch.filter, Filter) else None
        if patch.filter is UNSET and known is not None:
            text = known.state.filter
        most = patch.max_unfinished
        if most is UNSET:
            most = known.state.max_unfinished if known is not None else MAX_UNFINISHED
        start = known.state.finished.floor if known is not None else self._place(topic, patch.start)
        event = PutGroupEvent(start, terms, text, most)
        if known is not None:
            state = known.state
            if (state.terms, state.filter, state.max_unfinished) == (terms, text, most):
                return await self.state(name, group), False
        else:
            self._check_room()
        self._check_filters(text, known)
        self._creating += known is None
        self._topics[topic] = None
        commit = self._send(topic, group, event, partial(self._put_ended, topic, group, event, known is None))
        await commit.answer()
        time_commit(commit, perf)
        return await self.state(name, group), known is None

    async def delete(self, name: str, group: str, perf: Performance) -> bool:
        """Delete a group, synced. Return True if there was one. Raises 404 for the topic, `409 not_a_log`, and 503."""
        topic, known = await self._current(name, group)
        if known is None:
            return False
        known.deleted = True
        event = DeleteGroupEvent()
        commit = self._send(topic, group, event, partial(self._delete_ended, topic, group, known))
        topic.wake()
        await commit.answer()
        time_commit(commit, perf)
        return True

    async def _current(self, name: str, group: str) -> tuple[Topic, GroupQueue | None]:
        """Return a topic, and its group of that name if there is one, about which a decision can be made now. There is
        no await between that and the return. Raises 404, `409 not_a_log`, 429, and 503."""
        while True:
            topic = self._registry.topic(name)
            groups = groups_of(topic)
            if not await self._commits.settled(topic):
                continue
            writer = self._commits.check_writable(topic)
            if self._commits.is_full(topic):
                await self._commits.admit(topic, self._settings.admission_ms)
                continue
            on_the_way = groups.on_the_way.get(group)
            if on_the_way is None:
                return topic, groups.by_name.get(group)
            await self._commits.wait_for(on_the_way, writer)

    def _send(
        self,
        topic: Topic,
        group: str,
        event: PutGroupEvent | DeleteGroupEvent,
        ended: Callable[[Commit | None], None],
    ) -> Commit:
        """Commit an event, synced. `ended` is called when it is published, and with None when it has failed."""
        payload = group_event_to_wire(group, self._registry.windows.now_ms(), event)
        data = encode_control(FrameType.GROUP, payload, topic_id=topic.id, ts=self._registry.now_ms())
        commit = Commit(topic, data, 1, CommitPoint.SYNCED, ended, self._clock.perf_ns)
        commit.on_fail = partial(ended, None)
        if topic.groups is None:
            topic.set_groups(TopicGroups())
        assert topic.groups is not None
        topic.groups.on_the_way[group] = commit.done
        self._commits.send(commit)
        return commit

    def _put_ended(self, topic: Topic, group: str, event: PutGroupEvent, created: bool, commit: Commit | None) -> None:
        assert topic.groups is not None
        del topic.groups.on_the_way[group]
        self._creating -= created
        if commit is not None:
            queue = topic.groups.put(group, event)
            queue.catch_up(topic.log)
            self._queues.look_after_one(topic, queue)
            self._on_changed(topic)

    def _delete_ended(self, topic: Topic, group: str, queue: GroupQueue, commit: Commit | None) -> None:
        assert topic.groups is not None
        del topic.groups.on_the_way[group]
        if commit is None:
            queue.deleted = False  # the shard takes nothing any more
        else:
            topic.groups.delete(group, DeleteGroupEvent())
            self._on_changed(topic)

    # -- checks ------------------------------------------------------------------------------------------------------

    def _check_room(self) -> None:
        maximum = self._settings.max_groups
        if maximum and len(self) + self._creating >= maximum:
            raise self._registry.throttle("max_groups", maximum)

    def _check_filters(self, text: str | None, known: GroupQueue | None) -> None:
        growth = len(text or "") - len((known.state.filter if known is not None else None) or "")
        if growth > 0:
            kept = sum(
                len(queue.state.filter or "")
                for topic in self._topics
                if topic.groups is not None and not topic.deleted
                for queue in topic.groups.by_name.values()
            )
            if kept + growth > MAX_FILTER_TEXT:
                raise self._registry.throttle("max_group_filters", MAX_FILTER_TEXT)

    def _check_targets(self, terms: TopicConfig) -> None:
        for field, name in targets_of(terms).items():
            target = self._registry.topics.get(name)
            if target is not None and target.ephemeral:
                raise invalid(field, f"{name!r} is ephemeral")

    async def _is_loaded(self, topic: Topic, start: ConsumerStart) -> bool:
        """Return True if what `_place` needs is in memory; else load it, and return False: the caller must check the
        topic again. Raises 404 and 503."""
        look = partial(first_at, topic.log, start.value)
        try:
            look()
        except NotLoaded:
            await self._loader.prepared(topic, look)
            return False
        return True

    def _place(self, topic: Topic, start: ConsumerStart) -> int:
        """Return the seq up to which a new group has finished everything. Raises 400 for one beyond the head."""
        log = topic.log
        if start.place == "tail":
            return log.head_seq
        if start.place == "earliest":
            return log.earliest_seq - 1
        if start.place == "ts":
            return first_at(log, start.value) - 1
        if start.value > log.head_seq:
            raise invalid("from.seq", f"is beyond the head, which is {log.head_seq}", head_seq=log.head_seq)
        return start.value
