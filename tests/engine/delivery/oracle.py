"""What watchers have to be told, and may not be: the truth about topics, and followers that are checked against it.

For every topic instance the `World` knows what was appended, deleted on request, and filtered by node; what else is
gone was lost. A `Follower` is one topic of one client. It checks each frame as it comes: ranges and gaps follow one
another without a hole, and what a frame leaves out was removed on request. So when it has reached the head,
every seq was delivered, announced as a gap, or removed on request, and nothing else was said.

What a frame leaves out can be judged only when all that happens has been noted, so that is done at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tests.engine.delivery.client import Frame, Record
from tests.engine.life import Life
from topics.engine.delivery.feed import TopicPosition

TTL_SLACK_MS = 200
"""A read that has to wait for the disk judges by the time it began."""


class Written(NamedTuple):
    """A record as it was appended."""

    data: bytes
    node: str | None
    tag: str | None
    ts: int


class Removal(NamedTuple):
    """Between which versions of the world a record was deleted."""

    begun: int
    done: int


@dataclass
class Instance:
    """One topic instance."""

    epoch: int
    name: str
    written: dict[int, Written] = field(default_factory=dict)
    removed: dict[int, Removal] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)
    """Deleted when it was about to expire: it may be either."""
    filters: set[bool] = field(default_factory=set)
    """Values that `dedupe_node` has had."""
    delivered: dict[int, bytes] = field(default_factory=dict)


class State(NamedTuple):
    """A topic when a frame was queued."""

    epoch: int
    earliest: int
    head: int
    end: int
    ttl_ms: int


class View(NamedTuple):
    """The world when a frame was queued."""

    version: int
    now_ms: int
    topics: dict[str, State]


class _Left(NamedTuple):
    """Seqs that a frame has passed over without a word."""

    epoch: int
    first: int
    last: int
    hidden: frozenset[str]
    version: int
    where: str


class _Gap(NamedTuple):
    epoch: int
    first: int
    last: int
    version: int


class World:
    """The truth about all topics."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.version = 0
        self.instances: dict[int, Instance] = {}
        self._left: list[_Left] = []
        self._gaps: list[_Gap] = []

    def tick(self) -> int:
        self.version += 1
        return self.version

    def instance(self, name: str) -> Instance:
        """Of a topic that is there."""
        topic = self.life.engine.registry.topics[name]
        found = self.instances.setdefault(topic.id, Instance(topic.id, name))
        found.filters.add(topic.config.dedupe_node)
        return found

    def view(self) -> View:
        states = {}
        for name, topic in self.life.engine.registry.topics.items():
            end = topic.log.head_seq if topic.ephemeral else min(topic.log.head_seq, topic.synced_seq)
            states[name] = State(topic.id, topic.log.earliest_seq, topic.log.head_seq, end, topic.config.ttl_ms)
        return View(self.version, self.life.engine.registry.now_ms(), states)

    def passed_over(
        self, epoch: int, first: int, last: int, hidden: frozenset[str], version: int | None, where: str
    ) -> None:
        if first <= last:
            version = self.version if version is None else version
            self._left.append(_Left(epoch, first, last, hidden, version, where))

    def announced(self, epoch: int, first: int, last: int, version: int | None) -> None:
        self._gaps.append(_Gap(epoch, first, last, self.version if version is None else version))

    def delivered(
        self, name: str, epoch: int, record: Record, hidden: frozenset[str], strong: bool, view: View | None
    ) -> None:
        instance = self.instances.setdefault(epoch, Instance(epoch, name))
        data = bytes(record.data)
        assert instance.delivered.setdefault(record.seq, data) == data, f"seq {record.seq} has changed"
        if record.node in hidden:
            assert instance.filters != {True}, f"seq {record.seq} of {record.node!r} is not wanted"
        if view is None:
            return
        removal = instance.removed.get(record.seq)
        assert removal is None or removal.done > view.version, f"seq {record.seq} had been deleted"
        state = view.topics.get(name)
        if state is not None and state.epoch == epoch:
            assert state.earliest <= record.seq <= state.head, (record.seq, state)
            assert not strong or record.seq <= state.end, f"seq {record.seq} is not synced: {state}"
            if state.ttl_ms:
                age = view.now_ms - record.ts
                assert age <= state.ttl_ms + TTL_SLACK_MS, f"seq {record.seq} has expired: {age} > {state.ttl_ms}"

    def judge(self) -> None:
        """All that has happened is known now."""
        for instance in self.instances.values():
            for seq, data in instance.delivered.items():
                assert instance.written[seq].data == data, (instance.name, seq)
        for left in self._left:
            instance = self.instances[left.epoch]
            for seq in range(left.first, left.last + 1):
                assert self._is_removed(instance, seq, left.version) or self._is_hidden(instance, seq, left.hidden), (
                    f"{instance.name} {seq}: neither delivered nor announced nor removed ({left})"
                )
        for gap in self._gaps:
            instance = self.instances[gap.epoch]
            lost = [
                seq
                for seq in range(gap.first, gap.last + 1)
                if seq in instance.unsure or not self._is_removed(instance, seq, gap.version)
            ]
            assert lost, f"{instance.name}: announced without a loss ({gap})"

    @staticmethod
    def _is_removed(instance: Instance, seq: int, version: int) -> bool:
        removal = instance.removed.get(seq)
        return seq in instance.unsure or (removal is not None and removal.begun <= version)

    @staticmethod
    def _is_hidden(instance: Instance, seq: int, hidden: frozenset[str]) -> bool:
        return True in instance.filters and instance.written[seq].node in hidden


class Follower:
    """One topic of one client: how far it has got."""

    def __init__(self, world: World, name: str, hidden: frozenset[str], strong: bool, start: TopicPosition) -> None:
        self.world = world
        self.name = name
        self.hidden = hidden
        self.strong = strong
        self.epoch = start.epoch
        self.end = start.position
        self.told = start.position
        """As far as an id of another topic's frame has said, if that was further: over what nobody is told of."""
        self.bound: int | None = start.epoch
        """The instance that the connection shows, None if the topic was not there."""
        self.caught_up = False
        self.ended = False

    def reconnected(self, start: TopicPosition, bound: int | None, again: bool) -> None:
        """A new connection begins at `start`; `again` if something may be sent once more."""
        if start.epoch != self.epoch:
            assert again, "another instance"
        elif again:
            known = max(self.end, self.told)
            assert start.position <= known, f"{self.name}: goes on at {start.position}, received up to {known}"
        else:
            assert start.position == self.end, f"{self.name}: goes on at {start.position}, received up to {self.end}"
        assert again or not self.ended
        self.epoch, self.end, self.bound = start.epoch, start.position, bound
        self.told = start.position
        self.caught_up = self.ended = False

    def take(self, frame: Frame, view: View | None) -> None:
        """Check the next frame."""
        assert not self.ended, f"{frame} after the last one"
        version = None if view is None else view.version
        if frame.kind == "topic_deleted":
            assert self.bound is None or self.bound not in self.world.life.engine.registry.by_id
            self.ended = True
            return
        assert self.bound is not None
        if self.epoch != self.bound:
            assert (frame.kind, frame.reason, frame.gap_from) == ("tombstone", "recreated", 1), frame
            self.epoch, self.end = self.bound, frame.earliest_seq - 1
            self.told = self.end
            return
        if frame.kind == "record":
            self._take_records(frame, view)
        elif frame.kind == "tombstone":
            assert frame.reason in {"cap", "ttl", "mixed", "from_seq_too_old"}, frame
            assert self.end < frame.gap_from <= frame.gap_to == frame.earliest_seq - 1 <= frame.head_seq, frame
            self._pass_over(self.end + 1, frame.gap_from - 1, version, "before a gap")
            self.world.announced(self.epoch, frame.gap_from, frame.gap_to, version)
            self.end = frame.gap_to
        else:
            assert frame.kind == "caught_up", frame
            self._pass_over(self.end + 1, frame.head_seq, version, "at the head")
            assert frame.head_seq >= self.end
            self.end = frame.head_seq
            self.caught_up = True

    def _take_records(self, frame: Frame, view: View | None) -> None:
        assert frame.from_seq == self.end, f"{frame.from_seq} does not follow {self.end}"
        assert frame.records
        assert frame.to_seq <= frame.head_seq
        after = frame.from_seq
        for record in frame.records:
            assert after < record.seq <= frame.to_seq, frame.seqs
            self.world.delivered(self.name, self.epoch, record, self.hidden, self.strong, view)
            self._pass_over(after + 1, record.seq - 1, None if view is None else view.version, "in a frame")
            after = record.seq
        self._pass_over(after + 1, frame.to_seq, None if view is None else view.version, "at the end of a frame")
        self.end = frame.to_seq

    def _pass_over(self, first: int, last: int, version: int | None, where: str) -> None:
        self.world.passed_over(self.epoch, first, last, self.hidden, version, where)

    def check_position(self, position: int, version: int) -> None:
        """What an id that has just come says of this topic."""
        if self.epoch == self.bound and not self.ended:
            assert position >= self.end, f"{self.name}: the id says {position} after {self.end}"
            self._pass_over(self.end + 1, position, version, "in an id")
            self.told = max(self.told, position)
