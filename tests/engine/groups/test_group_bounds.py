"""A small `max_unfinished` never keeps a group from going on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.groups.test_group_calls import ODD, ack, claim, put, state, tagged
from tests.engine.life import living

pytestmark = pytest.mark.trio


@pytest.mark.parametrize("most", [1, 2, 3, 10])
async def test_a_filter_that_refuses_every_other_record_leaves_room_for_claims(most: int, autojump_clock: Any) -> None:
    async with living() as life:
        await life.append("t", *tagged(1, 60))
        await put(life, filter=ODD, max_unfinished=most)
        found = []
        while seqs := await claim(life):
            found += seqs
            assert (await state(life)).unfinished <= max(most, 2)
            await ack(life, *seqs)
        assert found == list(range(1, 61, 2))
        assert (await state(life)).lag == 0
