"""What one key may take of what all share (`TOPICS_KEY_SHARE`)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from tests.http.conftest import SMALL, Served, serving, until
from tests.http.test_gate import error_of
from topics.auth.keys import Keyring, parse_keys
from topics.engine.delivery.connection_places import share_of
from topics.http.budgets.byte_budget import ByteBudget
from topics.http.budgets.byte_shares import ByteShares

pytestmark = pytest.mark.trio


async def test_a_key_takes_its_share_and_leaves_the_rest(autojump_clock: object) -> None:
    shares = ByteShares(ByteBudget(1000), 100, lambda: 0.5)
    first, second, nobody = shares.of(b"1"), shares.of(b"2"), shares.of(b"")
    assert first.try_take(500)
    assert not first.try_take(1)
    assert not await first.take(1, 1.0)
    assert second.try_take(400)
    assert nobody.try_take(100), "who has no key is bounded by the whole only"
    assert not second.try_take(100)
    assert not await second.take(100, 1.0)
    first.give_back(500)
    assert second.try_take(100), "nothing was left taken by a try that failed"
    assert not second.try_take(1)
    second.give_back(500)
    nobody.give_back(100)
    assert shares.total.used == 0


async def test_who_waits_for_the_whole_gives_his_own_share_back_when_cancelled(autojump_clock: object) -> None:
    shares = ByteShares(ByteBudget(1000), 100, lambda: 0.5)
    assert shares.of(b"").try_take(1000)
    own = shares.of(b"1")
    with trio.move_on_after(1):
        await own.take(500, 100)
    shares.of(b"").give_back(1000)
    assert own.try_take(500)


async def test_one_body_fits_in_any_share() -> None:
    shares = ByteShares(ByteBudget(1000), 900, lambda: 0.1)
    assert shares.of(b"1").try_take(900)


async def test_a_share_of_a_cap_is_at_least_one() -> None:
    assert [share_of(cap, 0.5) for cap in (0, 1, 2, 3, 100)] == [0, 1, 1, 1, 50]


async def hold(served: Served, key: str, size: int) -> trio.SocketStream:
    """A connection with a body that is never finished."""
    stream = await served.connect()
    head = f"POST /v0/topics/a HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {size + 10}\r\n\r\n"
    await stream.send_all(head.encode() + b"x" * size)
    return stream


async def test_bodies_of_one_key_leave_room_for_those_of_others() -> None:
    keys = parse_keys("greedy,modest")
    async with serving(replace(SMALL, api_keys=keys)) as served:
        streams = [await hold(served, "greedy", 500_000) for _ in range(6)]
        await until(lambda: served.gate._reader.budget.used == 1_000_000)
        await until(lambda: served.gate.figures.throttled["max_inflight_bytes"] >= 1)
        body = {"records": [{"data": "x" * 200_000}]}
        async with served.client() as client:
            answer = await client.post("/v0/topics/b", json=body, headers={"authorization": "Bearer modest"})
            assert answer.status_code == 201
            assert served.gate._reader.budget.used <= 1 << 20
            refused = await client.post("/v0/topics/b", json=body, headers={"authorization": "Bearer greedy"})
            assert error_of(refused, 429, "throttled") == {"limit": "max_inflight_bytes", "max": 1 << 20}
            # A key that is alone has everything.
            served.gate.access.replace(Keyring(keys[:1]))
            answer = await client.post("/v0/topics/b", json=body, headers={"authorization": "Bearer greedy"})
            assert answer.status_code == 200
        for stream in streams:
            await stream.aclose()
        await until(lambda: served.gate._reader.budget.used == 0)


async def test_a_checkpoint_is_not_for_keys_with_prefixes() -> None:
    async with serving(replace(SMALL, api_keys=parse_keys("boss:a,narrow:a:x"))) as served, served.client() as client:
        for query in ("", "?hold_ms=5"):
            answer = await client.post(f"/v0/admin/checkpoint{query}", headers={"authorization": "Bearer narrow"})
            error_of(answer, 403, "forbidden")
        assert served.engine.holds == []
        answer = await client.post("/v0/admin/checkpoint", headers={"authorization": "Bearer boss"})
        assert answer.status_code == 200


@pytest.mark.parametrize("http2", [False, True])
async def test_a_checkpoint_takes_no_body_but_json(served: Served, http2: bool) -> None:
    async with served.client(http2=http2) as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded", None):
            headers = {"content-type": kind} if kind else {}
            answer = await client.post("/v0/admin/checkpoint", content=b"x=1", headers=headers)
            error_of(answer, 415, "unsupported_media_type")
        assert served.engine.holds == []
        assert (await client.post("/v0/admin/checkpoint", json={})).status_code == 200
        assert (await client.post("/v0/admin/checkpoint")).status_code == 200
        answer = await client.post("/v0/admin/checkpoint", headers={"content-type": "text/plain"})
        error_of(answer, 415, "unsupported_media_type")  # a page of another site can send that without asking
