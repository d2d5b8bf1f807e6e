"""`Reach`: whether a standby has got as far as a reader has (`docs/spec/bucket.md` section 6).

A reader may know more than a standby: it has read from the owner, or from another standby. Records that it knows and
this daemon does not are yet to come here, so the reader waits for them, and is then told `503 behind`: never that the
topic was recreated, or does not exist. On an owner nothing here ever waits. An owner that has lost its lease is like a
standby that follows nothing: its successor has the records that it does not know, so it answers `503 not_owner` at
once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import trio
from msgspec import UNSET

from topics.engine.registry import EngineStatus, Registry
from topics.errors import ApiError
from topics.model import WatchRequest
from topics.storage.wal.write_right import WriteRight

STREAM_WAIT_S: Final = 5.0
"""How long a call without a time of its own waits, such as the opening of a stream (s)."""


class KnownPlace(NamedTuple):
    """Up to where a reader has a topic. `epoch` is None if it does not say of which instance."""

    topic: str
    seq: int
    epoch: int | None = None


def known_places(request: WatchRequest) -> list[KnownPlace]:
    """The places that a watcher begins behind."""
    return [
        KnownPlace(
            name,
            0 if start.tail or start.from_seq is UNSET else start.from_seq,
            None if start.epoch is UNSET else start.epoch,
        )
        for name, start in request.topics.items()
    ]


class Reach:
    """Made once by the engine."""

    def __init__(self, registry: Registry, status: EngineStatus, right: WriteRight) -> None:
        self._registry = registry
        self._status = status
        self._right = right

    async def wait(self, places: Iterable[KnownPlace], deadline: float) -> None:
        """Return when everything at these places is here; at once on an owner. Raises `503 behind` at `deadline`
        (Trio's clock), `503 not_owner` on a former owner, and 503 if the daemon stops."""
        if self._status.following is None:
            if not self._right.is_held and any(map(self._is_behind, places)):
                raise self._right.refusal_at_door
            return
        places = tuple(places)
        while (behind := next(filter(self._is_behind, places), None)) is not None:
            if self._status.phase == "draining":
                raise ApiError("shutting_down", "the daemon is shutting down", retry_after_s=1)
            if trio.current_time() >= deadline or self._status.following is None:
                raise self._error(behind)
            with trio.move_on_at(deadline):
                await self._status.next_cut.wait()

    def _is_behind(self, place: KnownPlace) -> bool:
        topic = self._registry.topics.get(place.topic)
        if place.epoch is not None and (topic is None or place.epoch != topic.id):
            return place.epoch >= self._registry.next_topic_id  # ids are never given twice, and ascend
        return topic is not None and place.seq > topic.log.head_seq

    def _error(self, place: KnownPlace) -> ApiError:
        topic = self._registry.topics.get(place.topic)
        return ApiError(
            "behind",
            f"this daemon is a standby, and has not got as far as seq {place.seq} of topic {place.topic!r} yet",
            detail={
                "topic": place.topic,
                "head_seq": topic.log.head_seq if topic is not None else None,
                "epoch": topic.id if topic is not None else None,
            },
            retry_after_s=1,
        )
