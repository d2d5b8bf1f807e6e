"""When an export begins its answer, and what it says when nothing can be sent for long."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
import trio

from tests.http.conftest import Served
from topics.engine.operations.export import ExportEnd, ExportSlice
from topics.errors import ApiError

pytestmark = pytest.mark.trio

NOTHING = ExportSlice(None, b"", (), 0, 10_000)
END = ExportEnd(20_000, 20_000, 1, 1)
WITH_END = {"$end": END._asdict()}


class SparseExport:
    """An export whose slices are told; from the second on they wait until `goes_on` is set."""

    end = END

    def __init__(self, *slices: ExportSlice | ApiError) -> None:
        self.goes_on = trio.Event()
        self._slices: Sequence[ExportSlice | ApiError] = slices
        self._asked = 0

    async def next_slice(self) -> ExportSlice | None:
        self._asked += 1
        if self._asked > 1:
            await self.goes_on.wait()
        if self._asked > len(self._slices):
            return None
        told = self._slices[self._asked - 1]
        if isinstance(told, ApiError):
            raise told
        return told


def offer(served: Served, export: SparseExport) -> None:
    """Let the next export of any topic be this one."""

    async def opened(*_: Any) -> SparseExport:
        return export

    served.engine.export = opened  # type: ignore[method-assign, assignment]


async def lines_of(response: httpx.Response) -> list[Any]:
    return [json.loads(line) async for line in response.aiter_lines()]


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
@pytest.mark.parametrize("accept", ["application/x-ndjson", "application/vnd.apache.arrow.stream"])
async def test_the_head_is_sent_before_anything_is_found(served: Served, http2: bool, accept: str) -> None:
    export = SparseExport(NOTHING, NOTHING, NOTHING)
    offer(served, export)
    with trio.fail_after(20):
        async with (
            served.client(http2=http2) as client,
            client.stream("GET", "/v0/topics/a/records", headers={"accept": accept}) as response,
        ):
            assert response.status_code == 200
            assert response.headers["content-type"] == accept
            assert response.headers["x-request-id"]
            assert not export.goes_on.is_set()
            export.goes_on.set()
            if accept == "application/x-ndjson":
                assert await lines_of(response) == [WITH_END]
            else:
                assert await response.aread()


async def test_what_is_found_in_the_first_slice_is_sent_before_the_next_is_made(served: Served) -> None:
    export = SparseExport(ExportSlice(None, b'{"$seq":1}', (), 1, 10_000), NOTHING)
    offer(served, export)
    with trio.fail_after(20):
        async with served.client() as client, client.stream("GET", "/v0/topics/a/records") as response:
            lines = response.aiter_lines()
            assert json.loads(await anext(lines)) == {"$seq": 1}
            export.goes_on.set()
            assert [json.loads(line) async for line in lines] == [WITH_END]


async def test_an_error_of_the_first_slice_is_a_status(served: Served) -> None:
    offer(served, SparseExport(ApiError("not_ready", "the disk does not answer")))
    async with served.client() as client:
        answer = await client.get("/v0/topics/a/records")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "not_ready"


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
async def test_an_error_after_the_head_cuts_the_export_off(served: Served, http2: bool) -> None:
    export = SparseExport(NOTHING, ApiError("not_ready", "the disk does not answer"))
    offer(served, export)
    with trio.fail_after(20):
        async with served.client(http2=http2) as client, client.stream("GET", "/v0/topics/a/records") as response:
            assert response.status_code == 200
            export.goes_on.set()
            with pytest.raises(httpx.RemoteProtocolError):
                await response.aread()
