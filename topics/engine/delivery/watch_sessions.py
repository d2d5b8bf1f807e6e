"""Watch sessions, and the connections that they are attached to (`docs/spec/api.md` section 8).

A session is a set of feeds that outlives its connections. It has one connection at a time: a newer one takes over, and
continues at the older one's position. Without a connection it lives for `TOPICS_SESSION_TTL_MS`. A stream of one topic
is a session that cannot be resumed, and a WebSocket has feeds of its own; both end with their connection.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import islice
from typing import Final

import trio
from msgspec import UNSET
from msgspec.structs import replace

from topics.auth.keys import OPEN
from topics.config import Settings
from topics.engine.delivery import feed as feeds
from topics.engine.delivery.connection_places import ConnectionPlaces, share_of
from topics.engine.delivery.feed import Feed, FrameFormat, TopicPosition, watched
from topics.engine.delivery.kept_filters import KeptFilters
from topics.engine.delivery.node_lists import NodeLists
from topics.engine.delivery.outbox import Outbox
from topics.engine.delivery.prefix_session import PrefixSession
from topics.engine.delivery.prefix_watches import PrefixWatch
from topics.engine.delivery.prefix_wishes import MOST_PREFIXES, Covered, PrefixWish, PrefixWishes, wishes_of
from topics.engine.delivery.topic_delivery import TopicDelivery
from topics.engine.delivery.transport import Transport
from topics.engine.delivery.watch_session import GONE, SessionCursors, WatchSession, no_session
from topics.engine.record_collector import RecordRequest
from topics.engine.registry import Registry, names_with
from topics.engine.topic import Topic
from topics.errors import ApiError, invalid, topic_not_found
from topics.filters.record_filter import Filter, all_of
from topics.log.block import Projection
from topics.model import WatchedTopic, WatchRequest, WatchStart
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

WID_BYTES: Final = 24
"""Random bytes of a session's name: 192 bits."""

TAKE_OVER_S: Final = 1.0
"""How long (s) a connection that is taken over may delay the newer one with bytes in flight."""

FAREWELL_S: Final = 1.5
"""The same bound for all connections when the daemon stops."""


class WatchSessions:
    """The calls on live delivery for HTTP: sessions, streams of one topic, and sockets. Made once by the engine;
    `expire_idle` and `check_connections` must be called regularly."""

    def __init__(self, settings: Settings, registry: Registry, delivery: TopicDelivery) -> None:
        self._settings = settings
        self._registry = registry
        self._delivery = delivery
        self._sessions: dict[str, WatchSession] = {}
        self._sessions_of: Counter[bytes] = Counter()
        """How many sessions each key has made, by its digest."""
        self._idle: dict[str, WatchSession] = {}
        """The sessions without a connection, in the order in which they lost it."""
        self._draining = False
        self.places = ConnectionPlaces(settings, registry)
        self._node_lists = NodeLists()
        self._filters = KeptFilters()

    @property
    def session_count(self) -> int:
        """The number of sessions, with and without a connection."""
        return len(self._sessions)

    def sessions_of(self, owner: bytes) -> int:
        """The number of sessions that a key has made."""
        return self._sessions_of[owner]

    def most_of_key(self) -> int:
        """The cap on the sessions of one key; 0 for no cap."""
        return share_of(self._settings.max_watch_sessions, self.places.share())

    # -- sessions ----------------------------------------------------------------------------------------------------

    def open(
        self, request: WatchRequest, owner: bytes = b"", covered: Covered = OPEN.covered
    ) -> tuple[WatchSession, dict[str, WatchedTopic]]:
        """Begin a session of `owner`, whose key covers these parts of prefixes. Raises 404 for an unknown topic unless
        it is to be waited for, 400 if `lenient` leaves no topic or the consistency needs a bucket, 429 at the
        cap."""
        if request.consistency == "remote" and not self._registry.has_bucket:
            raise invalid("consistency", "remote needs a daemon with a bucket (TOPICS_BUCKET)")
        maximum = self._settings.max_watch_sessions
        if maximum and len(self._sessions) >= maximum:
            raise self._registry.throttle("max_watch_sessions", maximum)
        maximum = self.most_of_key()
        if owner and maximum and self._sessions_of[owner] >= maximum:
            raise self._registry.throttle("max_watch_sessions_per_key", maximum)
        request = self._keeping_nodes(request)
        found: dict[str, WatchedTopic] = {}
        members = []
        for name, start in request.topics.items():
            topic = self._registry.topics.get(name)
            if topic is None and not request.create:
                if request.lenient:
                    continue
                raise topic_not_found(name)
            feed = self._begin(name, topic, start, request)
            members.append(feed)
            found[name] = watched(topic, feed.position)
        prefixes = wishes_of(
            request.prefixes, covered, partial(self._prefix_wish, request), consistency=request.consistency
        )
        for topic in self._matching(prefixes, found):
            wish = prefixes.of(topic.name)
            assert wish is not None
            feed = self._begin(topic.name, topic, request.prefixes[wish.prefix], request, wish)
            members.append(feed)
            found[topic.name] = watched(topic, feed.position)
        if not members and not prefixes:
            raise invalid("topics", "none of them exists")
        session = self._new_session(members, request, owner, prefixes)
        self._sessions[session.wid] = session
        self._sessions_of[owner] += 1
        self._set_idle(session)
        return session, found

    def _new_session(
        self, members: list[Feed], request: WatchRequest, owner: bytes, prefixes: PrefixWishes
    ) -> WatchSession:
        wid = "wid_" + secrets.token_urlsafe(WID_BYTES)
        if prefixes:
            most = self._settings.max_watch_topics
            return PrefixSession(wid, members, request.heartbeat_ms, owner, prefixes, self._registry, most)
        return WatchSession(wid, members, request.heartbeat_ms, owner)

    def _matching(self, prefixes: PrefixWishes, taken: Collection[str]) -> list[Topic]:
        """Return the existing topics that a prefix matches and whose names are not taken, as many as there is room for
        beside those."""
        topics = self._registry.topics
        room = max(0, self._settings.max_watch_topics - len(taken))
        names = (name for name in names_with(topics, prefixes.covered, None) if name not in taken)
        return [topics[name] for name in islice(names, room)]

    def names_of(self, request: WatchRequest, covered: Covered = OPEN.covered) -> list[str]:
        """Return the topics of a request: those that it names, and those that its prefixes match now, as many as may be
        watched."""
        prefixes = wishes_of(
            request.prefixes, covered, partial(self._prefix_wish, request), consistency=request.consistency
        )
        return [*request.topics, *(topic.name for topic in self._matching(prefixes, request.topics))]

    def _keeping_nodes(self, request: WatchRequest) -> WatchRequest:
        """Return the request with its nodes counted for as long as they are kept. Raises 429."""
        nodes = self._node_lists.keep(request.nodes)
        if nodes is None:
            raise self._registry.throttle("max_node_list_bytes", self._node_lists.most)
        return replace(request, nodes=nodes)

    def session(self, wid: str) -> WatchSession:
        """Return the session of a name. Raises 404."""
        session = self._sessions.get(wid)
        if session is None:
            raise no_session(wid)
        return session

    def stream_of(self, name: str, request: WatchRequest, last_event_id: str | None) -> WatchSession:
        """Return a session of one topic that ends with its connection. `last_event_id` is its cursor. Raises 404 and
        400."""
        topic = self._topic(name, request)
        feed = self._begin(name, topic, request.topics[name], self._keeping_nodes(request))
        session = WatchSession("", [feed], request.heartbeat_ms)
        if last_event_id is not None:
            positions = session.read_id(last_event_id).positions
            if name not in positions:
                raise invalid("Last-Event-ID", "is not an id of this stream")
            feed.sent = TopicPosition(positions[name], GONE if topic is None else topic.id)
            feed.go_back(feed.sent)
        return session

    async def connect(
        self,
        session: WatchSession,
        form: FrameFormat,
        stamp: Callable[[bytes], bytes],
        transport: Transport,
        last_event_id: str | None = None,
    ) -> Outbox:
        """Attach a session to a connection, and return the outbox with its frames. `disconnect` must be called at its
        end.

        An id rewinds the session's cursors, never forward. The session's older connection is told, and ended first.
        Raises 400 for a damaged id, 404 if the session has ended meanwhile or is too old for the id. Cancelling leaves
        the session without a connection.
        """
        cursors = session.read_id(last_event_id) if last_event_id is not None else None
        while session.outbox is not None:
            await self._take_over(session)
        if session.wid:
            self.session(session.wid)
            self._idle.pop(session.wid, None)
        if cursors is not None:
            self._rewind(session, cursors)
        session.prepare()

        def ended(feed: Feed) -> None:
            session.forget(feed)
            self._delivery.detach(feed)
            if outbox.prefixes is not None:
                outbox.prefixes.feed_ended(feed.name)
            elif not session.goes_on:
                outbox.end_after_queued()

        def begin(feed: Feed) -> None:
            session.add(feed)
            self._delivery.attach(feed, outbox)

        outbox = Outbox(
            form,
            transport,
            stamp=lambda: stamp(session.cursors()),
            on_room=self._delivery.set_due,
            on_ended=ended,
            sending=self._delivery.sending,
        )
        session.outbox = outbox
        self._delivery.outboxes[outbox] = None
        for feed in session.feeds:
            self._delivery.attach(feed, outbox)
        if session.prefixes is not None:
            outbox.prefixes = self._prefix_watch(outbox, session.prefixes, begin)
            self._delivery.prefixes.add(outbox.prefixes)
            outbox.prefixes.fill(session.prefixes.covered)
        if self._draining:
            outbox.finish(feeds.SHUTTING_DOWN)
        return outbox

    def _rewind(self, session: WatchSession, cursors: SessionCursors) -> None:
        """Go back to an id. Raises 404, and forgets the session, if it cannot tell what the client has missed."""
        try:
            session.rewind(cursors)
        except ApiError:
            self._forget(session)
            raise

    def _prefix_watch(self, outbox: Outbox, wishes: PrefixWishes, begin: Callable[[Feed], None]) -> PrefixWatch:
        return PrefixWatch(self._registry, outbox, wishes, self._settings.max_watch_topics, begin)

    async def _take_over(self, session: WatchSession) -> None:
        """Tell the session's connection that another takes over, and free the session.

        Frames in flight on it are not sent again, unless its client does not take them within `TAKE_OVER_S`.
        """
        older = session.outbox
        assert older is not None
        older.finish(feeds.TAKEN_OVER)
        with trio.move_on_after(TAKE_OVER_S):
            await older.closed.wait()
        if session.outbox is older:
            self._free(session)

    def _free(self, session: WatchSession) -> None:
        outbox, session.outbox = session.outbox, None
        assert outbox is not None
        self._detach_all(outbox)

    def disconnect(self, session: WatchSession, outbox: Outbox) -> None:
        """Detach the session from a connection that has ended."""
        taken_over = session.outbox is not outbox
        self._close(outbox)
        if taken_over:
            return
        session.outbox = None
        if session.wid and session.goes_on and outbox.ended_by is not feeds.WITHDRAWN:
            self._set_idle(session)
        elif session.wid:
            self._forget(session)

    def _forget(self, session: WatchSession) -> None:
        del self._sessions[session.wid]
        self._sessions_of[session.owner] -= 1
        if not self._sessions_of[session.owner]:
            del self._sessions_of[session.owner]

    def _topic(self, name: str, request: WatchRequest) -> Topic | None:
        """Return the topic; None if it is missing and is to be waited for. Raises 404."""
        return self._registry.topics.get(name) if request.create else self._registry.topic(name)

    def _set_idle(self, session: WatchSession) -> None:
        session.idle_since_ms = self._registry.monotonic_ms()
        self._idle[session.wid] = session

    def _detach_all(self, outbox: Outbox) -> None:
        if outbox.prefixes is not None:
            self._delivery.prefixes.discard(outbox.prefixes)
            outbox.prefixes = None
        for feed in list(outbox.feeds):
            self._delivery.detach(feed)

    def _close(self, outbox: Outbox) -> None:
        self._detach_all(outbox)
        del self._delivery.outboxes[outbox]
        self._delivery.sending.pop(outbox, None)
        outbox.cold.clear()
        outbox.discard()
        outbox.closing = True
        outbox.closed.set()

    def expire_idle(self) -> None:
        """End sessions that have had no connection for too long. Called by the clock."""
        horizon = self._registry.monotonic_ms() - self._settings.session_ttl_ms
        while self._idle:
            wid, session = next(iter(self._idle.items()))
            if session.idle_since_ms > horizon:
                break
            del self._idle[wid]
            self._forget(session)

    # -- sockets -----------------------------------------------------------------------------------------------------

    def open_socket(self, form: FrameFormat, transport: Transport, slots: int | None = None) -> Outbox:
        """Return an outbox for a connection whose feeds come and go (`subscribe`). `close_socket` must be called at its
        end."""

        def ended(feed: Feed) -> None:
            self._delivery.detach(feed)
            if outbox.prefixes is not None:
                outbox.prefixes.feed_ended(feed.name)

        outbox = Outbox(
            form,
            transport,
            stamp=bytes,
            on_room=self._delivery.set_due,
            on_ended=ended,
            sending=self._delivery.sending,
            slots=slots,
        )
        self._delivery.outboxes[outbox] = None
        if self._draining:
            outbox.finish(feeds.SHUTTING_DOWN)
        return outbox

    def resolve(self, outbox: Outbox, request: WatchRequest) -> list[tuple[Feed, WatchedTopic]]:
        """Return feeds for a subscription, not attached yet. Raises 404 for an unknown topic, 400 for more topics than
        a socket may have."""
        found = []
        names = {feed.name for feed in outbox.feeds} | request.topics.keys()
        maximum = self._settings.max_watch_topics
        if len(names) > maximum:
            raise invalid("topics", f"would be {len(names)} on this socket, at most {maximum} are allowed", max=maximum)
        request = self._keeping_nodes(request)
        for name, start in request.topics.items():
            topic = self._topic(name, request)
            feed = self._begin(name, topic, start, request)
            found.append((feed, watched(topic, feed.position)))
        return found

    def resolve_prefix(
        self, outbox: Outbox, request: WatchRequest, covered: Covered = OPEN.covered
    ) -> tuple[PrefixWish, list[tuple[Feed, WatchedTopic]]]:
        """Return the wish for the prefix of a request, which has one, and feeds for the topics that match it now, not
        attached yet: for those that came by a prefix which is not longer, and for others while there is room. Raises
        400 for more prefixes than a socket may have."""
        ((prefix, start),) = request.prefixes.items()
        here = outbox.prefixes.wishes if outbox.prefixes is not None else PrefixWishes()
        if len(here) >= MOST_PREFIXES and prefix not in here:
            raise invalid("prefix", f"would be one more than {MOST_PREFIXES} on this socket", max=MOST_PREFIXES)
        request = self._keeping_nodes(request)
        asked = PrefixWish(prefix, tuple(covered(prefix)), self._prefix_wish(request, prefix), request.consistency)
        again = [
            self._registry.topics.get(feed.name)
            for feed in outbox.feeds
            if feed.prefix is not None and len(feed.prefix) <= len(prefix) and asked.matches(feed.name)
            if not feed.is_over
        ]
        others = self._matching(PrefixWishes([asked]), {feed.name for feed in outbox.feeds})
        found = []
        for topic in (*again, *others):
            if topic is not None:
                wish = here.of(topic.name)
                longest = asked if wish is None or len(wish.prefix) <= len(prefix) else wish
                feed = self._begin(topic.name, topic, start, request, longest)
                found.append((feed, watched(topic, feed.position)))
        return asked, found

    def subscribe_prefix(self, outbox: Outbox, wish: PrefixWish, found: Iterable[Feed]) -> None:
        """Deliver what `resolve_prefix` has found to a socket, and topics that are made later."""
        watch, index = outbox.prefixes, self._delivery.prefixes
        if watch is None:
            attach = partial(self._delivery.attach, outbox=outbox)
            watch = outbox.prefixes = self._prefix_watch(outbox, PrefixWishes(), attach)
        index.discard(watch)
        watch.wishes.add(wish)
        index.add(watch)
        for feed in found:
            self.subscribe(outbox, feed)
        watch.fill(list(wish.covered))

    def unsubscribe_prefix(self, outbox: Outbox, prefix: str) -> list[str]:
        """Stop adding topics to a socket by a prefix, and stop delivering those that it has added. Topics that another
        of the socket's prefixes matches stay, as that one's. Return the topics that are not delivered any more."""
        watch, index = outbox.prefixes, self._delivery.prefixes
        if watch is None or prefix not in watch.wishes:
            return []
        index.discard(watch)
        watch.wishes.remove(prefix)
        index.add(watch)
        left = []
        for feed in [feed for feed in outbox.feeds if feed.prefix == prefix]:
            other = watch.wishes.of(feed.name)
            feed.prefix = other.prefix if other is not None else None
            if other is None:
                self._delivery.detach(feed)
                left.append(feed.name)
        return left

    def subscribe(self, outbox: Outbox, feed: Feed) -> None:
        """Deliver a feed to a socket, in place of an older feed of the same topic."""
        self.unsubscribe(outbox, feed.name)
        self._delivery.attach(feed, outbox)

    def unsubscribe(self, outbox: Outbox, name: str) -> bool:
        """Stop delivering a topic to a socket. Return True if it was delivered."""
        for feed in outbox.feeds:
            if feed.name == name:
                self._delivery.detach(feed)
                return True
        return False

    def close_socket(self, outbox: Outbox) -> None:
        """Detach the feeds of a socket that has ended."""
        self._close(outbox)

    # -- all connections ---------------------------------------------------------------------------------------------

    def check_connections(self) -> None:
        """Look for connections that are too slow. Called by the clock."""
        for outbox in list(self._delivery.sending):
            outbox.check()

    def send_elsewhere(self) -> None:
        """Send every connection its final frame, because another daemon may own the data now: nothing new comes here.
        A client that knows no other daemon may connect again, and is served for as long as this one answers."""
        for outbox in self._delivery.outboxes:
            outbox.finish(feeds.NOT_OWNER)

    async def say_farewell(self) -> None:
        """Send every connection its final frame, because the daemon stops, and cut off those that do not take it."""
        self._draining = True
        for outbox in self._delivery.outboxes:
            outbox.finish(feeds.SHUTTING_DOWN)
        with trio.move_on_after(FAREWELL_S):
            for outbox in list(self._delivery.outboxes):
                await outbox.closed.wait()
            return
        late = list(self._delivery.outboxes)
        log.info("streams_cut_off", connections=len(late))
        for outbox in late:
            outbox.transport.abort()

    # -- what is wanted ----------------------------------------------------------------------------------------------

    def _begin(
        self, name: str, topic: Topic | None, start: WatchStart, request: WatchRequest, by: PrefixWish | None = None
    ) -> Feed:
        """Return a feed for a start that was asked for, `by` a prefix or by name. If the topic is missing, all of its
        records will be new. Raises 429."""
        wish = self._wish(request, request.filters.get(name, ())) if by is None or topic is None else by.wish
        from_seq = 0 if start.from_seq is UNSET else start.from_seq
        if topic is None:
            mark = TopicPosition(0 if start.tail else from_seq, GONE)
            return Feed(name, wish, mark, consistency=request.consistency, awaits=True, touches=request.touch)
        from_seq = topic.log.head_seq if start.tail else from_seq
        mark = TopicPosition(from_seq, topic.id)
        if by is not None:
            return Feed(name, wish, mark, consistency=by.consistency, prefix=by.prefix, touches=request.touch)
        return Feed(name, wish, mark, consistency=request.consistency, touches=request.touch)

    def _wish(self, request: WatchRequest, also: tuple[Filter, ...] = ()) -> RecordRequest:
        """Return what a request wants of each topic; its records must match all of `also`, too. Raises 429."""
        wanted = all_of((request.filter, *also))
        if not self._filters.keep(wanted):
            raise self._registry.throttle("max_filter_bytes", self._filters.most)
        projection = Projection(request.include_tags, request.include_meta, request.include_data)
        return RecordRequest(request.limit, request.max_batch_bytes, request.nodes, projection, filter=wanted)

    def _prefix_wish(self, request: WatchRequest, prefix: str) -> RecordRequest:
        """Return what a request wants of each topic whose name begins with a prefix. Raises 429."""
        return self._wish(request, request.prefix_filters.get(prefix, ()))
