"""Large bodies and answers take turns, small ones do not."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio

from tests.http.conftest import SMALL, Served, serving
from tests.runtime.test_turns import Passes
from topics.http.requests import append_requests
from topics.runtime.turns import Turns

WIDE = replace(SMALL, max_batch_records=10_000, max_body_bytes=8 << 20, max_inflight_bytes=64 << 20)
LARGE = 1000
JSON = {"content-type": "application/json"}
LINES = {"content-type": "application/x-ndjson"}


@pytest.fixture
async def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes for which turns were asked for."""
    sizes: list[int] = []
    take = Turns.take

    async def noting(turns: Turns, *size: int) -> None:
        sizes.append(*size or (0,))
        await take(turns, *size)

    monkeypatch.setattr(Turns, "take", noting)
    return sizes


def body_of(count: int) -> bytes:
    return json.dumps({"records": [{"data": "x" * 98}] * count}).encode()


def lines_of(count: int) -> bytes:
    return b'{"data":"%b"}\n' % (b"x" * 98) * count


Upload = Callable[[Served, int], Awaitable[Any]]


async def upload(headers: dict[str, str], made: Callable[[int], bytes], served: Served, count: int) -> None:
    async with served.client() as client:
        answer = await client.post("/v0/topics/a", content=made(count), headers=headers)
    assert answer.status_code in (200, 201)
    assert answer.json()["count"] == count


append_json: Upload = partial(upload, JSON, body_of)
append_lines: Upload = partial(upload, LINES, lines_of)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("how", "decoder"), [(append_json, "decode_append"), (append_lines, "decode_plain")], ids=["json", "lines"]
)
async def test_no_two_large_bodies_are_decoded_in_one_pass(
    how: Upload, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes()
    trio.lowlevel.add_instrument(passes)
    at: list[int] = []
    decode = getattr(append_requests, decoder)

    def noting(*arguments: Any, **options: Any) -> Any:
        at.append(passes.count)
        return decode(*arguments, **options)

    monkeypatch.setattr(append_requests, decoder, noting)
    async with serving(WIDE) as served, trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(how, served, LARGE)
    assert len(at) == 8
    assert all(after - before >= 2 for before, after in pairwise(at)), at


@pytest.mark.trio
@pytest.mark.parametrize("how", [append_json, append_lines], ids=["json", "lines"])
async def test_a_small_body_takes_no_turn(how: Upload, asked: list[int]) -> None:
    async with serving(WIDE) as served:
        await how(served, 1)
        await how(served, 100)
        assert asked == []
        await how(served, LARGE)
        assert len(asked) == 1


@pytest.mark.trio
async def test_each_step_of_a_very_large_body_takes_a_turn(asked: list[int]) -> None:
    async with serving(WIDE) as served:
        await append_json(served, 10_000)
        assert len(asked) > 10


@pytest.mark.trio
@pytest.mark.parametrize(("limit", "turns"), [(1, 0), (100, 0), (LARGE, 1)])
async def test_making_a_very_large_answer_takes_a_turn(limit: int, turns: int, asked: list[int]) -> None:
    body = json.dumps({"records": [{"data": "x" * 1000}] * LARGE}).encode()
    async with serving(WIDE) as served, served.client() as client:
        assert (await client.post("/v0/topics/a", content=body, headers=JSON)).status_code == 201
        asked.clear()
        answer = await client.get("/v0/topics/a/diff", params={"limit": limit}, headers={"accept-encoding": "identity"})
        assert len(answer.json()["records"]) == limit
        assert len(asked) == turns


@pytest.mark.trio
@pytest.mark.parametrize("count", [20, LARGE])
async def test_compressing_a_large_answer_takes_turns(count: int, asked: list[int]) -> None:
    async with serving(WIDE) as served, served.client() as client:
        await append_json(served, count)
        asked.clear()
        answer = await client.post(
            "/v0/topics/a/diff", json={"limit": 1000}, headers={**JSON, "accept-encoding": "gzip"}
        )
        assert answer.headers["content-encoding"] == "gzip"
        assert len(answer.json()["records"]) == count
        assert bool(asked) is (count == LARGE)
