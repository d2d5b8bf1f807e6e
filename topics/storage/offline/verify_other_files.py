"""Verifies files that belong neither to a log nor to a topic: identities, the small files of `meta/`, files that were
kept aside, and unknown names."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from topics.storage.files.datadir import DIVERGED, DataDir, discover_shards, parse_snapshot_name, parse_wal_name
from topics.storage.files.fs import TEMPORARY_SUFFIX, Fs, join
from topics.storage.offline.findings import Finding
from topics.storage.offline.topic_parts import load_part
from topics.storage.offline.verify_identities import verify_identities
from topics.storage.recovery.restored_copy import MARK
from topics.storage.snapshots.clock_mark import decode_mark
from topics.storage.snapshots.snapshot import SnapshotDamaged, decode_part, decode_snapshot


def other_files(fs: Fs, datadir: DataDir, cold: DataDir | None) -> Iterator[Finding]:
    """Yield the problems of these files. `cold` is the cold directory. Blocking."""
    yield from verify_identities(fs, datadir.root, cold.root if cold is not None else None)
    known = {"FORMAT", "IDENTITY", "LOCK", "meta", "wal", "topics", MARK}  # the mark of a copy is no problem
    for name in fs.listdir(datadir.root):
        if name.startswith(DIVERGED):
            problem = "what the directory was before another daemon took over (topics inspect --diverged)"
            yield Finding(join(datadir.root, name), None, problem, "note")
        elif name not in known and not name.endswith(TEMPORARY_SUFFIX):
            yield Finding(join(datadir.root, name), None, "an unknown name", "note")
    yield from _in_meta(fs, datadir)
    yield from _beside_logs(fs, datadir)


def _in_meta(fs: Fs, datadir: DataDir) -> Iterator[Finding]:
    for name in fs.listdir(datadir.meta_dir):
        if name.startswith("failed-shard-"):
            yield Finding(join(datadir.meta_dir, name), None, "a shard failed in the last run", "note")
        elif name == posixpath.basename(datadir.clock_path):
            yield from _clock_mark(fs, datadir)
        elif name == "witness":
            continue  # an unreadable witness proves nothing, which is safe
        elif join(datadir.meta_dir, name) == datadir.evidence_key_path:
            continue  # an unreadable key refuses checkpoints, and says so
        elif join(datadir.meta_dir, name) in (datadir.bucket_path, datadir.salvaged_path, datadir.standby_path):
            continue  # an unreadable note about the bucket refuses a start, or has a standby made anew
        elif join(datadir.meta_dir, name) == datadir.restore_path:
            yield Finding(datadir.restore_path, None, "a restore goes on: segments are still copied home", "note")
        elif join(datadir.meta_dir, name) == datadir.selection_path:
            yield Finding(datadir.selection_path, None, "the first start deletes topics that it does not name", "note")
        elif name.endswith(".damaged"):
            yield Finding(join(datadir.meta_dir, name), None, "was damaged, and is kept aside", "note")
        elif name == "reserve.cbor":
            yield from _reserve(fs, datadir)
        elif parse_snapshot_name(name) is None and not name.endswith(TEMPORARY_SUFFIX):
            yield Finding(join(datadir.meta_dir, name), None, "an unknown name", "note")


def _clock_mark(fs: Fs, datadir: DataDir) -> Iterator[Finding]:
    path = datadir.clock_path
    try:
        decode_mark(fs.read(path))
    except ValueError as error:
        problem = f"the note of the clock cannot be read ({error}): the next start goes by the wall clock"
        yield Finding(path, None, problem, "note")


def _reserve(fs: Fs, datadir: DataDir) -> Iterator[Finding]:
    """Check the snapshot that is used if the others cannot be read."""
    path = datadir.reserve_path
    try:
        for part in decode_snapshot(fs.read(path)).topics:
            load_part(path, decode_part(part))
    except FileNotFoundError:
        yield Finding(path, None, "is gone by now", "note")
    except SnapshotDamaged as error:
        yield Finding(path, None, str(error), "damage")


def _beside_logs(fs: Fs, datadir: DataDir) -> Iterator[Finding]:
    directories = {datadir.wal_dir, *(found.path for found in discover_shards(fs, datadir))}
    for directory in sorted(directories):
        for name in fs.listdir(directory):
            path = join(directory, name)
            if name.endswith((".cut", ".damaged", ".repaired")):
                yield Finding(path, None, "kept aside by an earlier start", "note")
            elif (
                parse_wal_name(name) is None
                and name != "CURRENT"
                and path not in directories
                and not name.endswith(TEMPORARY_SUFFIX)
            ):
                yield Finding(path, None, "an unknown name", "note")
