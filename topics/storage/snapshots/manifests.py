"""Which topics have a manifest of their own, which of several counts, and writing them.

A manifest says how the files beside it are to be read, so a topic has one from its first segment on and for as long as
it has a directory. A topic without a directory has no manifest: its part stands in the snapshot, and what came after
that in the log. So a directory of a hundred thousand topics without a record costs a checkpoint and a start no call of
the file system for each of them. The directories are listed once, by recovery; from then on this module knows who has
made one.

*Generations.* A manifest is `topic.cbor`, and each checkpoint replaces it by a rename. If renaming or syncing fails,
nobody knows which of the two a crash leaves. Files that the doubtful one names must not be written again as long as a
recovery may choose it. So the topic's next manifests have another name, of the next generation: recovery takes the
highest one that is there, whatever it holds. The first thing under the new name is the manifest from before the
doubtful one (`supersede`); when that is durable, the doubtful one counts for nobody, and the topic goes on as if the
attempt had failed before the rename. Parts say the generation, so that a start that does not look at a directory knows
where to write. Files of lower generations are removed behind the next manifest, or with the first checkpoint of a life.

A manifest that a hold names is not replaced either: the topic's next one is of the next generation, and what is lower
stays until the hold is over (`named_files`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from topics.runtime.offload import Kind, Offload
from topics.storage.files.datadir import DataDir, manifest_name, parse_manifest_name
from topics.storage.files.fs import TEMPORARY_SUFFIX, Fs, join, write_all, write_atomic
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.snapshots.snapshot import decode_part, encode_manifest, encode_part

FEW_FILES: Final = 8
"""Up to so many files are synced one by one; more by one sync of the file system."""

MANIFESTS_PER_CALL: Final = 64

TRIES: Final = 10
"""Looks at a directory in which manifests are replaced meanwhile."""


class ManifestWrite(NamedTuple):
    """The manifest that one topic is to have."""

    topic_id: int
    part: bytes
    generation: int
    """That which the part says: `Manifests.following`."""


class UncertainManifests(OSError):
    """Renaming or syncing manifests has failed: each of them is on disk or not."""


class Manifests:
    """See the module. One writer at a time for each topic (its `upkeep` lock)."""

    def __init__(self, fs: Fs, datadir: DataDir, offload: Offload, hot: SegmentStore) -> None:
        self._fs = fs
        self._datadir = datadir
        self._offload = offload
        self._hot = hot
        self._directories: set[int] = set()
        self._durable: set[int] = set()
        """Those of them that have a manifest on disk, or may have one from an earlier life."""
        self._generations: dict[int, int] = {}
        """By topic id, where it is not 0."""
        self._outdated: set[int] = set()
        """Topics that may have files of lower generations."""

    def adopt(self, directories: Iterable[int], generations: Mapping[int, int]) -> None:
        """These topics have a directory, and no others; these have manifests of a generation above 0."""
        self._directories = set(directories)
        self._durable = set(directories)
        self._generations = dict(generations)
        self._outdated = set(generations)

    def __contains__(self, topic_id: int) -> bool:
        """Whether a topic has a manifest, or a directory that may hold one."""
        return topic_id in self._directories

    def generation(self, topic_id: int) -> int:
        """Of the manifest that a topic has; of the doubtful one, if there is one; 0 if it has none."""
        return self._generations.get(topic_id, 0)

    def following(self, topic_id: int, named: Mapping[int, int]) -> int:
        """The generation of a topic's next manifest: another one than a hold has `named` (by topic id)."""
        return max(self.generation(topic_id), named.get(topic_id, -1) + 1)

    def path(self, topic_id: int) -> str:
        """Of the manifest that a topic has. As `generation`."""
        return self._datadir.manifest_path(topic_id, self.generation(topic_id))

    @property
    def outdated(self) -> set[int]:
        """The ids of topics that may have files of lower generations."""
        return set(self._outdated)

    def forget(self, topic_id: int) -> None:
        """The topic's directory is gone."""
        self._directories.discard(topic_id)
        self._durable.discard(topic_id)
        self._generations.pop(topic_id, None)
        self._outdated.discard(topic_id)

    async def write(self, manifests: Sequence[ManifestWrite], *, remove_outdated: bool = True) -> None:
        """Each topic's manifest, atomically; all are durable when it returns. `remove_outdated=False` leaves those of
        lower generations there, as a hold may name them.

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
            self._went_on_to(manifests)
            raise UncertainManifests(error.errno, error.strerror or str(error)) from error
        self._outdated.update(self._went_on_to(manifests))
        self._durable.update(one.topic_id for one in manifests)
        if remove_outdated:
            await self.remove_outdated(one.topic_id for one in manifests)

    def _went_on_to(self, manifests: Iterable[ManifestWrite]) -> list[int]:
        """Note the generations of these manifests. Returns the ids of the topics that had another one before."""
        later = [one for one in manifests if one.generation != self.generation(one.topic_id)]
        self._generations.update((one.topic_id, one.generation) for one in later)
        return [one.topic_id for one in later]

    async def remove_outdated(self, topic_ids: Iterable[int]) -> None:
        """Remove what these topics have of lower generations. None of them has a doubtful manifest."""
        outdated = [topic_id for topic_id in topic_ids if topic_id in self._outdated]
        self._outdated.difference_update(outdated)
        for at in range(0, len(outdated), MANIFESTS_PER_CALL):
            call = outdated[at : at + MANIFESTS_PER_CALL]
            await self._offload.run(Kind.FILES, partial(self._remove_outdated, call))

    async def supersede(self, topic_id: int, part: bytes | None) -> bytes | None:
        """Make sure that no recovery believes the manifest of which nobody knows whether it is on disk: from now on it
        finds `part`, the one from before, under the next generation. Returns that part as it is on disk.

        Without a part, and where no manifest has ever been durable, nothing in the directory counts, and whether the
        disk knows the directory's own name is as doubtful: it goes. Raises OSError, and all is as doubtful as before.
        """
        if part is None or topic_id not in self._durable:
            await self._offload.run(Kind.FILES, partial(self._hot.delete_topic, topic_id))
            self.forget(topic_id)
            return part
        # Never the same one twice: a sync that failed may have lost the name for good.
        self._generations[topic_id] = generation = self.generation(topic_id) + 1
        self._outdated.add(topic_id)
        decoded = decode_part(part)
        decoded.generation = generation
        again = encode_part(decoded)
        path = self._datadir.manifest_path(topic_id, generation)
        await self._offload.run(Kind.FILES, partial(write_atomic, self._fs, path, encode_manifest(again)))
        return again

    def _write_temporaries(self, manifests: Sequence[ManifestWrite], *, sync: bool) -> None:
        """In a worker thread."""
        for one in manifests:
            self._fs.mkdir(self._datadir.topic_dir(one.topic_id))
            path = self._datadir.manifest_path(one.topic_id, one.generation)
            handle = self._fs.open(path + TEMPORARY_SUFFIX, create=True)
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
            path = self._datadir.manifest_path(one.topic_id, one.generation)
            self._fs.rename(path + TEMPORARY_SUFFIX, path)
        if sync:
            for one in manifests:
                self._fs.sync_dir(self._datadir.topic_dir(one.topic_id))
            if manifests:
                self._fs.sync_dir(self._datadir.topics_dir)

    def _remove_outdated(self, topic_ids: Sequence[int]) -> None:
        """In a worker thread. What stays, as it cannot be removed now, counts for nobody."""
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
    """The highest generation among the names in a topic's directory; None if there is no manifest."""
    return max((found for name in names if (found := parse_manifest_name(name)) is not None), default=None)


def read_manifest(fs: Fs, datadir: DataDir, topic_id: int) -> tuple[str, bytes]:
    """Path and content of the manifest that counts, also while the daemon replaces it. Raises FileNotFoundError if
    there is none, OSError."""
    directory = datadir.topic_dir(topic_id)
    for _ in range(TRIES):
        generation = newest_generation(fs.listdir(directory))
        if generation is None:
            break
        path = join(directory, manifest_name(generation))
        try:
            return path, fs.read(path)
        except FileNotFoundError:
            continue  # a later one is there by now, or the topic is gone
    raise FileNotFoundError(2, "there is no manifest", join(directory, manifest_name(0)))
