"""A topic's part as the offline commands need it: decoded, with its own invariants checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from topics.conditions.fences import fences_of
from topics.consumers.consumers import Consumers
from topics.evidence.topic_tree import TopicTree
from topics.groups.group import Group
from topics.log.stages import CommitKeys
from topics.log.topic_config import config_from_wire
from topics.log.topic_log import TopicLog
from topics.log.transaction_keys import TransactionKeys
from topics.model import TopicConfig
from topics.queue.leases import Leases
from topics.routing.origin_set import OriginSet
from topics.routing.router_state import Router, kept_origins
from topics.storage.recovery.recovered_state import NO_LEASES_RUN
from topics.storage.segments.topic_segments import Segment
from topics.storage.snapshots.group_dump import load_groups
from topics.storage.snapshots.queue_dump import load_queue
from topics.storage.snapshots.snapshot import SnapshotDamaged, TopicPart, load_rows
from topics.storage.wal.wal_files import LogPosition


class StoredPart(NamedTuple):
    """A decoded part, and the file it was found in."""

    path: str
    part: TopicPart
    config: TopicConfig
    log: TopicLog
    segments: list[Segment]
    routers: list[Router]
    origins: OriginSet | None
    queue: Leases | None
    groups: dict[str, Group]

    @property
    def end(self) -> LogPosition:
        """The position of the part: frames of the topic before it are in the part."""
        return LogPosition(*self.part.end)


class StoredHole(NamedTuple):
    """Lost seqs, both ends inclusive."""

    first: int
    last: int
    reason: str


def load_part(path: str, part: TopicPart) -> StoredPart:
    """Decode a part. Raises SnapshotDamaged if it contradicts itself."""
    try:
        segments = [Segment.from_wire(part.id, entry) for entry in part.segments]
        config, log = config_from_wire(part.config), TopicLog.load(part.log)
        routers = [Router.load(entry) for entry in part.routers]
        origins = OriginSet.load(part.origins) if part.origins is not None else None
        if len({router.name for router in routers}) < len(routers):
            raise ValueError("a router twice")
        if (kept_origins(origins, routers) is None) is not (origins is None):
            raise ValueError("origins are kept where a router is exactly_once, and nowhere else")
        commits = CommitKeys.load(part.commits)
        TransactionKeys.load(part.transactions)
        fences_of(part.fences)
        if part.stage is not None:
            target_id, stage, *_ = part.stage
            if type(target_id) is not int or target_id >= part.id or not isinstance(stage, str) or len(commits):
                raise ValueError("a stage is of an older topic, and is never a target")
        queue = load_queue(part.queue, NO_LEASES_RUN) if part.queue is not None else None
        if (queue is None) is (config.type == "queue"):
            raise ValueError("a queue has jobs, and nothing else has")
        if queue is not None and len(queue) > log.count:
            raise ValueError(f"it knows of {len(queue)} jobs, and has {log.count} records")
        if part.consumers is not None:
            consumers = Consumers.load(part.name, part.consumers, load_rows)
            if any(consumer.seq > log.head_seq for consumer in consumers):
                raise ValueError("a consumer has finished more than there is")
        groups = load_groups(part.groups, NO_LEASES_RUN) if part.groups is not None else {}
        if groups and config.type == "queue":
            raise ValueError("a queue has no groups")
        if any(group.finished.last > log.head_seq for group in groups.values()):
            raise ValueError("a group has finished more than there is")
        if (part.evidence is not None) is not config.evidence:
            raise ValueError("a topic with evidence has a Merkle tree, and nothing else has")
        if part.evidence is not None and TopicTree.from_wire(part.evidence).next_seq != log.head_seq + 1:
            raise ValueError("its Merkle tree does not end at its head")
        return StoredPart(path, part, config, log, segments, routers, origins, queue, groups)
    except (TypeError, ValueError) as error:
        raise SnapshotDamaged(f"the part of topic {part.id} contradicts itself: {error}") from error


def holes_of(log: Mapping[str, Any]) -> list[StoredHole]:
    """Return the holes in a dumped log."""
    return [StoredHole(int(first), int(last), reason) for first, last, reason in log["holes"]]
