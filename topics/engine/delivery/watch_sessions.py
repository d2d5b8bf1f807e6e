"""Watch sessions, and the connections that they are attached to (`docs/spec/api.md` section 8).

A session is a set of feeds that outlives its connections. It has one connection at a time: a newer one takes over, and
continues at the older one's position. Without a connection it lives for `TOPICS_SESSION_TTL_MS`. A stream of one topic
is a session that cannot be resumed, and a WebSocket has feeds of its own; both end with their connection.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec
import trio
from msgspec.structs import replace

from topics.config import Settings
from topics.engine.delivery import feed as feeds
from topics.engine.delivery.connection_places import ConnectionPlaces, share_of
from topics.engine.delivery.feed import Feed, FrameFormat, TopicPosition
from topics.engine.delivery.node_lists import NodeLists
from topics.engine.delivery.outbox import Outbox
from topics.engine.delivery.topic_delivery import TopicDelivery
from topics.engine.delivery.transport import Transport
from topics.engine.record_collector import RecordRequest
from topics.engine.registry import Registry
from topics.engine.topic import Topic
from topics.errors import ApiError, invalid, topic_not_found
from topics.log.block import Projection
from topics.model import MAX_U64, WatchedTopic, WatchRequest, WatchStart
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

WID_BYTES: Final = 24
"""Random bytes of a session's name: 192 bits."""

NAMED_CURSORS: Final = 64
"""Up to this many topics, an id of a session names them; with more, it is the list of positions in the session's
order."""

TAKE_OVER_S: Final = 1.0
"""How long (s) a connection that is taken over may delay the newer one with bytes in flight."""

FAREWELL_S: Final = 1.5
"""The same bound for all connections when the daemon stops."""


_named: Final = msgspec.json.Decoder(dict[str, int])
_listed: Final = msgspec.json.Decoder(list[int | None])


class WatchSession:
    """Feeds that belong together. `wid` is empty for a session that cannot be resumed."""

    def __init__(self, wid: str, topics: Iterable[Feed], heartbeat_ms: int, owner: bytes = b"") -> None:
        self.wid = wid
        self.owner = owner
        """Digest of the key that made it; empty without keys."""
        self.heartbeat_ms = heartbeat_ms
        self.outbox: Outbox | None = None
        self.idle_since_ms = 0
        self._feeds = {feed.name: feed for feed in topics}
        self._listed = len(self._feeds) > NAMED_CURSORS
        self._order = list(self._feeds.values())

    @property
    def feeds(self) -> list[Feed]:
        """One feed for each topic that is still watched."""
        return list(self._feeds.values())

    def forget(self, feed: Feed) -> None:
        """Remove a feed whose topic is deleted, and whose client has been told."""
        feed.over = True
        self._feeds.pop(feed.name, None)

    def cursors(self) -> bytes:
        """Return the id of a frame that is queued now: the position of every topic at that frame.

        White space behind the JSON, which JSON parsers ignore, encodes the number of `recreated` frames before it: a
        seq alone does not tell which instance of a topic it belongs to.
        """
        if self._listed:
            text = msgspec.json.encode([feed.position if self._goes_on(feed) else None for feed in self._order])
        else:
            text = msgspec.json.encode({feed.name: feed.position for feed in self._order if self._goes_on(feed)})
        since = max((feed.since for feed in self._order), default=0)
        if since:
            text += bin(since)[2:].encode().translate(_TO_SPACE)
        return urlsafe_b64encode(text).rstrip(b"=")

    def _goes_on(self, feed: Feed) -> bool:
        """Return True if no `topic-deleted` was queued for the feed."""
        return feed.name in self._feeds and not feed.ended

    def read_id(self, last_event_id: str) -> SessionCursors:
        """Return the positions that an id gives for the topics of this session. Raises 400 if it is no such id."""
        try:
            # The decoder itself does not refuse every character that is outside base64url.
            text = urlsafe_b64decode(_padded(last_event_id))
            if text.startswith(b"["):
                listed = _listed.decode(text)
                if not self._listed or len(listed) != len(self._order):
                    raise ValueError
                positions = {feed.name: seq for feed, seq in zip(self._order, listed, strict=True) if seq is not None}
            else:
                positions = _named.decode(text)
            since = int(text[len(text.rstrip(b" \t")) :].translate(_FROM_SPACE) or b"0", 2)
            if not all(0 <= seq <= MAX_U64 for seq in positions.values()):
                raise ValueError
        except (ValueError, msgspec.DecodeError):
            raise invalid("Last-Event-ID", "is not an id of this stream") from None
        return SessionCursors(positions, since)

    def rewind(self, cursors: SessionCursors) -> None:
        """Go back to the positions of a client. Positions never move forward.

        If the id has a topic that has since been deleted, the client has not been told, and is told again.
        """
        for feed in self._order:
            position = cursors.positions.get(feed.name)
            if position is None:
                continue
            self._feeds[feed.name] = feed
            if feed.since > cursors.since and feed.sent.epoch != GONE:
                feed.sent = TopicPosition(position, GONE)
            elif position < feed.sent.position:
                feed.sent = TopicPosition(position, feed.sent.epoch)
            feed.go_back(feed.sent)


class SessionCursors(NamedTuple):
    """The contents of an id: positions of topics, and the daemon's count of `recreated` frames at the time."""

    positions: Mapping[str, int]
    since: int


GONE: Final = 0
"""An epoch that no topic has, for a deleted instance."""

_TO_SPACE: Final = bytes.maketrans(b"01", b" \t")
_FROM_SPACE: Final = bytes.maketrans(b" \t", b"01")


def _padded(last_event_id: str) -> bytes:
    text = last_event_id.encode("ascii").rstrip(b"=")
    if not text or text.translate(None, _BASE64URL):
        raise ValueError
    return text + b"=" * (-len(text) % 4)


_BASE64URL: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


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

    @property
    def session_count(self) -> int:
        """The number of sessions, with and without a connection."""
        return len(self._sessions)

    # -- sessions ----------------------------------------------------------------------------------------------------

    def open(self, request: WatchRequest, owner: bytes = b"") -> tuple[WatchSession, dict[str, WatchedTopic]]:
        """Begin a session of `owner`. Raises 404 for an unknown topic unless it is to be waited for, 400 if `lenient`
        leaves no topic, 429 at the cap."""
        maximum = self._settings.max_watch_sessions
        if maximum and len(self._sessions) >= maximum:
            raise self._registry.throttle("max_watch_sessions", maximum)
        maximum = share_of(maximum, self.places.share())
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
            feed = _begin(name, topic, start, request)
            members.append(feed)
            found[name] = watched(topic, feed.position)
        if not members:
            raise invalid("topics", "none of them exists")
        session = WatchSession("wid_" + secrets.token_urlsafe(WID_BYTES), members, request.heartbeat_ms, owner)
        self._sessions[session.wid] = session
        self._sessions_of[owner] += 1
        self._set_idle(session)
        return session, found

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
            raise ApiError("not_found", "there is no such watch session, or not any more", detail={"wid": wid})
        return session

    def stream_of(self, name: str, request: WatchRequest, last_event_id: str | None) -> WatchSession:
        """Return a session of one topic that ends with its connection. `last_event_id` is its cursor. Raises 404 and
        400."""
        topic = self._topic(name, request)
        feed = _begin(name, topic, request.topics[name], self._keeping_nodes(request))
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
        Raises 400 for a damaged id, 404 if the session has ended meanwhile. Cancelling leaves the session without a
        connection.
        """
        cursors = session.read_id(last_event_id) if last_event_id is not None else None
        while session.outbox is not None:
            await self._take_over(session)
        if session.wid:
            self.session(session.wid)
            self._idle.pop(session.wid, None)

        def ended(feed: Feed) -> None:
            session.forget(feed)
            self._delivery.detach(feed)
            if not session.feeds:
                outbox.end_after_queued()

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
        if cursors is not None:
            session.rewind(cursors)
        for feed in session.feeds:
            self._delivery.attach(feed, outbox)
        if self._draining:
            outbox.finish(feeds.SHUTTING_DOWN)
        return outbox

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
        for feed in list(outbox.feeds):
            self._delivery.detach(feed)

    def disconnect(self, session: WatchSession, outbox: Outbox) -> None:
        """Detach the session from a connection that has ended."""
        taken_over = session.outbox is not outbox
        self._close(outbox)
        if taken_over:
            return
        session.outbox = None
        if session.wid and session.feeds and outbox.ended_by is not feeds.WITHDRAWN:
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

    def _close(self, outbox: Outbox) -> None:
        for feed in list(outbox.feeds):
            self._delivery.detach(feed)
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
        outbox = Outbox(
            form,
            transport,
            stamp=bytes,
            on_room=self._delivery.set_due,
            on_ended=self._delivery.detach,
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
            feed = _begin(name, topic, start, request)
            found.append((feed, watched(topic, feed.position)))
        return found

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


def _begin(name: str, topic: Topic | None, start: WatchStart, request: WatchRequest) -> Feed:
    """Return a feed for a start that was asked for. If the topic is missing, all of its records will be new."""
    projection = Projection(request.include_tags, request.include_meta, request.include_data)
    wish = RecordRequest(request.limit, request.max_batch_bytes, request.nodes, projection)
    if topic is None:
        mark = TopicPosition(0 if start.tail else start.from_seq, GONE)
        return Feed(name, wish, mark, strong=request.strong, awaits=True)
    from_seq = topic.log.head_seq if start.tail else start.from_seq
    return Feed(name, wish, TopicPosition(from_seq, topic.id), strong=request.strong)


def watched(topic: Topic | None, from_seq: int) -> WatchedTopic:
    """Return what a watcher is first told of a topic."""
    if topic is None:
        return WatchedTopic(from_seq=from_seq, head_seq=0, earliest_seq=1, epoch=None)
    return WatchedTopic(
        from_seq=from_seq, head_seq=topic.log.head_seq, earliest_seq=topic.log.earliest_seq, epoch=topic.id
    )
