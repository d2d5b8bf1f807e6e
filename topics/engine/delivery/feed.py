"""A feed: one topic of one watcher, and how far it has been delivered.

A feed has three positions, each the last seq examined: `sent` is what the connection has taken, `position` what has
been queued for it, and `told` the end of the last frame that was queued. Records between `sent` and `position` are
encoded and wait in the outbox; nothing is kept of those after it. When a connection ends, or is too slow, `position`
goes back to `sent`, so that no record is lost with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from topics.engine.record_collector import RecordRequest
from topics.engine.topic import Topic
from topics.model import Consistency, Tombstone, WatchedTopic

if TYPE_CHECKING:
    from topics.engine.delivery.outbox import Outbox


class ConnectionEnd(NamedTuple):
    """Why a connection ends, for its last frame. SSE uses `status`, WebSocket `code`."""

    status: int
    code: str
    message: str


TOO_SLOW = ConnectionEnd(408, "too_slow", "the connection took nothing for too long")
TAKEN_OVER = ConnectionEnd(409, "taken_over", "another connection has taken over the session")
SESSION_GONE = ConnectionEnd(410, "session_gone", "the session is gone")
WITHDRAWN = ConnectionEnd(410, "unauthorized", "the key is not valid any more, or not for this")
SHUTTING_DOWN = ConnectionEnd(503, "shutting_down", "the daemon is stopping")
NOT_OWNER = ConnectionEnd(503, "not_owner", "another daemon has the news: this one does not own the bucket any more")


class FrameFormat(Protocol):
    """The form of frames on the wire, without the parts that differ between connections (`Outbox.stamp`)."""

    def record(self, topic: str, records: bytes, from_seq: int, to_seq: int, head_seq: int) -> bytes:
        """Return a frame with the deliverable records of `(from_seq, to_seq]`; `records` is JSON joined by commas."""
        ...

    def tombstone(self, topic: str, tombstone: Tombstone, reason: str) -> bytes:
        """Return a frame that announces a gap."""
        ...

    def caught_up(self, topic: str, head_seq: int) -> bytes:
        """Return a frame that says that everything up to the head has been sent."""
        ...

    def topic_added(self, topic: str, at: WatchedTopic) -> bytes:
        """Return a frame that says that a topic was added, because its name begins with a prefix that is watched."""
        ...

    def left_out(self, topics: list[str], count: int, most: int) -> bytes:
        """Return an advisory frame: `count` topics, of which `topics` are the first, begin with a prefix that is
        watched, and are not delivered because the connection has `most` topics already."""
        ...

    def topic_deleted(self, topic: str, head_seq: int) -> bytes:
        """Return the last frame of a deleted topic."""
        ...

    def paced(self, topics: list[str], retry_after_ms: int) -> bytes:
        """Return an advisory frame: delivery of these topics pauses under pressure."""
        ...

    def held_up(self, topics: list[str], why: str, retry_after_ms: int) -> bytes:
        """Return an advisory frame: records of these topics cannot be read, or jobs not claimed, for now; delivery goes
        on by itself."""
        ...

    def final(self, why: ConnectionEnd) -> bytes:
        """Return the connection's last frame."""
        ...


class TopicPosition(NamedTuple):
    """A position in a topic instance."""

    position: int
    epoch: int
    announced: bool = True
    """False before the frame that says that the topic was added."""


def watched(topic: Topic | None, from_seq: int) -> WatchedTopic:
    """Return what a watcher is first told of a topic."""
    if topic is None:
        return WatchedTopic(from_seq=from_seq, head_seq=0, earliest_seq=1, epoch=None)
    return WatchedTopic(
        from_seq=from_seq, head_seq=topic.log.head_seq, earliest_seq=topic.log.earliest_seq, epoch=topic.id
    )


class Feed:
    """One topic of one watcher. Made by `WatchSessions`, served by `TopicDelivery` while it is attached to an
    outbox."""

    __slots__ = (
        "announced",
        "awaits",
        "caught_up",
        "consistency",
        "ended",
        "epoch",
        "fresh",
        "held_up",
        "name",
        "outbox",
        "over",
        "position",
        "prefix",
        "sent",
        "since",
        "told",
        "topic",
        "touches",
        "wish",
    )

    def __init__(
        self,
        name: str,
        wish: RecordRequest,
        mark: TopicPosition,
        *,
        consistency: Consistency = "eventual",
        awaits: bool = False,
        prefix: str | None = None,
        touches: bool = True,
    ) -> None:
        self.name = name
        self.touches = touches
        """Delivery to it counts as a use of the topic."""
        self.prefix = prefix
        """The prefix by which the topic is watched; None if it was named."""
        self.announced = mark.announced
        """False until `topic-added` is queued, for a topic that was added by a prefix after the call."""
        self.awaits = awaits
        """True while it waits for a topic that does not exist yet."""
        self.wish = wish
        self.consistency = consistency
        """Which records it gets: all, only synced ones, or only those that are in the bucket."""
        self.sent = mark
        self.position = self.told = mark.position
        self.epoch = mark.epoch
        self.since = 0
        """The daemon's count of `recreated` frames at this feed's last one: older ids are about another instance."""
        self.topic: Topic | None = None
        """The outbox of its connection, None without one."""
        self.outbox: Outbox | None = None
        self.fresh = True
        """True until a frame is queued on this connection: a floor gap is reported as `from_seq_too_old` till then."""
        self.held_up = False
        """True if it was told that its records cannot be read, and has got none since."""
        self.caught_up = False
        self.ended = False
        """True once `topic-deleted` is queued."""
        self.over = False
        """True once its session has ended it: a new topic of the same name does not revive it."""

    def begin(self, epoch: int) -> None:
        """Begin with the topic it has waited for. A watcher that has seen no other instance takes this one for its
        first."""
        self.awaits = False
        if self.sent.position == 0:
            self.sent = TopicPosition(0, epoch)
            self.go_back(self.sent)

    @property
    def is_over(self) -> bool:
        """Return True if its topic is deleted, and it exists only until the client has been told. A feed of a topic
        that was named may go on with a new instance, if the connection breaks before that."""
        return self.over or (self.prefix is not None and self.topic is not None and self.topic.deleted)

    @property
    def mark(self) -> TopicPosition:
        """The position of a client that has received everything queued."""
        return TopicPosition(self.position, self.epoch, self.announced)

    @property
    def end(self) -> int:
        """The last seq that it may be given now."""
        topic = self.topic
        assert topic is not None
        head = topic.log.head_seq
        if not self.is_strong or topic.ephemeral:
            return head
        return min(head, topic.bucket_seq if self.consistency == "remote" else topic.synced_seq)

    @property
    def is_strong(self) -> bool:
        """Return True if there may be visible records that it does not get yet."""
        return self.consistency != "eventual"

    def go_back(self, mark: TopicPosition) -> None:
        """Go back to `mark`: the frames queued after it will not be sent."""
        self.position = self.told = mark.position
        self.epoch, self.announced = mark.epoch, mark.announced
        self.caught_up = self.ended = False
