"""Calls that run while their key is withdrawn, or loses the rights that they need (`topics.runtime.withdrawal`)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import trio

from tests.http.conftest import SMALL, Served, serving, until
from topics.auth.keys import Keyring, parse_keys

pytestmark = pytest.mark.trio

KEYED = dataclasses.replace(SMALL, api_keys=parse_keys("boss,stays:rw,goes:rw:a|b"))
GOES = {"authorization": "Bearer goes"}


@pytest.fixture
async def keyed() -> AsyncIterator[Served]:
    async with serving(KEYED) as served, served.client() as client:
        for topic in ("a", "b"):
            await client.put(f"/v0/topics/{topic}", headers={"authorization": "Bearer boss"})
        yield served


def reload(served: Served, keys: str) -> int:
    """From now on these are the keys; how many calls that has ended."""
    return served.gate.access.replace(Keyring(parse_keys(keys))).calls


class Upload:
    """A body that is sent piece by piece, over HTTP/1.1 by hand."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def begin(self, path: str, kind: str) -> None:
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer goes\r\ncontent-type: {kind}\r\n"
        await self._stream.send_all(f"{head}transfer-encoding: chunked\r\n\r\n".encode())

    async def send(self, data: bytes) -> None:
        await self._stream.send_all(b"%x\r\n%b\r\n" % (len(data), data))

    async def answer(self) -> tuple[int, Any]:
        received = b""
        with trio.fail_after(30):
            while b"}}" not in received:
                received += await self._stream.receive_some()
        head, _, rest = received.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(rest[rest.index(b"{") : rest.rindex(b"}") + 1])["error"]


@pytest.mark.parametrize(("keys", "status"), [("boss,stays:rw", 401), ("boss,goes:r", 403), ("boss,goes:rw:b", 403)])
async def test_an_upload_ends_and_says_what_was_committed(keyed: Served, keys: str, status: int) -> None:
    async with await keyed.connect() as stream:
        upload = Upload(stream)
        await upload.begin("/v0/topics/a", "application/x-ndjson")
        await upload.send(b'{"data":1}\n' * 250)
        await until(lambda: keyed.engine.topics["a"].head_seq == 200)
        assert reload(keyed, keys) == 1
        got, error = await upload.answer()
    assert got == status
    assert (error["detail"]["committed"], error["detail"]["last_seq"]) == (200, 200)
    assert error["detail"]["line"] == 251
    assert keyed.engine.topics["a"].head_seq == 200, "the batch in progress is not taken"


async def test_an_upload_that_never_pauses_ends(keyed: Served) -> None:
    async with await keyed.connect() as stream, trio.open_nursery() as nursery:
        upload = Upload(stream)
        await upload.begin("/v0/topics/a", "application/x-ndjson")

        async def send_on() -> None:
            while True:
                await upload.send(b'{"data":1}\n' * 100)

        nursery.start_soon(send_on)
        await until(lambda: keyed.engine.topics["a"].head_seq >= 1000)
        assert reload(keyed, "boss") == 1
        got, error = await upload.answer()
        nursery.cancel_scope.cancel()
    assert (got, error["code"]) == (401, "unauthorized")
    assert error["detail"]["committed"] == error["detail"]["last_seq"] == keyed.engine.topics["a"].head_seq


async def test_an_append_whose_body_is_on_its_way_is_refused(keyed: Served) -> None:
    async with await keyed.connect() as stream:
        upload = Upload(stream)
        await upload.begin("/v0/topics/a", "application/json")
        await upload.send(b'{"records":[')
        await until(lambda: keyed.gate.access.calls == 1)
        assert reload(keyed, "boss") == 1
        got, _ = await upload.answer()
    assert got == 401
    assert keyed.engine.topics["a"].head_seq == 0


async def test_a_long_poll_ends_and_the_poll_of_another_key_goes_on(keyed: Served) -> None:
    answers: dict[str, httpx.Response] = {}

    async def poll(key: str, topic: str) -> None:
        async with keyed.client() as client:
            answers[key + topic] = await client.post(
                f"/v0/topics/{topic}/diff", json={"wait_ms": 30000}, headers={"authorization": f"Bearer {key}"}
            )

    async with trio.open_nursery() as nursery:
        for key, topic in [("goes", "a"), ("goes", "b"), ("stays", "a"), ("stays", "b")]:
            nursery.start_soon(poll, key, topic)
        await until(lambda: keyed.engine.waiting_reads == 4)
        assert reload(keyed, "boss,stays:rw,goes:rw:b") == 1
        await until(lambda: "goesa" in answers)
        assert answers["goesa"].status_code == 403
        assert answers["goesa"].json()["error"]["detail"] == {"topic": "a"}
        assert reload(keyed, "boss,stays:rw") == 1
        await until(lambda: "goesb" in answers)
        assert answers["goesb"].status_code == 401
        assert answers["goesb"].headers["www-authenticate"].startswith("Bearer")
        assert len(answers) == 2
        keyed.engine.changed.set()
    assert answers["staysa"].status_code == answers["staysb"].status_code == 200


async def test_a_call_that_has_begun_its_change_says_what_came_of_it(keyed: Served) -> None:
    begun, go_on = trio.Event(), trio.Event()

    async def slowly() -> None:
        begun.set()
        await go_on.wait()

    keyed.engine.before = slowly
    answers = []

    async def append() -> None:
        async with keyed.client() as client:
            answers.append(await client.post("/v0/topics/a", json={"records": [{"data": 1}]}, headers=GOES))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(append)
        await begun.wait()
        assert reload(keyed, "boss") == 1
        go_on.set()
    assert answers[0].status_code == 200
    assert answers[0].json()["last_seq"] == keyed.engine.topics["a"].head_seq == 1


async def test_nothing_is_kept_of_calls_that_are_over(keyed: Served) -> None:
    async with keyed.client() as client:
        for path in ("/v0/topics/a", "/v0/topics/none", "/v0/topics/a/diff", "/v0/topics/a/diff?limit=x"):
            await client.get(path, headers=GOES)
    assert keyed.gate.access.calls == 0
    assert reload(keyed, "boss") == 0


async def test_without_keys_no_call_is_looked_after(served: Served) -> None:
    async with served.client() as client:
        await client.post("/v0/topics/a", json={"records": [{"data": 1}], "config": {"dead_letter": "b"}})
    assert served.gate.access.calls == 0
