"""Encoding the frames of live delivery as WebSocket messages (`docs/spec/api.md` section 8)."""

from __future__ import annotations

from typing import Final

import msgspec

from topics.engine.delivery.feed import ConnectionEnd
from topics.http.calls import encode
from topics.model import Tombstone, WatchedTopic

MANY_TOPICS: Final = "these topics are not watched: the connection has as many as it may (TOPICS_MAX_WATCH_TOPICS)"
"""The message to a client when a prefix matches more topics than it may watch."""


class MessageFormat:
    """Text messages of JSON; `topics.engine.delivery.feed.FrameFormat` documents the methods."""

    def record(self, topic: str, records: bytes, from_seq: int, to_seq: int, head_seq: int) -> bytes:
        """The message `record`."""
        return b'{"op":"record","topic":"%b","from_seq":%d,"to_seq":%d,"head_seq":%d,"records":[%b]}' % (
            topic.encode(),
            from_seq,
            to_seq,
            head_seq,
            records,
        )

    def tombstone(self, topic: str, tombstone: Tombstone, reason: str) -> bytes:
        """The message `tombstone`."""
        return encode({"op": "tombstone", **tombstone_fields(topic, tombstone, reason)})

    def caught_up(self, topic: str, head_seq: int) -> bytes:
        """The message `caught_up`."""
        return encode({"op": "caught_up", "topic": topic, "head_seq": head_seq})

    def topic_added(self, topic: str, at: WatchedTopic) -> bytes:
        """The message `topic_added`."""
        return encode({"op": "topic_added", **topic_added_fields(topic, at)})

    def left_out(self, topics: list[str], count: int, most: int) -> bytes:
        """The message `error` with code `throttled` and the limit, which does not end the socket."""
        detail = {"limit": "max_watch_topics", "max": most, "left_out": count, "topics": topics}
        return encode({"op": "error", "code": "throttled", "message": MANY_TOPICS, "detail": detail})

    def topic_deleted(self, topic: str, head_seq: int) -> bytes:
        """The message `topic_deleted`."""
        return encode({"op": "topic_deleted", "topic": topic, "head_seq": head_seq, "reason": "deleted"})

    def paced(self, topics: list[str], retry_after_ms: int) -> bytes:
        """The message `error` with code `throttled`, which does not end the socket."""
        detail = {"retry_after_ms": retry_after_ms, "topics": topics}
        return encode({"op": "error", "code": "throttled", "message": "paced under pressure", "detail": detail})

    def held_up(self, topics: list[str], why: str, retry_after_ms: int) -> bytes:
        """The message `error` with code `not_ready`, which does not end the socket."""
        detail = {"retry_after_ms": retry_after_ms, "topics": topics}
        return encode({"op": "error", "code": "not_ready", "message": why, "detail": detail})

    def final(self, why: ConnectionEnd) -> bytes:
        """The message `error` after which the socket is closed."""
        return encode({"op": "error", "code": why.code, "message": why.message})


MESSAGES: Final = MessageFormat()


def topic_added_fields(topic: str, at: WatchedTopic) -> dict[str, object]:
    """The fields that tell watchers of a topic that a prefix has added, for events and for messages."""
    return {"topic": topic, **msgspec.structs.asdict(at)}


def tombstone_fields(topic: str, tombstone: Tombstone, reason: str) -> dict[str, object]:
    """The fields that tell watchers of a gap, for events and for messages."""
    return {
        "topic": topic,
        "reason": reason,
        "gap_from": tombstone.gap_from,
        "gap_to": tombstone.gap_to,
        "earliest_seq": tombstone.earliest_seq,
        "head_seq": tombstone.head_seq,
    }
