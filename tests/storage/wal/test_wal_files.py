"""The register of the files of the log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from topics.storage.wal.wal_files import WalFiles
from topics.storage.wal.wal_head import HEADLESS


@pytest.fixture
def _eager_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_eager_threads")
def test_a_thread_may_ask_for_the_files_of_a_shard_while_others_come_and_go() -> None:
    """A standby reads its log in a worker thread, and checkpoints drop files meanwhile."""
    files = WalFiles()
    for ordinal in range(100):
        files.add(ordinal % 2, ordinal, f"wal-{ordinal}", HEADLESS)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: [len(files.of_shard(0)) for _ in range(20_000)])
        while not asked.done():
            files.drop(files.add(1, 1000, "wal-1000", HEADLESS))
    assert asked.result() == [50] * 20_000
