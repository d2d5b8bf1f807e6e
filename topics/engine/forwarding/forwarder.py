"""The state of a router at work: how far it has got, and the event that it waits for.

`topics.engine.forwarding.forwarders` decides its next step, `topics.engine.forwarding.copy_commits` commits it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from topics.engine.loader import OpenedRun
from topics.engine.topic import Topic
from topics.log.block import Block
from topics.log.copies import CopyChanges
from topics.routing.router_state import Router


class Forwarder:
    """A router at work. Made by `Forwarders.begin`, closed by `Forwarders.end`."""

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
        """The last source seq that it has decided about. From the router's cursor to here, commits are in flight."""
        self.sent_total = router.forwarded
        """How many copies it has decided to make, including those in flight."""
        self.in_flight = 0
        self.wants_room = False
        """True while it waits for one of its batches to be published."""
        self.closed = False
        self.blocked = False
        """True while its dest takes nothing: then reads do not wait for it."""
        self.backoff_s = 0.0
        self.scope: trio.CancelScope | None = None
        """The scope of the task that waits on its behalf, None without one."""
        self.progress: trio.Event | None = None
        self.read: list[Block] = []
        """Blocks read from disk for its next steps."""
        self.opened: OpenedRun | None = None
        """Records of a segment read for its next steps."""

    def __hash__(self) -> int:
        return hash(self.router.name)

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def changes(self) -> CopyChanges:
        """How its copies differ from the records they are made from."""
        config = self.router.config
        stamp = self.router.name if config.guarantee == "exactly_once" else None
        return CopyChanges(not config.preserve_node, not config.preserve_tag, stamp)

    def tell(self) -> None:
        """Wake the tasks that wait for its progress: it has advanced, or will not for now."""
        if self.progress is not None:
            self.progress.set()
            self.progress = None


class WorkBeforeStep(Exception):
    """The step cannot go on before `work` is done."""

    def __init__(self, work: Callable[[], Awaitable[Any]]) -> None:
        super().__init__()
        self.work = work


class DestFull(Exception):
    """The dest takes nothing for now."""
