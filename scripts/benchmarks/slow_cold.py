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
from topics.storage.files.fs import OsFs
from topics.storage.segments.segment_store import DirectorySegmentStore, SegmentStore
from topics.telemetry.logs import setup_logging


class SlowStore:
    """A `SegmentStore` that delays another one."""

    def __init__(self, store: SegmentStore, delay_s: float) -> None:
        self._store = store
        self._delay_s = delay_s

    def _late(self) -> SegmentStore:
        time.sleep(self._delay_s)
        return self._store

    def put(self, topic_id: int, name: str, chunks: Iterable[bytes]) -> int:
        return self._late().put(topic_id, name, chunks)

    def read_range(self, topic_id: int, name: str, offset: int, length: int) -> bytes:
        return self._late().read_range(topic_id, name, offset, length)

    def read_stored(self, topic_id: int, name: str, offset: int, length: int) -> bytes:
        return self._late().read_stored(topic_id, name, offset, length)

    def patch(self, topic_id: int, name: str, patches: Sequence[tuple[int, bytes]]) -> None:
        self._late().patch(topic_id, name, patches)

    def delete(self, topic_id: int, name: str) -> None:
        self._late().delete(topic_id, name)

    def exists(self, topic_id: int, name: str) -> bool:
        return self._late().exists(topic_id, name)

    def length(self, topic_id: int, name: str) -> int:
        return self._late().length(topic_id, name)

    def stored_length(self, topic_id: int, name: str) -> int:
        return self._late().stored_length(topic_id, name)

    def topics(self) -> list[int]:
        return self._late().topics()

    def delete_topic(self, topic_id: int) -> None:
        self._late().delete_topic(topic_id)

    def finish_deletions(self) -> None:
        self._late().finish_deletions()

    def discard_unfinished(self, topic_id: int) -> None:
        self._late().discard_unfinished(topic_id)

    def list(self, topic_id: int) -> list[str]:
        return self._late().list(topic_id)


def main() -> None:
    settings = load_settings(os.environ)
    setup_logging(settings.log_level, settings.log_format)
    assert settings.cold_dir is not None
    directory = DirectorySegmentStore(OsFs(), str(settings.cold_dir))
    sys.exit(daemon.run(settings, SlowStore(directory, float(sys.argv[1]) / 1000)))


if __name__ == "__main__":
    main()
