"""Which topics have a manifest (`topic.cbor`) of their own, and writing many of them.

A manifest says how the files beside it are to be read, so a topic has one from its first segment on and for as long as
it has a directory. A topic without a directory has no manifest: its part stands in the snapshot, and what came after
that in the log. So a directory of a hundred thousand topics without a record costs a checkpoint and a start no call of
the file system for each of them.

The directories are listed once, by recovery; from then on this module knows who has made one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from topics.offload import Kind, Offload
from topics.storage.datadir import DataDir
from topics.storage.fs import TEMPORARY_SUFFIX, Fs, write_all
from topics.storage.snapshot import encode_manifest

FEW_FILES: Final = 8
"""Up to so many files are synced one by one; more by one sync of the file system."""

MANIFESTS_PER_CALL: Final = 64


class ManifestWrite(NamedTuple):
    """The manifest that one topic is to have."""

    topic_id: int
    part: bytes


class UncertainManifests(OSError):
    """Renaming or syncing manifests has failed: each of them is on disk or not."""


class Manifests:
    """See the module. One writer at a time for each topic (its `upkeep` lock)."""

    def __init__(self, fs: Fs, datadir: DataDir, offload: Offload) -> None:
        self._fs = fs
        self._datadir = datadir
        self._offload = offload
        self._directories: set[int] = set()

    def adopt(self, directories: Iterable[int]) -> None:
        """These topics have a directory, and no others."""
        self._directories = set(directories)

    def __contains__(self, topic_id: int) -> bool:
        """Whether a topic has a manifest, or a directory that may hold one."""
        return topic_id in self._directories

    def forget(self, topic_id: int) -> None:
        """The topic's directory is gone."""
        self._directories.discard(topic_id)

    async def write(self, manifests: Sequence[ManifestWrite]) -> None:
        """Each topic's `topic.cbor`, atomically; all are durable when it returns.

        Raises OSError: then none of them is there, unless it is UncertainManifests.
        """
        datadir = self._datadir
        self._directories.update(one.topic_id for one in manifests)
        sync_each = len(manifests) <= FEW_FILES
        calls = [manifests[at : at + MANIFESTS_PER_CALL] for at in range(0, len(manifests), MANIFESTS_PER_CALL)]
        for call in calls:
            await self._offload.run(Kind.FILES, partial(self._write_temporaries, call, sync=sync_each))
        if not sync_each:
            await self._offload.run(Kind.FILES, partial(self._fs.sync_all, datadir.topics_dir))
        try:
            for call in calls:
                await self._offload.run(Kind.FILES, partial(self._rename_temporaries, call, sync=sync_each))
            if not sync_each:
                await self._offload.run(Kind.FILES, partial(self._fs.sync_all, datadir.topics_dir))
        except OSError as error:
            raise UncertainManifests(error.errno, error.strerror or str(error)) from error

    def _write_temporaries(self, manifests: Sequence[ManifestWrite], *, sync: bool) -> None:
        """In a worker thread."""
        for one in manifests:
            self._fs.mkdir(self._datadir.topic_dir(one.topic_id))
            handle = self._fs.open(self._datadir.manifest_path(one.topic_id) + TEMPORARY_SUFFIX, create=True)
            try:
                handle.truncate(0)
                write_all(handle, encode_manifest(one.part), 0)
                if sync:
                    handle.fdatasync()
            finally:
                handle.close()

    def _rename_temporaries(self, manifests: Sequence[ManifestWrite], *, sync: bool) -> None:
        """In a worker thread."""
        for one in manifests:
            path = self._datadir.manifest_path(one.topic_id)
            self._fs.rename(path + TEMPORARY_SUFFIX, path)
        if sync:
            for one in manifests:
                self._fs.sync_dir(self._datadir.topic_dir(one.topic_id))
            if manifests:
                self._fs.sync_dir(self._datadir.topics_dir)
