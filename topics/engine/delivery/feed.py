"""A feed: one topic of one watcher, and how far it has been told.

A feed knows three positions, each the last seq examined: `sent` is what the connection has taken, `position` what has
been queued for it, and `told` the end of the last frame that was queued. What lies between `sent` and `position` is
encoded and waits in the outbox; everything after it is a range, of which nothing is kept. When a connection ends, or
is too slow, `position` goes back to `sent`, so that nothing is lost with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from topics.engine.record_collector import Wish
from topics.engine.topic import Topic
from topics.model import Tombstone

if TYPE_CHECKING:
    from topics.engine.delivery.outbox import Outbox


class Ending(NamedTuple):
    """Why a connection ends, told last. `status` is how SSE says it, `code` how WebSocket does."""

    status: int
    code: str
    message: str


TOO_SLOW = Ending(408, "too_slow", "the connection took nothing for too long")
TAKEN_OVER = Ending(409, "taken_over", "another connection has taken over the session")
SESSION_GONE = Ending(410, "session_gone", "the session is gone")
WITHDRAWN = Ending(410, "unauthorized", "the key is not valid any more, or not for this")
SHUTTING_DOWN = Ending(503, "shutting_down", "the daemon is stopping")


class Format(Protocol):
    """How frames look on the wire, without what is particular to a connection (`Outbox.stamp`)."""

    def record(self, topic: str, records: bytes, from_seq: int, to_seq: int, head_seq: int) -> bytes:
        """What is deliverable of `(from_seq, to_seq]`; `records` is JSON joined by commas."""
        ...

    def tombstone(self, topic: str, tombstone: Tombstone, reason: str) -> bytes:
        """A gap."""
        ...

    def caught_up(self, topic: str, head_seq: int) -> bytes:
        """Everything up to the head has been sent."""
        ...

    def topic_deleted(self, topic: str, head_seq: int) -> bytes:
        """The topic is gone, and this is its last frame."""
        ...

    def paced(self, topics: list[str], retry_after_ms: int) -> bytes:
        """Delivery of these topics pauses under pressure. Advisory."""
        ...

    def held_up(self, topics: list[str], why: str, retry_after_ms: int) -> bytes:
        """Records of these topics cannot be read now, or not be claimed; it goes on by itself. Advisory."""
        ...

    def final(self, why: Ending) -> bytes:
        """The connection's last frame."""
        ...


class Mark(NamedTuple):
    """A position in an instance of a topic."""

    position: int
    epoch: int


class Feed:
    """See the module."""

    __slots__ = (
        "awaits",
        "caught_up",
        "ended",
        "epoch",
        "fresh",
        "held_up",
        "name",
        "outbox",
        "over",
        "position",
        "sent",
        "since",
        "strong",
        "told",
        "topic",
        "wish",
    )

    def __init__(self, name: str, wish: Wish, mark: Mark, *, strong: bool = False, awaits: bool = False) -> None:
        self.name = name
        self.awaits = awaits
        """Its topic is not there yet, and that is no end of it."""
        self.wish = wish
        self.strong = strong
        """Given only what is synced."""
        self.sent = mark
        self.position = self.told = mark.position
        self.epoch = mark.epoch
        self.since = 0
        """How many `recreated` frames there had been when it was given one: older ids speak of another instance."""
        self.topic: Topic | None = None
        """While it has a connection."""
        self.outbox: Outbox | None = None
        self.fresh = True
        """Nothing has been queued on this connection yet: what a floor has taken is reported as `from_seq_too_old`."""
        self.held_up = False
        """It was told that its records cannot be read now, and has got none since."""
        self.caught_up = False
        self.ended = False
        """`topic-deleted` is queued."""
        self.over = False
        """Its session has ended it: a topic of the same name is another one."""

    def begin(self, epoch: int) -> None:
        """The topic that it has waited for is there. A watcher who has seen nothing of another one begins with it."""
        self.awaits = False
        if self.sent.position == 0:
            self.sent = Mark(0, epoch)
            self.go_back(self.sent)

    @property
    def mark(self) -> Mark:
        """What a client has that has received everything queued."""
        return Mark(self.position, self.epoch)

    @property
    def end(self) -> int:
        """The last seq that it may be given now."""
        assert self.topic is not None
        head = self.topic.log.head_seq
        return min(head, self.topic.synced_seq) if self.strong and not self.topic.ephemeral else head

    def go_back(self, mark: Mark) -> None:
        """What was queued after `mark` is not going to be sent."""
        self.position = self.told = mark.position
        self.epoch = mark.epoch
        self.caught_up = self.ended = False
