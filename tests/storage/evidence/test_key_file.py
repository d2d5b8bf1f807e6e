"""The file of the key that signs checkpoints: the first call that needs it makes it, once, and no other file is read as
one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from structlog.testing import capture_logs

from tests.simulation.disk import SimFs
from topics.errors import ApiError
from topics.evidence.signed_note import NoteSigner
from topics.storage.evidence.key_file import MAX_KEY_BYTES, EvidenceKey
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import write_all

pytestmark = pytest.mark.trio

T = TypeVar("T")


class SlowOffload:
    """Runs calls after a while, as worker threads may, all at once."""

    def __init__(self) -> None:
        self.at_work = self.most = 0

    async def run(self, _kind: Any, call: Callable[[], T]) -> T:
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        await trio.sleep(1)
        self.at_work -= 1
        return call()


def machine() -> SimFs:
    fs = SimFs()
    fs.mkdir("/data/meta")
    return fs


async def test_tasks_that_need_the_first_key_at_once_get_the_same_and_the_disk_has_it(autojump_clock: Any) -> None:
    """Two threads that both find no file would make two keys, and a topic would keep the hash of the one that is
    lost."""
    fs, offload, found = machine(), SlowOffload(), list[str]()
    key = EvidenceKey(fs, DataDir("/data"), None, has_bucket=False)

    async def ask() -> None:
        found.append((await key.signer(offload)).hash)  # type: ignore[arg-type]

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
    assert offload.most == 1, "the key is made by one thread at a time"
    assert set(found) == {EvidenceKey(fs, DataDir("/data"), None, has_bucket=False).load().hash}


async def test_a_cancelled_caller_keeps_nobody_from_the_key(autojump_clock: Any) -> None:
    key, offload = EvidenceKey(machine(), DataDir("/data"), None, has_bucket=False), SlowOffload()
    with trio.move_on_after(0.5):
        await key.signer(offload)  # type: ignore[arg-type]
    with trio.fail_after(5):
        await key.signer(offload)  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [b"", b"half a key", bytes(MAX_KEY_BYTES + 1)])
async def test_a_file_that_is_no_key_is_named_and_stays(content: bytes, autojump_clock: Any) -> None:
    fs = machine()
    fs.mkdir("/keys")
    with fs.open("/keys/one", create=True) as file:
        write_all(file, content, 0)
    key = EvidenceKey(fs, DataDir("/data"), Path("/keys/one"), has_bucket=True)
    with capture_logs() as logged:
        for _ in range(2):
            with pytest.raises(ApiError) as error:
                await key.signer(SlowOffload())  # type: ignore[arg-type]
            assert error.value.code == "not_ready"
            assert "/keys" not in error.value.message, "readers are not told where files are"
    (line,) = [line for line in logged if line["event"] == "evidence_key_unusable"]
    assert "/keys/one" in line["problem"]
    assert "more than" in line["problem"] or len(content) <= MAX_KEY_BYTES
    assert fs.read("/keys/one") == content
    with fs.open("/keys/one") as file:
        file.truncate(0)
        write_all(file, NoteSigner.generate().to_pem(), 0)
    await key.signer(SlowOffload())  # type: ignore[arg-type]  # it was mended while the daemon runs


def differing(logged: list[Any]) -> list[tuple[int, str | None]]:
    """Of how many topics the log says that their key is another one, and the key that is there."""
    return [(line["topics"], line["present_key"]) for line in logged if line["event"] == "evidence_key_differs"]


async def test_a_start_says_that_topics_know_another_key_or_that_it_is_gone() -> None:
    fs = machine()
    with capture_logs() as logged:
        present = EvidenceKey(fs, DataDir("/data"), None, has_bucket=False).load().hash
    assert [(line["event"], line["key"]) for line in logged] == [("evidence_key_made", present)]
    for known, said in (({}, []), ({present: 3}, []), ({present: 3, "other": 2}, [(2, present)])):
        with capture_logs() as logged:
            EvidenceKey(fs, DataDir("/data"), None, has_bucket=False).compare(known)
        assert differing(logged) == said
    fs.unlink(DataDir("/data").evidence_key_path)
    with capture_logs() as logged:
        EvidenceKey(fs, DataDir("/data"), None, has_bucket=False).compare({present: 3})
    assert differing(logged) == [(3, None)]
    assert not fs.exists(DataDir("/data").evidence_key_path), "a look makes no key"


async def test_a_daemon_of_a_bucket_makes_no_key_of_its_own(autojump_clock: Any) -> None:
    """The request that asks for the key has no field that could be wrong."""
    fs = machine()
    key = EvidenceKey(fs, DataDir("/data"), None, has_bucket=True)
    with pytest.raises(ApiError, match="with a bucket TOPICS_EVIDENCE_KEY_FILE") as error:
        await key.signer(SlowOffload())  # type: ignore[arg-type]
    assert (error.value.code, error.value.detail) == ("not_ready", {})
    assert not fs.exists(DataDir("/data").evidence_key_path)
