"""`TopicTotals`: what topics and commits keep over all topics."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from topics.log.span import Span
from topics.storage.wal.wal_files import LogPosition
from topics.telemetry.figures import Traffic

if TYPE_CHECKING:
    from topics.engine.topic import Fanout, Topic


class TopicTotals:
    """Totals over all topics, which the topics and commits keep themselves."""

    __slots__ = (
        "_steps",
        "attention",
        "bytes_on_the_way",
        "changed",
        "committed_ns",
        "copying",
        "delayed",
        "fetch",
        "hash_soon",
        "in_doubt",
        "is_fenced",
        "is_synced",
        "leaves_in_doubt",
        "news",
        "traffic",
        "unarchived",
        "when_synced",
    )

    def __init__(self) -> None:
        self.traffic = Traffic()
        """Records and bytes that have come in and gone out since the start."""
        self.bytes_on_the_way = 0
        """Of commits that have been decided and not published yet."""
        self.committed_ns = 0
        """When a commit that somebody waits for was last decided, by `Clock.perf_ns`."""
        self.changed: set[Topic] = set()
        """Topics that have changed since their part was made; the compactor takes them."""
        self.attention: set[Topic] = set()
        """The same for the reclaimer, as far as they have segments."""
        self.fetch: Callable[[Topic, tuple[Span, ...]], None] | None = None
        """Starts loading columns that a topic needs before it can go on publishing; ends in `Topic.resume`."""
        self.hash_soon: Callable[[Topic], None] | None = None
        """Told that many leaves of a topic's tree wait to be hashed."""
        self.news: Callable[[Topic | Fanout[Any]], None] | None = None
        """Told that a topic has somebody to be served, or that there is something to be forwarded."""
        self.copying: dict[Topic, None] = {}
        """Topics with copies that are made of other topics' bytes."""
        self.delayed: dict[Topic, None] = {}
        """Topics with something in the log that does not show in them yet: no replay may begin behind it."""
        self.is_fenced = False
        """True if another process may own the data, so that nothing must change here any more, not by time either."""
        self.leaves_in_doubt = False
        """True if the daemon ends while the bucket is away: the next start decides about transactions that fail,
        because a round whose put was not answered may have them, and a standby may show them."""
        self.in_doubt: dict[Any, None] = {}
        """Transactions that recovery may have to decide, oldest first (`topics.engine.transaction`)."""
        self.unarchived: dict[Topic, None] | None = None
        """Topics with seqs that no cut of the log for the bucket has yet; None without a bucket."""
        self._steps: deque[Callable[[], Any]] | None = None
        """The steps that `in_turn` has yet to do, while it does one."""
        self.is_synced: Callable[[int, LogPosition], bool] | None = None
        """Returns True if the disk holds a shard's log up to a position."""
        self.when_synced: Callable[[int, Callable[[], None]], None] | None = None
        """Calls back when what a shard has written by now is on disk."""

    def in_turn(self, step: Callable[[], Any]) -> None:
        """Do a step now that may lead to further steps. These are done behind it, before the outermost call returns,
        and not within it: the end of one transaction can be the end of thousands."""
        if self._steps is not None:
            self._steps.append(step)
            return
        self._steps = deque([step])
        try:
            while self._steps:
                self._steps.popleft()()
        finally:
            self._steps = None
