"""Which topics have a manifest of their own, which of several counts, and writing them.

A manifest says how the files beside it are to be read, so a topic has one from its first segment on, as long as it has
a directory. A topic without a directory has no manifest: its part is in the snapshot, and everything later in the log.
So a hundred thousand topics without records cost a checkpoint and a start no file system call each. Recovery lists the
directories once; from then on this module knows which topics have one.

*Generations.* A manifest is `topic.cbor`, and each checkpoint replaces it by a rename. If renaming or syncing fails, it
is unknown which of the two a crash leaves: the manifest is *uncertain*. Files that an uncertain manifest names must not
be written again as long as a recovery may choose it. So the topic's next manifests have another name, of the next
generation: recovery takes the highest generation, with any content. The first manifest under the new name is the last
certain one (`supersede`). When that is durable, the uncertain one no longer counts, and the topic goes on as if the
attempt had failed before the rename. Parts have the generation, so that a start that does not read a directory knows
where to write. Files of lower generations are removed after the next manifest, or with the first checkpoint of a
process.

A manifest that a hold names is not replaced either: the topic's next one is of the next generation, and lower ones stay
until the hold is over (`named_files`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from topics.runtime.offload import Offload, Pool
from topics.storage.files.datadir import DataDir, manifest_name, parse_manifest_name
from topics.storage.files.fs import TEMPORARY_SUFFIX, Fs, join, write_all, write_atomic
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.snapshots.snapshot import decode_part, encode_manifest, encode_part

FEW_FILES: Final = 8
"""Up to so many files are synced one by one; more by one sync of the file system."""

MANIFESTS_PER_CALL: Final = 64
"""Manifests that one thread call writes."""

TRIES: Final = 10
"""Attempts to read a manifest in a directory in which manifests are replaced meanwhile."""


class ManifestWrite(NamedTuple):
    """A manifest to be written."""

    topic_id: int
    part: bytes
    generation: int
    """The generation in the part: `Manifests.following`."""


class UncertainManifests(OSError):
    """Renaming or syncing manifests has failed: each of them may or may not be on disk."""


class Manifests:
    """The manifests of all topics. Made by the store, filled by `adopt` after recovery. Only one task at a time writes
    the manifest of a topic (the holder of its `hot_lock` lock)."""

    def __init__(self, fs: Fs, datadir: DataDir, offload: Offload, hot: SegmentStore) -> None:
        self._fs = fs
        self._datadir = datadir
        self._offload = offload
        self._hot = hot
        self._directories: set[int] = set()
        self._durable: set[int] = set()
        """The topics that have a manifest on disk, or may have one from an earlier process."""
        self._generations: dict[int, int] = {}
        """The generation of each topic's manifest, by id, if not 0."""
        self._outdated: set[int] = set()
        """Topics that may have files of lower generations."""

    def adopt(self, directories: Iterable[int], generations: Mapping[int, int]) -> None:
        """Note that these topics, and no others, have a directory, and these manifests a generation above 0."""
        self._directories = set(directories)
        self._durable = set(directories)
        self._generations = dict(generations)
        self._outdated = set(generations)

    def __contains__(self, topic_id: int) -> bool:
        """Return True if a topic has a manifest, or a directory that may hold one."""
        return topic_id in self._directories

    def generation(self, topic_id: int) -> int:
        """Return the generation of a topic's manifest, or of its uncertain one; 0 if it has none."""
        return self._generations.get(topic_id, 0)

    def following(self, topic_id: int, named: Mapping[int, int]) -> int:
        """Return the generation of a topic's next manifest: another one than a hold has `named` (by topic id)."""
        return max(self.generation(topic_id), named.get(topic_id, -1) + 1)

    def path(self, topic_id: int) -> str:
        """Return the path of a topic's manifest, or of its uncertain one."""
        return self._datadir.manifest_path(topic_id, self.generation(topic_id))

    @property
    def outdated(self) -> set[int]:
        """The ids of topics that may have files of lower generations."""
        return set(self._outdated)

    def forget(self, topic_id: int) -> None:
        """Note that the topic's directory is gone."""
        self._directories.discard(topic_id)
        self._durable.discard(topic_id)
        self._generations.pop(topic_id, None)
        self._outdated.discard(topic_id)

    async def write(self, manifests: Sequence[ManifestWrite], *, remove_outdated: bool = True) -> None:
        """Write each topic's manifest atomically; all are durable when this returns. `remove_outdated=False` keeps
        those of lower generations, because a hold may name them.

        Raises OSError: then none of them was written, unless it is UncertainManifests.
        """
        datadir = self._datadir
        self._directories.update(one.topic_id for one in manifests)
        sync_each = len(manifests) <= FEW_FILES
        calls = [manifests[at : at + MANIFESTS_PER_CALL] for at in range(0, len(manifests), MANIFESTS_PER_CALL)]
        for call in calls:
            await self._offload.run(Pool.FILES, partial(self._write_temporaries, call, sync=sync_each))
        if not sync_each:
            await self._offload.run(Pool.FILES, partial(self._fs.sync_all, datadir.topics_dir))
        try:
            for call in calls:
                await self._offload.run(Pool.FILES, partial(self._rename_temporaries, call, sync=sync_each))
            if not sync_each:
                await self._offload.run(Pool.FILES, partial(self._fs.sync_all, datadir.topics_dir))
        except OSError as error:
            self._went_on_to(manifests)
            raise UncertainManifests(error.errno, error.strerror or str(error)) from error
        self._outdated.update(self._went_on_to(manifests))
        self._durable.update(one.topic_id for one in manifests)
        if remove_outdated:
            await self.remove_outdated(one.topic_id for one in manifests)

    def _went_on_to(self, manifests: Iterable[ManifestWrite]) -> list[int]:
        """Note the generations of these manifests. Return the ids of the topics whose generation has changed."""
        later = [one for one in manifests if one.generation != self.generation(one.topic_id)]
        self._generations.update((one.topic_id, one.generation) for one in later)
        return [one.topic_id for one in later]

    async def remove_outdated(self, topic_ids: Iterable[int]) -> None:
        """Remove the manifests of lower generations of these topics. None of them may have an uncertain manifest."""
        outdated = [topic_id for topic_id in topic_ids if topic_id in self._outdated]
        self._outdated.difference_update(outdated)
        for at in range(0, len(outdated), MANIFESTS_PER_CALL):
            call = outdated[at : at + MANIFESTS_PER_CALL]
            await self._offload.run(Pool.FILES, partial(self._remove_outdated, call))

    async def supersede(self, topic_id: int, part: bytes | None) -> bytes | None:
        """Make sure that no recovery chooses an uncertain manifest: from now on it finds `part`, the last certain one,
        under the next generation. Return that part as it is on disk.

        Without a part, and if no manifest was ever durable, nothing in the directory counts, and the directory's own
        name is uncertain too: it is removed. Raises OSError, and everything is as uncertain as before.
        """
        if part is None or topic_id not in self._durable:
            await self._offload.run(Pool.FILES, partial(self._hot.delete_topic, topic_id))
            self.forget(topic_id)
            return part
        # A new generation each time: a sync that failed may have lost the name for good.
        self._generations[topic_id] = generation = self.generation(topic_id) + 1
        self._outdated.add(topic_id)
        decoded = decode_part(part)
        decoded.generation = generation
        again = encode_part(decoded)
        path = self._datadir.manifest_path(topic_id, generation)
        await self._offload.run(Pool.FILES, partial(write_atomic, self._fs, path, encode_manifest(again)))
        return again

    def _write_temporaries(self, manifests: Sequence[ManifestWrite], *, sync: bool) -> None:
        """Runs in a worker thread."""
        for one in manifests:
            self._fs.mkdir(self._datadir.topic_dir(one.topic_id))
            path = self._datadir.manifest_path(one.topic_id, one.generation)
            with self._fs.open(path + TEMPORARY_SUFFIX, create=True) as handle:
                handle.truncate(0)
                write_all(handle, encode_manifest(one.part), 0)
                if sync:
                    handle.fdatasync()

    def _rename_temporaries(self, manifests: Sequence[ManifestWrite], *, sync: bool) -> None:
        """Runs in a worker thread."""
        for one in manifests:
            path = self._datadir.manifest_path(one.topic_id, one.generation)
            self._fs.rename(path + TEMPORARY_SUFFIX, path)
        if sync:
            for one in manifests:
                self._fs.sync_dir(self._datadir.topic_dir(one.topic_id))
            if manifests:
                self._fs.sync_dir(self._datadir.topics_dir)

    def _remove_outdated(self, topic_ids: Sequence[int]) -> None:
        """Runs in a worker thread. Files that cannot be removed now have no effect."""
        for topic_id in topic_ids:
            directory = self._datadir.topic_dir(topic_id)
            try:
                for name in self._fs.listdir(directory):
                    found = parse_manifest_name(name.removesuffix(TEMPORARY_SUFFIX))
                    if found is not None and found < self.generation(topic_id):
                        self._fs.unlink(join(directory, name))
            except OSError:
                self._outdated.add(topic_id)


def newest_generation(names: Iterable[str]) -> int | None:
    """Return the highest generation among the names in a topic's directory; None if there is no manifest."""
    return max((found for name in names if (found := parse_manifest_name(name)) is not None), default=None)


def read_manifest(fs: Fs, datadir: DataDir, topic_id: int) -> tuple[str, bytes]:
    """Return path and content of the manifest that counts, also while the daemon replaces it. Raises FileNotFoundError
    if there is none, and OSError."""
    directory = datadir.topic_dir(topic_id)
    for _ in range(TRIES):
        generation = newest_generation(fs.listdir(directory))
        if generation is None:
            break
        path = join(directory, manifest_name(generation))
        try:
            return path, fs.read(path)
        except FileNotFoundError:
            continue  # replaced by a later one meanwhile, or the topic is gone
    raise FileNotFoundError(2, "there is no manifest", join(directory, manifest_name(0)))
