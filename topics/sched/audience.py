"""Who waits for news of one topic.

A *consumer* (a watcher's feed, later a router's forwarder) is in one of three places. It changes place by what it is
told here and by nothing else, so that a topic with a thousand watchers that are stuck costs what its others cost.

    live      it has everything: the next change of the topic makes it due
    due       it is to be served when it is the topic's turn
    neither   it waits for something of its own (room on its connection, records from the disk, a connection at all)

Long polls are not consumers: they only want to be woken, all at once, when it is the topic's turn.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import trio

C = TypeVar("C")


class Audience(Generic[C]):
    """See the module. Kept by a topic as long as anybody follows it."""

    __slots__ = ("consumers", "due", "live", "polled", "strong")

    def __init__(self) -> None:
        self.consumers: dict[C, None] = {}
        """Everybody, in whatever place."""
        self.live: dict[C, None] = {}
        self.due: dict[C, None] = {}
        self.polled: trio.Event | None = None
        self.strong = 0
        """How many consumers are only given what is synced, so that a sync is news to them."""

    @property
    def empty(self) -> bool:
        """Nobody follows the topic."""
        return not self.consumers and self.polled is None

    @property
    def waiting(self) -> bool:
        """Somebody is to be served."""
        return bool(self.due) or self.polled is not None

    def news(self) -> bool:
        """Something about the topic has changed. Whether there is anybody to be served now."""
        if self.live:
            self.due.update(self.live)
            self.live.clear()
        return self.waiting

    def set_live(self, consumer: C) -> None:
        """The consumer has everything."""
        self.due.pop(consumer, None)
        self.live[consumer] = None

    def set_due(self, consumer: C) -> None:
        """The consumer is to be served."""
        self.live.pop(consumer, None)
        self.due[consumer] = None

    def set_aside(self, consumer: C) -> None:
        """The consumer waits for something else."""
        self.live.pop(consumer, None)
        self.due.pop(consumer, None)

    def next_due(self) -> C:
        """The consumer that has been due longest; it is set aside."""
        consumer = next(iter(self.due))
        del self.due[consumer]
        return consumer

    def wake_polls(self) -> None:
        """It is the topic's turn: the long polls may look."""
        if self.polled is not None:
            self.polled.set()
            self.polled = None

    async def poll(self) -> None:
        """Wait for the topic's turn after its next change. Cancelling leaves nothing behind but a needless turn."""
        if self.polled is None:
            self.polled = trio.Event()
        await self.polled.wait()
