"""From the decision to delete a group on, nothing else of it is decided: its frames would follow the deletion."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.engine.groups.test_group_calls import ack, claim, put, state
from tests.engine.life import Called, HeldOffload, living, settle
from topics.model import Performance

pytestmark = pytest.mark.trio


async def test_nothing_of_a_group_is_decided_once_its_deletion_is(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload, housekeeping=False) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="fsync")
        await life.append("t", 1, 2, 3)
        await put(life)
        assert await claim(life, 2) == [1, 2]
        await settle()
        offload.hold()
        deletion = Called(nursery, lambda: life.engine.groups.delete("t", "g", Performance()))
        await settle()
        acked = Called(nursery, lambda: ack(life, 1))
        claimed = Called(nursery, lambda: claim(life, 1))
        made = Called(nursery, lambda: put(life))
        await settle()
        offload.let_go()
        assert not deletion.done
        assert [call.error and call.error.code for call in (acked, claimed)] == ["group_not_found"] * 2
        await trio.sleep(1)
        assert (deletion.result, made.result) == (True, True)
        assert (await state(life)).floor == 0
        assert await claim(life) == [1, 2, 3]
