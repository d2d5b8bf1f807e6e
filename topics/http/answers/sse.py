"""Encoding the frames of live delivery as server-sent events (`docs/spec/api.md` section 8).

A frame is made without its `id`, so that all watchers of a topic can share it. The id is different for each session,
and is put in front when the frame is queued. Names of topics and JSON have no line ends, so every field is one line.
"""

from __future__ import annotations

from typing import Final

from topics.engine.delivery.feed import ConnectionEnd
from topics.http.accept import qualities
from topics.http.answers.websocket_messages import MANY_TOPICS, tombstone_fields, topic_added_fields
from topics.http.calls import encode
from topics.model import Tombstone, WatchedTopic

CONTENT_TYPE: Final = b"text/event-stream; charset=utf-8"
HEADERS: Final = (
    (b"content-type", CONTENT_TYPE),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)
HELD_UP: Final = 504
"""The code of an `error` event that does not end the stream: the records for the next frame cannot be read now."""
OPENING: Final = b"retry: 2000\n\n"
"""The first bytes of every stream: a browser reconnects after 2 s."""


class EventFormat:
    """Server-sent events; `topics.engine.delivery.feed.FrameFormat` documents the methods."""

    def record(self, topic: str, records: bytes, from_seq: int, to_seq: int, head_seq: int) -> bytes:
        """The event `record`."""
        return (b'event: record\ndata: {"topic":"%b","records":[%b],"from_seq":%d,"to_seq":%d,"head_seq":%d}\n\n') % (
            topic.encode(),
            records,
            from_seq,
            to_seq,
            head_seq,
        )

    def tombstone(self, topic: str, tombstone: Tombstone, reason: str) -> bytes:
        """The event `tombstone`."""
        return _event(b"tombstone", tombstone_fields(topic, tombstone, reason))

    def caught_up(self, topic: str, head_seq: int) -> bytes:
        """The event `caught-up`."""
        return _event(b"caught-up", {"topic": topic, "head_seq": head_seq})

    def topic_added(self, topic: str, at: WatchedTopic) -> bytes:
        """The event `topic-added`."""
        return _event(b"topic-added", topic_added_fields(topic, at))

    def left_out(self, topics: list[str], count: int, most: int) -> bytes:
        """The event `error` with code 429 and `left_out`, which does not end the stream."""
        return _event(b"error", {"code": 429, "error": MANY_TOPICS, "max": most, "left_out": count, "topics": topics})

    def topic_deleted(self, topic: str, head_seq: int) -> bytes:
        """The event `topic-deleted`."""
        return _event(b"topic-deleted", {"topic": topic, "head_seq": head_seq, "reason": "deleted"})

    def paced(self, topics: list[str], retry_after_ms: int) -> bytes:
        """The event `error` with code 429, which does not end the stream."""
        return _event(
            b"error",
            {"code": 429, "error": "paced under pressure", "retry_after_ms": retry_after_ms, "topics": topics},
        )

    def held_up(self, topics: list[str], why: str, retry_after_ms: int) -> bytes:
        """The event `error` with code `HELD_UP`, which does not end the stream."""
        return _event(b"error", {"code": HELD_UP, "error": why, "retry_after_ms": retry_after_ms, "topics": topics})

    def final(self, why: ConnectionEnd) -> bytes:
        """The event `error` that ends the stream."""
        return _event(b"error", {"code": why.status, "error": why.message})


EVENTS: Final = EventFormat()


def with_id(cursors: bytes) -> bytes:
    """The line with an event id, to be sent in front of a frame."""
    return b"id: %b\n" % cursors


def job_event(seq: int, data: bytes) -> bytes:
    """The event `job` of a `/work` stream. `data` is the JSON of the job."""
    return b"event: job\nid: %d\ndata: %b\n\n" % (seq, data)


def heartbeat(now_ms: int) -> bytes:
    """A comment, which is sent when nothing else was sent for a while."""
    return b": hb %d\n\n" % now_ms


def _event(name: bytes, data: dict[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name, encode(data))


def accepts_events(accept: bytes | None) -> bool:
    """Return True if an Accept header allows `text/event-stream`. The most specific range decides (RFC 9110, 12.5.1);
    without a header everything is allowed."""
    if accept is None or not accept.strip():
        return True
    found = qualities(accept)
    for kind in (b"text/event-stream", b"text/*", b"*/*"):
        if kind in found:
            return found[kind] > 0
    return False
