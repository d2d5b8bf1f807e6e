"""The file of the key that signs checkpoints: it is made once, whoever needs it first, and no other file is read as
one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

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
    with pytest.raises(ApiError, match="more than" if len(content) > MAX_KEY_BYTES else "/keys/one") as error:
        await key.signer(SlowOffload())  # type: ignore[arg-type]
    assert error.value.code == "not_ready"
    assert fs.read("/keys/one") == content
    with fs.open("/keys/one") as file:
        file.truncate(0)
        write_all(file, NoteSigner.generate().to_pem(), 0)
    await key.signer(SlowOffload())  # type: ignore[arg-type]  # it was mended while the daemon runs
