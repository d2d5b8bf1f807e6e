"""Whether a daemon has got as far as a reader has: at once on an owner, never on a former one, in time on a standby."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from topics.engine.reach import KnownPlace, Reach, known_places
from topics.engine.registry import EngineStatus
from topics.errors import ApiError, not_owner
from topics.model import WatchRequest, WatchStart
from topics.storage.wal.write_right import WriteRight
from topics.telemetry.figures import StandbyFigures

pytestmark = pytest.mark.trio


class Lost:
    """A lease that is lost."""

    is_held = False
    refusal = not_owner("lost", "http://b", refused=False)


class Daemon:
    """One topic `a` of the epoch 5, with the head 9."""

    def __init__(self) -> None:
        self.log = SimpleNamespace(head_seq=9)
        self.registry: Any = SimpleNamespace(topics={"a": SimpleNamespace(id=5, log=self.log)}, next_topic_id=6)
        self.status, self.right = EngineStatus(0), WriteRight()
        self.reach = Reach(cast(Any, self.registry), self.status, self.right)

    async def refused(self, *places: KnownPlace, wait_s: float = 0) -> str:
        """The code with which a reader is refused; empty if not."""
        try:
            await self.reach.wait(places, trio.current_time() + wait_s)
        except ApiError as error:
            return error.code
        return ""


KNOWN = KnownPlace("a", 9, 5)
BEYOND = [KnownPlace("a", 10), KnownPlace("a", 3, 6), KnownPlace("new", 3, 6)]
GONE = [KnownPlace("a", 3, 4), KnownPlace("old", 3, 4), KnownPlace("never", 3)]
"""Of instances that were deleted before: nothing of them will come."""


async def test_an_owner_answers_whatever_it_is_asked() -> None:
    assert [await Daemon().refused(place) for place in (KNOWN, *BEYOND, *GONE)] == [""] * 7


async def test_a_former_owner_refuses_who_knows_more() -> None:
    daemon = Daemon()
    daemon.right.lease = Lost()
    assert [await daemon.refused(place) for place in BEYOND] == ["not_owner"] * 3
    assert [await daemon.refused(place) for place in (KNOWN, *GONE)] == [""] * 4
    assert await daemon.refused(KNOWN, BEYOND[0]) == "not_owner"


async def test_a_standby_waits_for_what_is_to_come(autojump_clock: Any) -> None:
    daemon = Daemon()
    daemon.status.following = StandbyFigures
    assert [await daemon.refused(place, wait_s=5) for place in BEYOND] == ["behind"] * 3
    assert [await daemon.refused(place) for place in (KNOWN, *GONE)] == [""] * 4

    async def comes() -> None:
        await trio.sleep(3)
        daemon.log.head_seq = 10
        daemon.status.note_cut()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(comes)
        assert await daemon.refused(BEYOND[0], wait_s=5) == ""


async def test_the_places_of_a_watch_are_its_seqs_and_epochs() -> None:
    starts = {"a": WatchStart(from_seq=3, epoch=5), "b": WatchStart(from_seq=4), "c": WatchStart(tail=True, from_seq=9)}
    assert known_places(WatchRequest(topics=starts)) == [
        KnownPlace("a", 3, 5),
        KnownPlace("b", 4),
        KnownPlace("c", 0),
    ]
