"""A standby that gets the prefix, and what goes wrong then: it becomes the owner, or begins again as a standby, and
never ends with the prefix in its hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from tests.bucket.archived import archived, bucket_settings, owner_of
from tests.bucket.simulated_objects import SimFault, SimObjects
from tests.bucket.standby_lives import URL, live
from tests.simulation.clock import BASE_MS, SimClock
from tests.simulation.disk import SimFs
from tests.simulation.offload import InlineOffload
from tests.simulation.world import ROOT
from topics.bucket.local_note import read_note
from topics.bucket.object_names import number_of, round_name
from topics.bucket.offline.bucket_restore import UNFINISHED
from topics.bucket.ownership.lease_keeper import LeaseKeeper
from topics.bucket.ownership.owner_format import encode_owner
from topics.bucket.ownership.owner_object import LeaseTerms
from topics.bucket.place import Place, first_head
from topics.bucket.round_format import encode_round
from topics.bucket.standby.directory import prepare_directory
from topics.bucket.standby.round_follower import Unfollowable
from topics.engine.engine import Engine
from topics.engine.standby.key_expiry import KeyExpiry
from topics.standby import Standby
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import join

CONFIG = bucket_settings(bucket_takeover=True, bucket_lease_ms=6000)


class Successor:
    """A standby on a simulated disk, whose owner has given the bucket up."""

    standby: Standby

    def __init__(self, fs: SimFs, objects: SimObjects) -> None:
        self.fs = fs
        self.objects = objects
        self.keepers: list[LeaseKeeper] = []
        self.renewing = trio.Event()

    def start(self, keeper: LeaseKeeper) -> None:
        """What `LeaseTerms.start` does here: nothing is renewed."""
        self.keepers.append(keeper)
        self.renewing.set()

    @property
    def place(self) -> Place:
        assert self.standby._follower is not None
        return self.standby._follower.place

    @property
    def renews(self) -> bool:
        """Return True if the lease is renewed."""
        return any(not keeper._ending.is_set() for keeper in self.keepers)

    @property
    def is_owners(self) -> bool:
        """Return True if the directory is the owner's."""
        datadir = DataDir(ROOT)
        return read_note(self.fs, datadir) is not None and not self.fs.exists(datadir.standby_path)

    def at_fence(self, act: Callable[[str], Any]) -> None:
        """Call `act` with the name of the first round that is put, just before it is."""
        acts = [act]

        def faults(op: str, name: str) -> SimFault | None:
            if op == "put_new" and name.startswith("rounds/") and acts:
                found: SimFault | None = acts.pop()(name)
                return found
            return None

        self.objects.faults = faults

    def others_round(self, name: str, **changes: Any) -> None:
        """Another daemon puts the round."""
        head = first_head(replace(self.place, number=int(number_of(name) or 0) - 1), None, "other", BASE_MS)
        for field, value in changes.items():
            setattr(head, field, value)
        self.objects._set(name, encode_round(head, []))


@asynccontextmanager
async def successor(patch: pytest.MonkeyPatch) -> AsyncIterator[Successor]:
    objects, clock, offload = SimObjects(), SimClock(BASE_MS), InlineOffload()
    async with archived(objects, CONFIG, clock=clock, bases=True) as life:
        await life.append("a", 1, 2, 3)
        await life.archive.vouch_for([writer.synced_position()[0] for writer in life.engine.store.writers])
    fs = SimFs()
    one = Successor(fs, objects)
    note = prepare_directory(fs, ROOT, URL, objects, 1, takes=True)
    assert note is not None
    terms = LeaseTerms(CONFIG.bucket_lease_ms, objects, clock.boottime_ms, one.start)
    patch.setattr("topics.standby.make_objects", lambda *_: objects)
    patch.setattr("topics.standby.lease_terms", lambda *_: terms)
    engine = Engine(CONFIG, fs=fs, clock=clock, offload=offload)
    engine.store.lock("a standby")
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            one.standby = Standby(CONFIG, engine, note, "http://standby")
            await one.standby.recover()
            yield one
            nursery.cancel_scope.cancel()
    finally:
        engine.store.unlock()


def test_a_standby_that_follows_forgets_keys_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[float] = []

    async def noted(self: KeyExpiry) -> None:
        passes.append(trio.current_time())

    monkeypatch.setattr(KeyExpiry, "pass_over", noted)

    async def script() -> None:
        async with successor(monkeypatch) as one:
            owner = owner_of(one.objects)
            owner.state, owner.dir, owner.lease_ms = "held", "another", 0
            one.objects._set("owner", encode_owner(owner))
            with trio.move_on_after(60):
                await one.standby.run()

    live(script)
    assert len(passes) >= 5


def test_a_standby_that_may_not_take_what_has_lapsed_does_not_look_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each look is a call of the store, which costs money."""

    async def script() -> None:
        async with successor(monkeypatch) as one:
            owner = owner_of(one.objects)
            owner.state, owner.dir, owner.lease_ms = "held", "another", CONFIG.bucket_lease_ms
            one.objects._set("owner", encode_owner(owner))
            one.standby._settings = replace(CONFIG, bucket_takeover=False)
            with trio.move_on_after(60):
                await one.standby.run()
            assert not one.keepers
            assert one.objects.calls.count(("get", "owner")) < 100

    live(script)


def test_a_standby_becomes_the_owner_when_the_bucket_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        async with successor(monkeypatch) as one:
            await one.standby.run()
            assert one.standby.has_taken
            assert one.is_owners

    live(script)


@pytest.mark.parametrize("gone", ["owner", "FORMAT", "rounds"])
def test_a_standby_takes_a_bucket_whose_owner_somebody_has_removed_and_no_other_part_of_it(
    gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the whole bucket has gone, the directory of the standby is the only copy, and stays one."""

    async def script() -> None:
        async with successor(monkeypatch) as one:
            epoch = one.place.epoch
            one.objects.delete([name for name in one.objects.objects if name == "owner" or name.startswith(gone)])
            with trio.move_on_after(60):
                await one.standby.run()
            assert one.standby.has_taken == one.is_owners == (gone == "owner")
            if gone == "owner":
                assert owner_of(one.objects).epoch == epoch + 1, "no id of a topic is given twice"
                looks = one.objects.calls.count(("get", "owner"))
                assert looks >= CONFIG.bucket_lease_ms / 1000, "the owner may not know yet that it is none"

    live(script)


def test_a_standby_says_once_that_the_owner_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        async with successor(monkeypatch) as one:
            one.objects._set("owner", b"damaged")
            with capture_logs() as logs, trio.move_on_after(60):
                await one.standby.run()
            assert not one.standby.has_taken
            (said,) = (line for line in logs if line["event"] == "owner_not_read")
            assert "owner of the bucket is damaged" in said["problem"]

    live(script)


def test_an_answer_that_is_lost_at_the_fence_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The former owner has put a round this very moment, and reading it fails."""

    async def script() -> None:
        async with successor(monkeypatch) as one:
            reads: list[str] = []

            def late(fence: str) -> None:
                one.others_round(fence, epoch=one.place.epoch - 1)

                def faults(op: str, name: str) -> SimFault | None:
                    if (op, name) != ("get", fence):
                        return None
                    reads.append(name)
                    return SimFault.BEFORE if len(reads) == 2 else None  # the first one is of the put

                one.objects.faults = faults

            one.at_fence(late)
            await one.standby.run()
            assert len(reads) > 2
            assert one.standby.has_taken
            assert one.is_owners

    live(script)


@pytest.mark.parametrize("takes", [True, False])
def test_a_gap_in_front_of_a_standby_is_not_the_end_of_the_rounds(takes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was away for longer than the bucket keeps rounds, and goes on without a start."""

    async def script() -> None:
        async with successor(monkeypatch) as one:
            here = one.place.number
            one.others_round(round_name(here + 2), epoch=one.place.epoch)
            owner = owner_of(one.objects)
            owner.round = here + 2
            if not takes:
                owner.state, owner.dir, owner.lease_ms = "held", "another", 0
            one.objects._set("owner", encode_owner(owner))
            with trio.fail_after(60):
                await one.standby.run()
            assert not one.keepers
            assert not one.standby.has_taken
            assert round_name(here + 1) not in one.objects.objects
            assert one.fs.exists(join(ROOT, UNFINISHED)), "the next start makes the directory anew"

    live(script)


def loses_the_race(one: Successor) -> None:
    """Another daemon has taken the prefix meanwhile, and its fencing round comes first."""
    one.at_fence(lambda name: one.others_round(name, epoch=one.place.epoch + 1))


def meets_another_history(one: Successor) -> None:
    one.at_fence(lambda name: one.others_round(name, epoch=one.place.epoch - 1, begins_history=True))


def is_paused(one: Successor) -> None:
    """The process stands still for longer than the lease, before it puts the fencing round."""
    one.at_fence(lambda name: one.keepers[0].lease.lose("it was not renewed in time"))


def has_no_room(one: Successor) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    one.standby._engine.store.write_clock_mark = full  # type: ignore[method-assign]


@pytest.mark.parametrize("happens", [loses_the_race, meets_another_history, is_paused, has_no_room])
def test_a_standby_that_cannot_become_the_owner_begins_again_and_renews_nothing(
    happens: Callable[[Successor], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        async with successor(monkeypatch) as one:
            happens(one)
            await one.standby.run()
            assert not one.standby.has_taken
            assert one.keepers
            assert not one.renews
            assert not one.is_owners

    live(script)


def test_a_standby_that_cannot_follow_while_it_takes_the_prefix_renews_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise nobody could take over: the directory is made anew under another id, and the process goes on."""

    async def script() -> None:
        async with successor(monkeypatch) as one:
            follower = one.standby._follower
            assert follower is not None
            follower.figures.state = "following"

            async def fails() -> None:
                await one.renewing.wait()
                raise Unfollowable("a round cannot be applied")

            monkeypatch.setattr(follower, "run", fails)
            await one.standby.run()
            assert not one.standby.has_taken
            assert one.keepers
            assert not one.renews

    live(script)
