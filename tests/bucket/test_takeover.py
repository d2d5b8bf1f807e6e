"""Several daemons over one bucket: nothing that was acked as `remote` is lost, no seq has two contents, and no two of
them answer as owners, over takeovers, pauses longer than the lease, drifting clocks, lost answers and lost machines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from tests.bucket.owners import History
from tests.bucket.standby_owners import PairNode, connect
from tests.everything import EVERYTHING, slow_after
from topics.bucket.archive import Archive
from topics.bucket.log_reader import read_pieces
from topics.bucket.object_names import round_name
from topics.bucket.ownership.lease import Lease
from topics.bucket.ownership.takeover import Takeover
from topics.bucket.place import Place
from topics.bucket.round_format import RoundHead, decode_round, encode_round
from topics.bucket.settled_puts import TakenByOther
from topics.engine.ceilings import Ceilings
from topics.engine.topic import CommitPoint

pytestmark = pytest.mark.trio


SEEDS = range(1, 200) if EVERYTHING else (1, 3)


@pytest.mark.parametrize("seed", slow_after(1, SEEDS))
async def test_two_daemons_over_one_bucket(seed: int, autojump_clock: Any) -> None:
    history = History(seed)
    await history.run(events=15 if seed == 1 else 30)
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
def no_fencing(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A build without the fencing round, whose rounds go wherever there is room, and whose owners never stop."""

    async def unfenced(self: Takeover, place: Place, follow: Any) -> Place:
        return place

    async def careless(self: Archive, place: Place, head: RoundHead, pieces: Any) -> None:
        while True:
            blob = encode_round(head, read_pieces(self._fs, pieces))
            try:
                await self._puts.create(round_name(head.number), blob, self._keep_on)
            except TakenByOther as other:
                head = replace(head, number=head.number + 1, previous=decode_round(other.data).hash)
                continue
            place.begin(head, blob[-32:])
            self._noted.follow(place)
            return

    patch.setattr(Takeover, "fence", unfenced)
    patch.setattr(Archive, "_write_round", careless)
    patch.setattr(Lease, "is_held", True)
    yield


PAIR_SEEDS = range(1, 200) if EVERYTHING else range(1, 6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", PAIR_SEEDS)
async def test_daemons_that_follow_one_another(seed: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: Any) -> None:
    """A standby takes over, races with another one, and follows again when it comes back with its directory."""
    connect(monkeypatch)
    history = History(seed, nodes=2 + seed % 2, kind=PairNode)
    await history.run(events=30)
    assert history.judge.problems == []
    assert history.judge.takeovers >= 2


@pytest.mark.parametrize("nodes", slow_after(1, [2, 3]))
async def test_a_standby_takes_over_and_the_former_owner_follows_it(
    nodes: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    connect(monkeypatch)

    async def owner_is_away(history: History) -> None:
        for _ in range(2):
            owner = await history.owner()
            await trio.sleep(3)
            owner.kill(loses_disk=False)
            owner.pause()  # it is not started again before another one has taken over
            await trio.sleep(12)
            owner.resume()
            await trio.sleep(4)

    history = History(1, nodes=nodes, kind=PairNode)
    await history.run(script=owner_is_away)
    assert history.judge.problems == []
    assert sum(node.taken for node in history.nodes if isinstance(node, PairNode)) >= 2


def is_lost(problem: str) -> bool:
    return not problem.endswith("was ready")


async def owner_is_cut_off(history: History) -> None:
    """The owner is cut off from the store for longer than its lease, again and again."""
    for _ in range(3):
        owner = await history.owner()
        await trio.sleep(2)
        owner.is_cut_off = True
        await trio.sleep(9)
        owner.is_cut_off = False
        await trio.sleep(2)


async def owner_is_lost(history: History) -> None:
    """The owner's machine is lost between two rounds, again and again."""
    for i in range(6):
        owner = await history.owner()
        await trio.sleep(2 + 0.13 * i)
        owner.kill(loses_disk=True)


SCRIPTS = [owner_is_cut_off, owner_is_lost]


@pytest.mark.parametrize("script", slow_after(0, SCRIPTS))
async def test_owners_that_are_cut_off_or_lost(script: Any, autojump_clock: Any) -> None:
    history = History(1)
    await history.run(script=script)
    assert history.judge.problems == []
    assert history.judge.takeovers >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "tells", "script"),
    [
        (no_ceilings, is_lost, owner_is_lost),
        (late_fencing, lambda problem: True, owner_is_cut_off),
        (no_fencing, is_lost, owner_is_cut_off),
    ],
)
async def test_a_broken_build_is_found_out(
    broken: Any, tells: Any, script: Any, monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    with broken(monkeypatch):
        for seed in range(5):
            history = History(seed)
            await history.run(script=script)
            if any(map(tells, history.judge.problems)):
                return
    pytest.fail("nothing was found")
