"""Time passes within one step: between the look at what an append needs and its decision, a record of a stored segment
expires, whose columns are not in memory."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.engine.life import Life, living, settings
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from topics.model import AppendRequest, Performance, RecordIn, TransactionRequest

pytestmark = pytest.mark.trio

TTL_MS = 10_000


class TickingClock(SimClock):
    """A clock that shows another millisecond whenever it is read, once it ticks."""

    ticks = False

    def now_ms(self) -> int:
        if self.ticks:
            self.advance(1)
        return super().now_ms()


async def transaction(life: Life, *topics: str) -> None:
    record = RecordIn(data=msgspec.Raw(b"2"))
    appends = [AppendRequest(records=[record]) for _ in topics]
    await life.engine.transactions.append(TransactionRequest(topics=list(topics), appends=appends), Performance())


@pytest.mark.parametrize("call", ["append", "transaction"])
@pytest.mark.parametrize("discard", ["old", "reject"])
async def test_a_record_that_expires_while_an_append_is_decided_does_no_harm(
    discard: Any, call: str, autojump_clock: Any
) -> None:
    for left_ms in range(12):  # until the oldest record expires: one of these is the wrong moment
        fs, clock = SimFs(), TickingClock()
        config = settings(segment_max_events=2)
        async with living(config, fs=fs, clock=clock, housekeeping=False) as life:
            await life.put("t", ttl_ms=TTL_MS, cap_records=100, discard=discard)
            await life.append("t", 1)
            oldest = clock.now_ms()
            clock.advance(TTL_MS // 2)
            await life.append("t", 2)
            await life.compactor.checkpoint()
        async with living(config, fs=fs, clock=clock, housekeeping=False) as life:
            await life.put("other")
            clock.advance(oldest + TTL_MS - left_ms - clock.now_ms())
            clock.ticks = True
            try:
                await (life.append("t", 2) if call == "append" else transaction(life, "other", "t"))
            finally:
                clock.ticks = False
            clock.advance(20)
            assert (await life.append("t", 4)).first_seq == 4
            assert await life.seqs("t") == [2, 3, 4]
