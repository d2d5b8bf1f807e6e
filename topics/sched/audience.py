"""The consumers that follow one topic, and which of them are due.

A *consumer* (a watcher's feed, a router's forwarder) is in one of three places, and changes place only by a call of
this class. So a topic with a thousand watchers that cannot take anything costs only as much as its other watchers.

    live      it has everything: the next change of the topic makes it due
    due       it is served at the topic's next turn
    neither   it waits for something else (room on its connection, records from the disk, a connection at all)

Long polls are not consumers: they are only woken, all at once, at the topic's turn.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import trio

C = TypeVar("C")


class Audience(Generic[C]):
    """The consumers and long polls of one topic. The topic keeps it as long as there are any."""

    __slots__ = ("consumers", "due", "live", "polled", "strong")

    def __init__(self) -> None:
        self.consumers: dict[C, None] = {}
        """All consumers, in any of the three places."""
        self.live: dict[C, None] = {}
        self.due: dict[C, None] = {}
        self.polled: trio.Event | None = None
        self.strong = 0
        """How many consumers get only synced records, so that a sync is news to them."""

    @property
    def empty(self) -> bool:
        """Return True if there are no consumers and no long polls."""
        return not self.consumers and self.polled is None

    @property
    def waiting(self) -> bool:
        """Return True if a consumer is due or a long poll is to be woken."""
        return bool(self.due) or self.polled is not None

    def news(self) -> bool:
        """Note that the topic has changed. Return True if there is now anything to serve."""
        if self.live:
            self.due.update(self.live)
            self.live.clear()
        return self.waiting

    def set_live(self, consumer: C) -> None:
        """Note that the consumer has everything."""
        self.due.pop(consumer, None)
        self.live[consumer] = None

    def set_due(self, consumer: C) -> None:
        """Have the consumer served at the topic's next turn."""
        self.live.pop(consumer, None)
        self.due[consumer] = None

    def set_aside(self, consumer: C) -> None:
        """Note that the consumer waits for something else."""
        self.live.pop(consumer, None)
        self.due.pop(consumer, None)

    def next_due(self) -> C:
        """Return the consumer that has been due longest, and set it aside."""
        consumer = next(iter(self.due))
        del self.due[consumer]
        return consumer

    def wake_polls(self) -> None:
        """Wake the long polls: it is the topic's turn."""
        if self.polled is not None:
            self.polled.set()
            self.polled = None

    async def poll(self) -> None:
        """Wait for the topic's turn after its next change. Cancelling it causes at most one needless turn."""
        if self.polled is None:
            self.polled = trio.Event()
        await self.polled.wait()
