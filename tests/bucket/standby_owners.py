"""Daemons of which each may be a standby, over one bucket, in a simulation (`tests.bucket.owners`): whoever does not
own the bucket follows the one that does, and takes over when that is gone. Their directories stay when they are
killed."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.bucket.archived import ArchivedLife
from tests.bucket.owners import CONFIG, Node, NodeOffload
from tests.bucket.standby_lives import URL
from tests.simulation.disk import SimFs
from tests.simulation.world import ROOT
from topics.bucket.object_store import StoreError, StoreErrorKind
from topics.bucket.offline.bucket_reader import BucketDamaged
from topics.bucket.offline.restore_target import NothingToRestore
from topics.bucket.ownership.lease_keeper import LeaseKeeper
from topics.bucket.ownership.owner_object import LeaseTerms
from topics.bucket.standby.directory import prepare_directory
from topics.standby import Standby


class PairNode(Node):
    """A daemon with `TOPICS_ROLE=standby` and takeover."""

    yields = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.taken = 0
        """How often it has taken over as a standby."""
        self.begun_anew = 0
        """How often it could not go on as a standby."""
        self._nursery: trio.Nursery | None = None

    def _show(self, problem: str, owner: str) -> None:
        if owner:
            self._scope.cancel()  # the next start follows that one

    def start_keeper(self, keeper: LeaseKeeper) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._renew, keeper)

    def terms(self) -> LeaseTerms:
        return LeaseTerms(CONFIG.bucket_lease_ms, self._objects, self.clock.boottime_ms, self.start_keeper)

    async def _live(self) -> None:
        await self.unpaused()
        if self.is_cut_off:
            raise StoreError(StoreErrorKind.UNAVAILABLE, "cut off")
        fs = self._fs or SimFs()
        try:
            # Calls that fail are made again by the reader, after a wait of the thread.
            note = prepare_directory(fs, ROOT, URL, self._objects._inner, 1, takes=True, copies_all=True)
        except (NothingToRestore, BucketDamaged):
            return
        if note is None:
            await super()._live()
            return
        self._fs = fs
        if await self._follow(Standby, note):
            await self._live()

    async def _follow(self, kind: type[Standby], note: Any) -> bool:
        """Follow. Return True if it has taken over."""
        assert self._fs is not None
        life = ArchivedLife(CONFIG, self._fs, self.clock, NodeOffload(self._seed, self))
        engine = life.engine
        engine.store.lock(self.name)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await nursery.start(engine.run)
                standby = kind(CONFIG, engine, note, f"http://{self.name}")
                if not await standby.recover():
                    self._judge.problems.append(f"the log of {self.name} is damaged")
                nursery.start_soon(engine.compactor.run)
                nursery.start_soon(engine.delivery.scheduler.run)
                engine.open_for_business()
                self.follows = life
                await standby.run()
                nursery.cancel_scope.cancel()
        finally:
            self.follows = None
            if not life.fs.dead:
                engine.store.unlock()
        self.taken += standby.has_taken
        self.begun_anew += not standby.has_taken
        return standby.has_taken


def connect(patch: pytest.MonkeyPatch) -> None:
    """Have standbys reach the bucket, and hold leases, as their nodes do."""
    patch.setattr("topics.standby.make_objects", lambda settings, environ, offload: offload._node._objects)
    patch.setattr("topics.standby.lease_terms", lambda settings, environ, offload, clock: offload._node.terms())
