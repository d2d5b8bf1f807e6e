"""How much of the loop readers of cold records get, and that their pauses are long enough to be waited for."""

from __future__ import annotations

import pytest
import trio

from tests.simulation.clock import SimClock
from topics.engine.cold_pace import COLD_SHARE, LEAST_PAUSE_NS, MOST_SURPLUS_NS, ColdPace

pytestmark = pytest.mark.trio

PIECE_NS = LEAST_PAUSE_NS // 10


class Paced:
    """Pieces of work, and the pauses after them. Pauses last longer than wanted by `late_ns`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, lively: bool = False, late_ns: int = 0) -> None:
        self.clock = SimClock()
        self.worked_ns = 0
        self.pauses_ns: list[int] = []
        self._late_ns = late_ns
        self._pace = ColdPace(self.clock, lambda: lively)
        self._now_ns = 0
        monkeypatch.setattr(SimClock, "perf_ns", lambda _: self._now_ns)
        monkeypatch.setattr(trio, "sleep", self._sleep)

    async def piece(self, ns: int = PIECE_NS) -> None:
        began = self._now_ns
        self._now_ns += ns
        self.worked_ns += ns
        await self._pace.pay(began)

    async def _sleep(self, seconds: float) -> None:
        await trio.lowlevel.checkpoint()
        slept = round(seconds * 1e9) + self._late_ns
        self._now_ns += slept
        self.pauses_ns.append(slept)


async def test_short_pauses_are_joined_to_one_that_a_clock_of_milliseconds_can_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paced = Paced(monkeypatch)
    for _ in range(40):
        await paced.piece()
    assert paced.pauses_ns == [LEAST_PAUSE_NS] * 4
    assert sum(paced.pauses_ns) == paced.worked_ns  # half of the loop


async def test_others_run_between_two_pieces_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    paced = Paced(monkeypatch)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for number in range(5):
            await paced.piece()
            assert turns >= number
        nursery.cancel_scope.cancel()
    assert not paced.pauses_ns


async def test_a_pause_that_was_too_long_shortens_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    paced = Paced(monkeypatch, late_ns=LEAST_PAUSE_NS)
    for _ in range(1000):
        await paced.piece()
    assert 0.9 < sum(paced.pauses_ns) / paced.worked_ns < 1.1


async def test_a_very_long_pause_does_not_let_the_readers_hold_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    paced = Paced(monkeypatch, late_ns=1000 * LEAST_PAUSE_NS)
    worked = 0
    for _ in range(1000):
        await paced.piece()
        worked += PIECE_NS
        if len(paced.pauses_ns) == 2:
            break
    assert worked <= 2 * LEAST_PAUSE_NS + MOST_SURPLUS_NS


@pytest.mark.parametrize("late_ns", [0, LEAST_PAUSE_NS])
async def test_while_appends_arrive_the_pause_is_never_shorter_than_its_share(
    monkeypatch: pytest.MonkeyPatch, late_ns: int
) -> None:
    paced = Paced(monkeypatch, lively=True, late_ns=late_ns)
    for _ in range(10):
        await paced.piece(2 * PIECE_NS)
    assert paced.pauses_ns == [2 * PIECE_NS * (COLD_SHARE - 1) + late_ns] * 10
