"""How live delivery looks as WebSocket messages (`docs/spec/api.md` section 8); `sse` is its counterpart."""

from __future__ import annotations

from typing import Final

from topics.engine.delivery.feed import Ending
from topics.http.calls import encode
from topics.model import Tombstone


class MessageFormat:
    """`topics.engine.delivery.feed.Format` as messages."""

    def record(self, topic: str, records: bytes, from_seq: int, to_seq: int, head_seq: int) -> bytes:
        return b'{"op":"record","topic":"%b","from_seq":%d,"to_seq":%d,"head_seq":%d,"records":[%b]}' % (
            topic.encode(),
            from_seq,
            to_seq,
            head_seq,
            records,
        )

    def tombstone(self, topic: str, tombstone: Tombstone, reason: str) -> bytes:
        return encode({"op": "tombstone", **tombstone_fields(topic, tombstone, reason)})

    def caught_up(self, topic: str, head_seq: int) -> bytes:
        return encode({"op": "caught_up", "topic": topic, "head_seq": head_seq})

    def topic_deleted(self, topic: str, head_seq: int) -> bytes:
        return encode({"op": "topic_deleted", "topic": topic, "head_seq": head_seq, "reason": "deleted"})

    def paced(self, topics: list[str], retry_after_ms: int) -> bytes:
        detail = {"retry_after_ms": retry_after_ms, "topics": topics}
        return encode({"op": "error", "code": "throttled", "message": "paced under pressure", "detail": detail})

    def held_up(self, topics: list[str], why: str, retry_after_ms: int) -> bytes:
        detail = {"retry_after_ms": retry_after_ms, "topics": topics}
        return encode({"op": "error", "code": "not_ready", "message": why, "detail": detail})

    def final(self, why: Ending) -> bytes:
        return encode({"op": "error", "code": why.code, "message": why.message})


MESSAGES: Final = MessageFormat()


def tombstone_fields(topic: str, tombstone: Tombstone, reason: str) -> dict[str, object]:
    """What watchers are told of a gap, over whatever connection."""
    return {
        "topic": topic,
        "reason": reason,
        "gap_from": tombstone.gap_from,
        "gap_to": tombstone.gap_to,
        "earliest_seq": tombstone.earliest_seq,
        "head_seq": tombstone.head_seq,
    }
