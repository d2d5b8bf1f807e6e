"""Makes frames of a topic's news for the feeds that watch it.

Theory of operation. A change of a topic makes its live feeds due and marks it ready. At the topic's turn
(`topics.sched`), `serve` gives each due feed one frame, if the records are in memory and there is room on its
connection, and leaves it in one of these states:

    live          it has everything: the next change makes it due
    due           there is more: at the topic's next turn
    wants room    its connection is full: due again when there is some
    cold          its next records are on disk: a task of its connection reads them, until memory has the next ones

So a turn never waits, and a slow client or a slow disk delays no other watcher. Feeds at the same position with the
same wishes share a frame: the last frames made are kept, and given to each such feed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, NamedTuple

import trio

from topics.engine.delivery.awaited_topics import AwaitedTopics
from topics.engine.delivery.feed import Feed, watched
from topics.engine.delivery.outbox import OUTBOX_BYTES, Outbox
from topics.engine.delivery.prefix_watches import PrefixWatches
from topics.engine.loader import Loader
from topics.engine.record_collector import Collector, PauseNeeded
from topics.engine.registry import Registry
from topics.engine.topic import Fanout, Topic
from topics.errors import ApiError
from topics.log.span import NotLoaded
from topics.model import Performance, Tombstone
from topics.runtime.background import BackgroundTasks
from topics.sched.audience import Audience
from topics.sched.ready_set import MAX_COST
from topics.sched.workers import Scheduler, ServiceResult

TURN_COST: Final = 16
"""Cost of a topic's turn at most: a frame costs 1, and a thousand records 1."""

FILTERED_AT_ONE_COST: Final = 30
"""Records that filters were asked about for a cost of 1."""

KEPT_FRAMES: Final = 16
"""Frames that are kept for other feeds with the same position and wishes."""

RETRY_S: Final = 1.0
"""Pause (s) after the disk has not answered."""

PACED_MS: Final = 500
"""How long (ms) watchers of paused topics are told to wait."""

AT_CONNECT: Final = frozenset({"cap", "ttl", "mixed"})
"""Losses that a watcher who connects too late is told of as `from_seq_too_old`."""


class FeedStep(NamedTuple):
    """The frames made from one look at a topic, for a feed at one position."""

    tombstone: Tombstone | None
    after_tombstone: int
    record: bytes | None
    position: int
    cost: int
    """Of making it, in a topic's turn."""
    records: int
    """How many records it has."""


class TopicDelivery:
    """Delivers topics to the feeds attached to them. Made once by the engine; `serve` is called by the delivery
    workers."""

    def __init__(
        self,
        registry: Registry,
        loader: Loader,
        background: BackgroundTasks,
        scheduler: Scheduler[Topic | Fanout[Any]],
        *,
        max_scan: int,
    ) -> None:
        self._registry = registry
        self._loader = loader
        self._background = background
        self.scheduler = scheduler
        self._max_scan = max_scan
        """Records that are looked at for one frame of a feed with a filter."""
        self._kept: OrderedDict[tuple[Any, ...], FeedStep] = OrderedDict()
        self._awaited = AwaitedTopics()
        self.prefixes = PrefixWatches()
        registry.on_added = self.topic_added
        self._recreated = 0
        """How many `recreated` frames have been made since the start."""
        self.outboxes: dict[Outbox, None] = {}
        """The outboxes of all connections."""
        self.sending: dict[Outbox, None] = {}
        """The outboxes with something in flight."""

    # -- who watches -------------------------------------------------------------------------------------------------

    def attach(self, feed: Feed, outbox: Outbox) -> None:
        """Deliver the feed to this connection from here on. If its topic is deleted, the feed is told so."""
        outbox.feeds[feed] = None
        feed.outbox = outbox
        feed.fresh, feed.caught_up, feed.ended, feed.held_up = True, False, False, False
        topic = None if feed.over else self._registry.topics.get(feed.name)
        if topic is None and feed.awaits:
            self._awaited.add(feed)
            return
        if topic is None:
            self._end(feed, self._registry.last_head(feed.epoch, feed.position))
            return
        self._follow(feed, topic)

    def _follow(self, feed: Feed, topic: Topic) -> None:
        if feed.awaits:
            feed.begin(topic.id)
        feed.topic = topic
        audience = topic.followed()
        audience.consumers[feed] = None
        audience.strong += feed.is_strong
        self._set_due(feed)

    def topic_added(self, topic: Topic) -> None:
        """Attach the feeds that have waited for this topic, and those that a prefix makes."""
        for feed in self._awaited.take(topic.name):
            self._follow(feed, topic)
        for watch in self.prefixes.of(topic.name):
            watch.topic_made(topic)

    def detach(self, feed: Feed) -> None:
        """Stop delivering the feed. It goes back to the position that its connection has taken."""
        self._awaited.discard(feed)
        outbox, topic = feed.outbox, feed.topic
        feed.outbox = feed.topic = None
        feed.go_back(feed.sent)
        if outbox is not None:
            outbox.feeds.pop(feed, None)
            outbox.wanting.pop(feed, None)
        if topic is not None and topic.audience is not None:
            audience = topic.audience
            audience.set_aside(feed)
            audience.consumers.pop(feed, None)
            audience.strong -= feed.is_strong
            topic.drop_empty_audience()

    def set_due(self, feeds: list[Feed]) -> None:
        """Make feeds due, because there is room on their connection."""
        for feed in feeds:
            self._set_due(feed)

    def _set_due(self, feed: Feed) -> None:
        topic = feed.topic
        if topic is None:
            if feed.outbox is not None:
                self._end(feed, self._registry.last_head(feed.epoch, feed.position))
            return
        topic.followed().set_due(feed)
        self.scheduler.mark(topic)

    # -- a turn ------------------------------------------------------------------------------------------------------

    def serve(self, topic: Topic) -> ServiceResult:
        """Do one turn of a topic, in one step of the loop: wake its long polls and give each due feed a frame."""
        audience = topic.audience
        if audience is None or topic.working is not None:
            return ServiceResult(1, False)  # marked again at the end of the deletion it is working off
        audience.wake_polls()
        cost = 0
        is_used = False
        while audience.due and cost < TURN_COST:
            feed = audience.next_due()
            is_used = is_used or feed.touches
            cost += self._serve(topic, audience, feed)
        if is_used:
            self._registry.touch(topic)
        more = bool(audience.due)
        topic.drop_empty_audience()
        return ServiceResult(min(max(cost, 1), MAX_COST), more)

    def _serve(self, topic: Topic, audience: Audience[Feed], feed: Feed) -> int:
        """Give one feed one frame. Return the cost."""
        outbox = feed.outbox
        assert outbox is not None
        if topic.deleted:
            self._end(feed, topic.log.head_seq)
            return 1
        if not outbox.has_room(self._budget(feed)):
            outbox.want_room(feed)
            return 1
        if not feed.announced:
            feed.announced = True
            outbox.put(outbox.form.topic_added(feed.name, watched(topic, feed.position)), feed)
            audience.set_due(feed)
            return 1
        made = self._make(topic, audience, feed)
        if made is None:
            self._warm(feed, outbox)
            return 1
        self._give(feed, made)
        return made.cost

    def _budget(self, feed: Feed) -> int:
        return min(feed.wish.max_bytes, OUTBOX_BYTES)

    def _make(self, topic: Topic, audience: Audience[Feed], feed: Feed) -> FeedStep | None:
        """Return the frames for the feed that can be made from memory; None if there are none and the rest is on
        disk."""
        log = topic.log
        key = None
        if len(audience.consumers) > 1 and self._is_current(topic):
            # Head and count identify the state of the topic: with the same head, every change lowers the count.
            state = (topic.id, log.head_seq, log.count, topic.config.dedupe_node, feed.end)
            key = (state, feed.epoch, feed.position, feed.told, feed.wish, feed.outbox and feed.outbox.form)
            kept = self._kept.get(key)
            if kept is not None:
                return kept
        found = self._collector(topic, feed)
        need = found.advance()
        if need is not None and not isinstance(need, PauseNeeded) and not _worth_giving(found):
            return None
        made = self._made(feed, found)
        if need is not None and not _worth_giving(found):
            made = made._replace(cost=TURN_COST)  # it has used what one turn may take, and found nothing
        if key is not None:
            self._kept[key] = made
            if len(self._kept) > KEPT_FRAMES:
                self._kept.popitem(last=False)
        return made

    def _is_current(self, topic: Topic) -> bool:
        """Evict expired records. Return False if that takes columns that are not in memory."""
        try:
            self._registry.expire(topic)
        except NotLoaded:
            return False
        return True

    def _collector(self, topic: Topic, feed: Feed) -> Collector:
        wish = feed.wish._replace(max_bytes=self._budget(feed))
        up_to = feed.end if feed.is_strong else None
        return Collector(
            self._registry,
            topic,
            wish,
            feed.position,
            same_epoch=feed.epoch == topic.id,
            up_to=up_to,
            most_scanned=self._max_scan,
        )

    def _made(self, feed: Feed, found: Collector) -> FeedStep:
        record = None
        if found.pieces:
            assert feed.outbox is not None
            begin = feed.told if found.tombstone is None else found.after_tombstone
            records = b",".join(found.pieces)
            record = feed.outbox.form.record(feed.name, records, begin, found.position, found.topic.log.head_seq)
        cost = 1 + found.count // 1000 + found.filtered // FILTERED_AT_ONE_COST
        return FeedStep(found.tombstone, found.after_tombstone, record, found.position, cost, found.count)

    def _give(self, feed: Feed, made: FeedStep) -> None:
        """Queue the frames made for the feed's position, as far as there is room, and set the feed's next state."""
        outbox, topic = feed.outbox, feed.topic
        assert outbox is not None
        assert topic is not None
        assert topic.audience is not None
        feed.held_up = False
        if made.tombstone is not None:
            feed.position = feed.told = made.after_tombstone
            if made.tombstone.reason == "recreated":
                self._recreated += 1
                feed.since = self._recreated
            feed.epoch = topic.id
            reason = made.tombstone.reason
            outbox.put(
                outbox.form.tombstone(
                    feed.name, made.tombstone, "from_seq_too_old" if feed.fresh and reason in AT_CONNECT else reason
                ),
                feed,
            )
        feed.fresh = False
        if made.record is not None:
            if not outbox.has_room(len(made.record)):
                outbox.want_room(feed)
                return
            feed.position = feed.told = made.position
            self._registry.traffic.count_out(made.records, len(made.record))
            outbox.put(made.record, feed)
        else:
            feed.position = made.position
        if feed.position < feed.end:
            feed.caught_up = False
            topic.audience.set_due(feed)
            return
        if not feed.caught_up and feed.position >= topic.log.head_seq:  # unsynced records keep a strong feed back
            if not outbox.has_room():
                outbox.want_room(feed)
                return
            feed.told = feed.position
            outbox.put(outbox.form.caught_up(feed.name, feed.position), feed)
            feed.caught_up = True
        topic.audience.set_live(feed)

    def _end(self, feed: Feed, head_seq: int) -> None:
        """Tell the feed that its topic is deleted."""
        outbox = feed.outbox
        assert outbox is not None
        if feed.ended:
            return
        if not feed.announced:
            outbox.end_feed(feed)
            return
        if not outbox.has_room():
            outbox.want_room(feed)
            return
        feed.ended = True
        outbox.put(outbox.form.topic_deleted(feed.name, head_seq), feed, ends=True)

    # -- from the disk -----------------------------------------------------------------------------------------------

    def _warm(self, feed: Feed, outbox: Outbox) -> None:
        outbox.cold.append(feed)
        if not outbox.catching_up:
            outbox.catching_up = True
            self._background.start_soon(self._catch_up, outbox)

    async def _catch_up(self, outbox: Outbox) -> None:
        """Read from disk for the feeds of one connection, one frame each in turn, until memory has all they need."""
        while outbox.cold:
            feed = outbox.cold.popleft()
            topic = feed.topic
            if topic is not None and feed.outbox is outbox and feed not in outbox.wanting:
                if self.scheduler.is_paused(topic):
                    self._set_due(feed)  # served when the topic is no longer paused
                else:
                    await self._read_for(feed, topic, outbox)
        outbox.catching_up = False

    async def _read_for(self, feed: Feed, topic: Topic, outbox: Outbox) -> None:
        perf = Performance(cold_segments_read=0)
        found = self._collector(topic, feed)
        began = feed.mark
        complete = True
        try:
            while (need := found.advance()) is not None and not _worth_giving(found):
                await self._loader.provide(found, need, perf)
        except ApiError as error:
            # Either the topic is deleted, which its next turn tells, or the disk does not answer.
            complete = False
            if not topic.deleted:
                if feed.outbox is outbox:
                    self._tell_held_up(feed, outbox, error)
                await trio.sleep(RETRY_S)
        if feed.outbox is not outbox or feed in outbox.wanting:
            return
        changed = feed.mark != began or not feed.announced
        if not complete or topic.deleted or changed or not outbox.has_room(self._budget(feed)):
            self._set_due(feed)
            return
        self._give(feed, self._made(feed, found))
        if topic.audience is not None and feed in topic.audience.due:
            self.scheduler.mark(topic)

    @staticmethod
    def _tell_held_up(feed: Feed, outbox: Outbox, why: ApiError) -> None:
        """Tell the feed, once, that its records cannot be read now. Without room for that frame, at a later try."""
        if not feed.held_up and outbox.has_room():
            feed.held_up = True
            outbox.put(outbox.form.held_up([feed.name], why.message, int(RETRY_S * 1000)))

    # -- pressure ----------------------------------------------------------------------------------------------------

    def announce_pause(self) -> None:
        """Tell the feeds of paused topics, as far as there is room on their connections."""
        for outbox in list(self.outboxes):
            paused = [feed.name for feed in outbox.feeds if feed.topic and self.scheduler.is_paused(feed.topic)]
            if paused and outbox.has_room():
                outbox.put(outbox.form.paced(paused, PACED_MS))


def _worth_giving(found: Collector) -> bool:
    return bool(found.pieces) or found.tombstone is not None
