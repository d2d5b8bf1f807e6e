"""A router at work: where it has got to, and what it waits for.

What it does next is `topics.engine.forwarding.forwarders`'s business, what comes of that
`topics.engine.forwarding.copy_commits`'s.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from topics.engine.loader import OpenedRun
from topics.engine.topic import Topic
from topics.log.block import Block
from topics.log.copies import Look
from topics.routing.router_state import Router


class Forwarder:
    """A router at work."""

    __slots__ = (
        "backoff_s",
        "blocked",
        "closed",
        "dest",
        "in_flight",
        "opened",
        "position",
        "progress",
        "read",
        "router",
        "scope",
        "sent_total",
        "source",
        "wants_room",
    )

    def __init__(self, router: Router, source: Topic, dest: Topic) -> None:
        self.router = router
        self.source = source
        self.dest = dest
        self.position = router.cursor
        """The last seq that it has decided about; what is not published yet lies between it and the router's cursor."""
        self.sent_total = router.forwarded
        """Copies that it has decided about."""
        self.in_flight = 0
        self.wants_room = False
        """It waits for one of its batches to be published."""
        self.closed = False
        self.blocked = False
        """Its dest takes nothing for now: nobody waits for it."""
        self.backoff_s = 0.0
        self.scope: trio.CancelScope | None = None
        """Of the task that waits for it, if one does."""
        self.progress: trio.Event | None = None
        self.read: list[Block] = []
        """Read from disk for its next step."""
        self.opened: OpenedRun | None = None
        """The same from segments."""

    def __hash__(self) -> int:
        return hash(self.router.name)

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def look(self) -> Look:
        """How its copies differ from what they are made of."""
        config = self.router.config
        stamp = self.router.name if config.guarantee == "exactly_once" else None
        return Look(not config.preserve_node, not config.preserve_tag, stamp)

    def tell(self) -> None:
        """It has got on, or will not for now: whoever waits looks again."""
        if self.progress is not None:
            self.progress.set()
            self.progress = None


class Wait(Exception):
    """The step cannot go on before `work` is done."""

    def __init__(self, work: Callable[[], Awaitable[Any]]) -> None:
        super().__init__()
        self.work = work


class Full(Exception):
    """The dest takes nothing for now."""
