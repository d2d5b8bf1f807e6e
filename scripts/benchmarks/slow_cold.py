"""The daemon with a cold store that takes its time: `python -m benchmarks.slow_cold DELAY_MS`.

Settings come from the environment, as always; the store is a directory (`TOPICS_COLD_DIR`), but every call to it waits
before it begins.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence

from topics import daemon
from topics.config import load_settings
from topics.logs import setup_logging
from topics.storage.fs import OsFs
from topics.storage.segment_store import DirectorySegmentStore, SegmentStore


class SlowStore:
    """A `SegmentStore` that delays another one."""

    def __init__(self, store: SegmentStore, delay_s: float) -> None:
        self._store = store
        self._delay_s = delay_s

    def put(self, topic_id: int, name: str, chunks: Iterable[bytes]) -> int:
        time.sleep(self._delay_s)
        return self._store.put(topic_id, name, chunks)

    def read_range(self, topic_id: int, name: str, offset: int, length: int) -> bytes:
        time.sleep(self._delay_s)
        return self._store.read_range(topic_id, name, offset, length)

    def patch(self, topic_id: int, name: str, patches: Sequence[tuple[int, bytes]]) -> None:
        time.sleep(self._delay_s)
        self._store.patch(topic_id, name, patches)

    def delete(self, topic_id: int, name: str) -> None:
        time.sleep(self._delay_s)
        self._store.delete(topic_id, name)

    def exists(self, topic_id: int, name: str) -> bool:
        time.sleep(self._delay_s)
        return self._store.exists(topic_id, name)

    def length(self, topic_id: int, name: str) -> int:
        time.sleep(self._delay_s)
        return self._store.length(topic_id, name)

    def topics(self) -> list[int]:
        time.sleep(self._delay_s)
        return self._store.topics()

    def delete_topic(self, topic_id: int) -> None:
        time.sleep(self._delay_s)
        self._store.delete_topic(topic_id)

    def finish_deletions(self) -> None:
        time.sleep(self._delay_s)
        self._store.finish_deletions()

    def discard_unfinished(self, topic_id: int) -> None:
        time.sleep(self._delay_s)
        self._store.discard_unfinished(topic_id)

    def list(self, topic_id: int) -> list[str]:
        time.sleep(self._delay_s)
        return self._store.list(topic_id)


def main() -> None:
    settings = load_settings(os.environ)
    setup_logging(settings.log_level, settings.log_format)
    assert settings.cold_dir is not None
    directory = DirectorySegmentStore(OsFs(), str(settings.cold_dir))
    sys.exit(daemon.run(settings, SlowStore(directory, float(sys.argv[1]) / 1000)))


if __name__ == "__main__":
    main()
