"""One watch session: its feeds, its position as the id of a frame, and how it goes back to an older id.

A session is a set of feeds that outlives its connections. `topics.engine.delivery.watch_sessions` connects it; a
session with prefixes is in `topics.engine.delivery.prefix_session`.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from topics.engine.delivery.feed import Feed, TopicPosition
from topics.engine.delivery.outbox import Outbox
from topics.engine.delivery.prefix_wishes import PrefixWishes
from topics.errors import ApiError, invalid
from topics.model import MAX_U64

NAMED_CURSORS: Final = 64
"""Up to this many topics, an id of a session names them; with more, it is the list of positions in the session's
order."""

_named: Final = msgspec.json.Decoder(dict[str, int])
_listed: Final = msgspec.json.Decoder(list[int | None])


class WatchSession:
    """Feeds that belong together. `wid` is empty for a session that cannot be resumed."""

    prefixes: PrefixWishes | None = None
    """Prefixes by which topics are added, if it has any."""

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

    @property
    def goes_on(self) -> bool:
        """Return True if there may be more frames: not all topics are deleted."""
        return bool(self._feeds)

    @property
    def names(self) -> list[str]:
        """The names of topics that its key must cover."""
        return list(self._feeds)

    def add(self, feed: Feed) -> None:
        """Add a feed to a session with prefixes."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Look at the changes since the last connection, before the feeds are attached to another."""

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
            text = urlsafe_b64decode(padded(last_event_id))
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
    by_epoch: Mapping[int, int] = {}
    """The positions in the id of a session with prefixes, by the epoch of the topic."""


GONE: Final = 0
"""An epoch that no topic has, for a deleted instance."""

_TO_SPACE: Final = bytes.maketrans(b"01", b" \t")
_FROM_SPACE: Final = bytes.maketrans(b" \t", b"01")


def no_session(wid: str) -> ApiError:
    """Return the 404 for a session that has ended or never was."""
    return ApiError("not_found", "there is no such watch session, or not any more", detail={"wid": wid})


def padded(last_event_id: str) -> bytes:
    """Return an id with its base64 padding. Raises ValueError if it is no base64url."""
    text = last_event_id.encode("ascii").rstrip(b"=")
    if not text or text.translate(None, _BASE64URL):
        raise ValueError
    return text + b"=" * (-len(text) % 4)


_BASE64URL: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
