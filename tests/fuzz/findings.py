"""What fuzzing has found, each the smallest input of its kind: none of it may be found again.

An input is named after what it is. Those on disk are made by the product's own encoders, for bytes alone would say
nothing to a reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import cbor2

from tests.fuzz import machines
from tests.fuzz.framing import mend_log, mend_sealed, mend_segment
from topics.storage.wal import frames
from topics.storage.wal.frames import FrameType


class Found(NamedTuple):
    """An input of a target; made when it is needed."""

    name: str
    target: str
    make: Callable[[], bytes]


HUGE: Final = cbor2.CBORTag(4, [30_000, 1])
"""A decimal number in a few bytes, of so many digits that an `int` of it takes its time. (With a few more zeros in the
exponent: for ever.)"""


def _control(kind: FrameType, payload: Mapping[str, Any], **fields: int) -> bytes:
    """A frame with a checksum that holds."""
    return frames.encode_control(kind, payload, **fields).sealed(None, 0)


def _bare(kind: FrameType, payload: bytes) -> bytes:
    return frames.seal_payloads([(kind, payload, 0)], topic_id=0, ts=0).sealed(None, 0)


def _of_a_topic(kind: FrameType, payload: Mapping[str, Any], **fields: int) -> bytes:
    """A log that creates a queue, and says something of it."""
    config = {"type": "queue"}
    created = _control(FrameType.TOPIC_CREATE, {"name": "orders", "config": config}, topic_id=1, ts=1)
    return created + _control(kind, payload, topic_id=1, **{"ts": 1, **fields})


def _origin_without_room() -> bytes:
    log = _of_a_topic(FrameType.HEAD_WATERMARK, {"ceiling": 9})
    append = frames.encode_appends(
        1, 1, 1, [b"1"], nodes=None, tags=None, metas=None, durable=True, closes_batch=True
    ).data.sealed(None, 0)
    return log + mend_log(append[:5] + bytes((append[5] | frames.HAS_ORIGIN,)) + append[6:])


def _topics_named(*names: object) -> bytes:
    created = (
        _control(FrameType.TOPIC_CREATE, {"name": name, "config": {}}, topic_id=i, ts=1)
        for i, name in enumerate(names, 1)
    )
    return b"".join(created)


def _vouched_far_behind() -> bytes:
    return _control(FrameType.SYNCED, {"file": 0, "offset": 1 << 40}) + b"\xff" * 60


def _part_with(**fields: Any) -> bytes:
    """The part of a topic with segments, but for these fields."""
    part = cbor2.loads(cbor2.loads(machines.stopped().read(machines.DIRECTORY.manifest_path(3)))["manifest"])
    return cbor2.dumps({**part, **fields}, canonical=True)


def _manifest_with(**fields: Any) -> bytes:
    return mend_sealed("manifest", _part_with(**fields))


def _segment_with_a_tag_of(tag: bytes) -> bytes:
    data = machines.contents(machines.stopped(), ".data", within="0000000000000003")[0]
    at = data.index(b"tag1")
    return mend_segment(data[:at] + tag + data[at + len(tag) :])


_ALL: Final[tuple[Found, ...]] = (
    Found("synced that is of no file", "start-strict", lambda: _control(FrameType.SYNCED, {"offset": 1})),
    Found(
        "synced with a map for a file", "start-strict", lambda: _control(FrameType.SYNCED, {"file": {}, "offset": 1})
    ),
    Found("payload that is a list", "start-strict", lambda: _bare(FrameType.SYNCED, b"\x80")),
    Found("payload that is no CBOR", "offline", lambda: _bare(FrameType.SYNCED, b"\xff")),
    Found("ceiling that is a list", "start-strict", partial(_of_a_topic, FrameType.HEAD_WATERMARK, {"ceiling": [1]})),
    Found("config of the wrong type", "start-salvage", partial(_of_a_topic, FrameType.CONFIG_UPDATE, {"config": 3})),
    Found(
        "router that is half there", "start-strict", partial(_of_a_topic, FrameType.ROUTER_CREATE, {"router": ["a", 1]})
    ),
    Found(
        "router with a number without end",
        "start-strict",
        partial(_of_a_topic, FrameType.ROUTER_CREATE, {"router": ["a", 1, HUGE, 0, {"source": "a", "dest": "b"}]}),
    ),
    Found(
        "log of no shards",
        "start-strict",
        lambda: _control(FrameType.SHARD_OPEN, {"boot": "b", "identity": "i", "shards": -1, "failed": []}),
    ),
    Found(
        "identity that is no text",
        "start-strict",
        lambda: _control(FrameType.SHARD_OPEN, {"boot": "b", "identity": 0.5, "shards": 1, "failed": []}),
    ),
    *(
        Found(f"names of topics that are no texts, {target}", target, partial(_topics_named, "a", 1))
        for target in ("start-strict", "start-salvage", "offline")
    ),
    Found("lease of nothing", "start-strict", partial(_of_a_topic, FrameType.LEASE, {"op": "claimed"})),
    Found("origin without room", "start-strict", _origin_without_room),
    Found("vouched far behind the end", "start-salvage", _vouched_far_behind),
    Found(
        "type of a newer version",
        "offline",
        lambda: mend_log(_bare(FrameType.STAGE, b"\xa0").replace(b"\x13", b"\x7f", 1)),
    ),
    Found(
        "nothing vouched for behind bad bytes",
        "offline",
        lambda: b"\xff" * 60 + _control(FrameType.SYNCED, {"file": 0, "offset": []}),
    ),
    Found("part with infinity", "part", lambda: _part_with(segments=[[float("inf"), 0, 0, 0, 0, 1, "hot"]])),
    Found(
        "manifest with a map for a segment",
        "start-manifest",
        lambda: _manifest_with(segments=[[{}, 0, 0, 0, 0, 1, "hot"]]),
    ),
    Found("manifest without floors", "start-manifest", lambda: _manifest_with(log={"head_seq": 1})),
    Found("tag that is no UTF-8, scanned", "segment-data", lambda: _segment_with_a_tag_of(b"\xff")),
    Found("tag that is no UTF-8, loaded", "loaded-data", lambda: _segment_with_a_tag_of(b"\xff")),
    Found("duration without end", "values", lambda: b"9" * 310 + b".5h"),
    Found("size without end", "values", lambda: b"9" * 310 + b".5"),
    Found("field without a name", "body-router", lambda: b'{"":1}'),
)

FOUND: Final[list[tuple[str, Callable[[], bytes]]]] = [(found.target, found.make) for found in _ALL]
IDS: Final[list[str]] = [found.name.replace(" ", "-") for found in _ALL]
