"""Who has a bucket: what standbys say of themselves there, and what is made of it."""

from __future__ import annotations

import trio
import trio.testing

from tests.bucket.simulated_objects import SimFault, SimObjects, given_faults
from tests.simulation.clock import SimClock
from tests.simulation.offload import InlineOffload
from topics.bucket.object_names import OWNER, standby_name
from topics.bucket.ownership.owner_format import Owner, encode_owner
from topics.bucket.standby.announcement import (
    MAX_ANNOUNCEMENT_BYTES,
    Announcement,
    decode_announcement,
    encode_announcement,
)
from topics.bucket.standby.announcer import ANNOUNCE_S, DENIED_S, Announcer
from topics.bucket.standby.replica_look import FORGOTTEN_MS, LOOK_S, MOST_STANDBYS, SILENT_MS, ReplicaLook
from topics.telemetry.figures import ReplicaFigures, StandbyFigures


def an_owner(**changes: object) -> bytes:
    fields: dict[str, object] = {"epoch": 3, "node": "a", "dir": "d1", "state": "held", "nonce": "n", "url": "http://a"}
    return encode_owner(Owner(**{**fields, **changes}))  # type: ignore[arg-type]


def an_announcement(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "node": "b",
        "url": "http://b",
        "state": "following",
        "epoch": 3,
        "round": 7,
        "wall_ms": 1,
        "lag_ms": 250,
        "at": 0,
    }
    return encode_announcement(Announcement(**{**fields, **changes}))  # type: ignore[arg-type]


class World:
    """A store, a clock, and the two tasks. In a nursery with a clock that jumps."""

    def __init__(self, dir_id: str | None = None, store: SimObjects | None = None) -> None:
        self.objects = store or SimObjects()
        self.clock = SimClock()
        self.figures = StandbyFigures(round=7, epoch=3, wall_ms=5, lag_ms=250)
        offload = InlineOffload()
        self.replicas = ReplicaLook(self.objects, dir_id=dir_id, clock=self.clock, offload=offload)
        self.announcer = Announcer(
            self.objects, dir_id="d2", url="http://b", look=lambda: self.figures, clock=self.clock, offload=offload
        )

    def standby_puts(self, name: str = "d2", **changes: object) -> None:
        self.objects.delete([standby_name(name)])
        self.objects.put_new(standby_name(name), an_announcement(**{"at": self.clock.now_ms(), **changes}))

    async def seen(self) -> list[ReplicaFigures]:
        """What a look shows that has the bucket read."""
        self.replicas.look()
        await trio.sleep(LOOK_S + 1)
        found = self.replicas.look()
        assert found is not None
        return found


def run(work: object) -> None:
    trio.run(work, clock=trio.testing.MockClock(autojump_threshold=0))  # type: ignore[arg-type]


def test_the_owner_sees_itself_and_its_standbys_and_asks_only_while_somebody_looks() -> None:
    async def work() -> None:
        world = World()
        world.objects.put_new(OWNER, an_owner())
        world.standby_puts()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.replicas.run)
            assert world.replicas.look() is None, "nothing was read yet"
            owner, standby = await world.seen()
            assert (owner.role, owner.state, owner.url, owner.is_this, owner.epoch) == (
                "owner",
                "owns",
                "http://a",
                True,
                3,
            )
            assert (standby.role, standby.state, standby.url, standby.is_this) == (
                "standby",
                "following",
                "http://b",
                False,
            )
            assert (standby.round, standby.lag_ms) == (7, 250)
            await trio.sleep(LOOK_S)
            calls = len(world.replicas._offload.calls)  # type: ignore[attr-defined]
            await trio.sleep(600)
            assert len(world.replicas._offload.calls) == calls  # type: ignore[attr-defined]
            nursery.cancel_scope.cancel()

    run(work)


def test_a_standby_that_says_nothing_is_silent_and_then_forgotten() -> None:
    async def work() -> None:
        world = World()
        world.objects.put_new(OWNER, an_owner())
        world.standby_puts(at=0)  # by its clock, which may be wrong by any amount
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.replicas.run)
            await world.seen()
            world.standby_puts(at=1)
            (_, standby) = await world.seen()
            assert standby.state == "following", "its announcement has changed: it lives, although its clock is wrong"
            await trio.sleep(SILENT_MS / 1000 + 1)
            (_, standby) = await world.seen()
            assert standby.state == "silent"
            assert (standby.heard_ms or 0) > SILENT_MS
            await trio.sleep(FORGOTTEN_MS / 1000)
            assert len(await world.seen()) == 1
            nursery.cancel_scope.cancel()

    run(work)


def test_an_announcement_that_is_old_when_it_is_seen_first_counts_as_old() -> None:
    async def work() -> None:
        world = World()
        world.standby_puts(at=world.clock.now_ms() - SILENT_MS - 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.replicas.run)
            (standby,) = await world.seen()
            assert standby.state == "silent"
            nursery.cancel_scope.cancel()

    run(work)


def test_a_standby_that_has_become_the_owner_is_listed_once() -> None:
    async def work() -> None:
        world = World(dir_id="d3")
        world.objects.put_new(OWNER, an_owner(dir="d2", url="http://b"))
        world.standby_puts("d2")
        world.standby_puts("d3", url="http://c")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.replicas.run)
            found = await world.seen()
            assert [(one.role, one.url, one.is_this) for one in found] == [
                ("owner", "http://b", False),
                ("standby", "http://c", True),
            ]
            nursery.cancel_scope.cancel()

    run(work)


def test_what_is_damaged_is_left_out_and_more_than_a_page_is_not_read() -> None:
    async def work() -> None:
        world = World()
        world.objects.put_new(OWNER, b"{")
        world.objects.put_new(standby_name("bad"), b'{"node": 1}')
        world.objects.put_new(standby_name("large"), b"x" * (MAX_ANNOUNCEMENT_BYTES + 1))
        for number in range(MOST_STANDBYS + 10):
            world.standby_puts(f"d{number:03}")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.replicas.run)
            found = await world.seen()
            assert {one.role for one in found} == {"standby"}
            assert MOST_STANDBYS - 2 <= len(found) <= MOST_STANDBYS
            nursery.cancel_scope.cancel()

    run(work)


def test_a_standby_tells_of_itself_again_and_again() -> None:
    async def work() -> None:
        world = World()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.announcer.run)
            await trio.sleep(ANNOUNCE_S * 2.5)
            said = decode_announcement(world.objects.objects[standby_name("d2")])
            assert (said.url, said.state, said.round, said.lag_ms) == ("http://b", "following", 7, 250)
            world.figures.round, world.figures.state = 9, "waiting"
            world.objects.delete([standby_name("d2")])  # the collector has thought it gone
            await trio.sleep(ANNOUNCE_S * 2)
            said = decode_announcement(world.objects.objects[standby_name("d2")])
            assert (said.round, said.state) == (9, "waiting")
            nursery.cancel_scope.cancel()

    run(work)


def test_a_store_that_fails_stops_neither_task() -> None:
    async def work() -> None:
        faults = [SimFault.AFTER, SimFault.BEFORE, SimFault.THROTTLED, None]
        world = World(store=SimObjects(faults=given_faults([*faults, *faults])))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.announcer.run)
            nursery.start_soon(world.replicas.run)
            for _ in range(20):
                world.replicas.look()
                await trio.sleep(ANNOUNCE_S)
            (standby,) = await world.seen()
            assert standby.state == "following"
            nursery.cancel_scope.cancel()

    run(work)


def test_a_standby_that_may_not_put_asks_seldom() -> None:
    async def work() -> None:
        world = World(store=SimObjects(faults=given_faults([SimFault.DENIED] * 1000)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.announcer.run)
            await trio.sleep(DENIED_S * 3.5)
            assert world.objects.objects == {}
            assert 1 <= len(world.announcer._offload.calls) <= 4  # type: ignore[attr-defined]
            nursery.cancel_scope.cancel()

    run(work)


def test_names_that_are_too_long_are_cut() -> None:
    assert len(an_announcement(node="n" * 10_000, url="u" * 10_000)) <= MAX_ANNOUNCEMENT_BYTES
