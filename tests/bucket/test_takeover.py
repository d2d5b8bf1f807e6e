"""Several daemons over one bucket: nothing that was acked as `remote` is lost, no seq has two contents, and no two of
them answer as owners, over takeovers, pauses longer than the lease, drifting clocks, lost answers and lost machines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio

from tests.bucket.owners import History
from tests.everything import slow_after
from topics.bucket.ownership.lease import Lease
from topics.bucket.ownership.start_claim import StartClaim
from topics.bucket.ownership.takeover import Takeover
from topics.engine.ceilings import Ceilings
from topics.engine.topic import CommitPoint

pytestmark = pytest.mark.trio


@pytest.mark.parametrize("seed", slow_after(3, range(20)))
async def test_two_daemons_over_one_bucket(seed: int, autojump_clock: Any) -> None:
    history = History(seed)
    await history.run(events=30)
    assert history.judge.problems == []
    assert history.judge.takeovers >= 2
    assert history.judge.answers > 20


@contextmanager
def no_ceilings(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A build that hands out seqs that the bucket does not know of."""
    patch.setattr(Ceilings, "_bucket_point", lambda self, topic, last_seq, ts: CommitPoint.HANDED)
    patch.setattr(Ceilings, "first_bucket_ceiling", lambda self, config: 0)
    yield


@contextmanager
def late_fencing(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A build whose owner stops only when it learns that another one has taken the prefix."""
    patch.setattr(Lease, "is_held", property(lambda self: not self.reason))
    yield


@contextmanager
def no_fencing_round(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A build that takes the state first, and then the number behind the last round."""
    fence = Takeover.fence
    restore = StartClaim._restore_blocking

    async def unfenced(self: Takeover, place: Any, follow: Any) -> Any:
        return place

    def restored(self: StartClaim, place: Any) -> None:
        restore(self, place)

    patch.setattr(Takeover, "fence", unfenced)
    patch.setattr(StartClaim, "_restore_blocking", restored)
    del fence
    yield


@pytest.mark.parametrize("broken", [no_ceilings, late_fencing])
async def test_a_broken_build_is_found_out(broken: Any, monkeypatch: pytest.MonkeyPatch, autojump_clock: Any) -> None:
    with broken(monkeypatch):
        for seed in range(40):
            history = History(seed)
            with trio.move_on_after(2000):
                await history.run(events=30)
            if history.judge.problems:
                return
    pytest.fail("nothing was found")
