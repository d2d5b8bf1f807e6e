"""The daemon's cold directory: its store, whether it is ours, and the task that keeps looking while that is unknown
(`docs/design/cold_store.md`).

A start is refused if the directory belongs to another data directory, or is not the one that was there before. One that
does not answer delays the start by at most `cold_store.START_S`; it is used once it has answered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from topics.config import Settings
from topics.runtime.offload import Offload, Pool
from topics.storage.cold.cold_store import ColdStore, OpenAdmission
from topics.storage.cold.identity import IDENTITY, ColdRoot, ExpectedIdentity
from topics.storage.files.datadir import DataDirError
from topics.storage.files.fs import Fs
from topics.storage.recovery.recovered_state import RecoveredState
from topics.storage.segments.segment_store import DirectorySegmentStore, SegmentStore
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

LOOK_S: Final = 5.0
"""How often a directory is examined that is not known to be ours (s)."""


class ColdDirectory:
    """The cold directory of this daemon. Made by the store; `unlock` must be called in the end. `store` is None without
    a cold directory; a store that is given needs no directory."""

    def __init__(
        self, settings: Settings, fs: Fs, offload: Offload, given: SegmentStore | None, *, data_root: str
    ) -> None:
        self.store: ColdStore | None = None
        self._fs = fs
        self._offload = offload
        self._root: ColdRoot | None = None
        self._expected = ExpectedIdentity({}, frozenset(), frozenset())
        timeout_s = settings.cold_timeout_ms / 1000
        if given is not None:
            self.store = ColdStore(given, offload, timeout_s, OpenAdmission())
        elif settings.cold_dir is not None:
            root = str(settings.cold_dir)
            self._root = ColdRoot(fs, data_root, root, adopt=settings.cold_adopt)
            self.store = ColdStore(DirectorySegmentStore(fs, root), offload, timeout_s, self._root)

    @property
    def is_ours(self) -> bool:
        """Return True if the store may be read and changed, as far as is known."""
        return self._root is None or self._root.state == "ours"

    def identity_files(self) -> list[str]:
        """Return the identity files that a copy of the directories needs, named as `Compactor.files` names files."""
        return [IDENTITY, f"cold:{IDENTITY}"] if self._root is not None and self._root.state == "ours" else []

    def unlock(self) -> None:
        """Release the directory."""
        if self._root is not None:
            self._root.release()

    def look_at_start(self) -> None:
        """Find out, before recovery, to which data directory it belongs. Raises DataDirError if it is not ours.
        Blocking."""
        root, store = self._root, self.store
        if root is None or store is None:
            return
        try:
            store.look(root.look)
        except OSError as error:
            self._tell(error)

    def join_at_start(self, recovered: RecoveredState) -> None:
        """Take over, after recovery, a directory without identity if its content is ours. Raises DataDirError if it is
        not. Blocking."""
        root, store = self._root, self.store
        if root is None or store is None:
            return
        cold = {topic.id for topic in recovered.topics.values() if any(s.tier == "cold" for s in topic.segments)}
        names = {topic.id: topic.name for topic in recovered.topics.values()}
        self._expected = ExpectedIdentity(names, frozenset(cold), frozenset(recovered.copied_topics))
        if root.state == "new":
            try:
                store.look(self._join(root))
            except OSError as error:
                self._tell(error)

    async def watch(self) -> None:
        """Examine the directory every `LOOK_S` until it is known to be ours, or until cancelled."""
        root, store = self._root, self.store
        while root is not None and store is not None and root.state != "ours":
            await trio.sleep(LOOK_S)
            try:
                if root.state != "new":
                    await self._offload.run(Pool.COLD_FILES, partial(store.look, root.look))
                if root.state == "new":
                    await self._offload.run(Pool.COLD_FILES, partial(store.look, self._join(root)))
            except (OSError, DataDirError) as error:
                self._tell(error)
        await trio.sleep_forever()

    def _join(self, root: ColdRoot) -> Callable[[], None]:
        return partial(root.join, self._expected, (self._new_id(), self._new_id()))

    def _new_id(self) -> str:
        return f"{self._fs.salt():016x}{self._fs.salt():016x}"

    def _tell(self, error: Exception) -> None:
        log.error(
            "cold_directory_not_used",
            problem=str(error),
            consequence="cold records answer 503 not_ready and no segment is moved; it is looked at again",
        )
