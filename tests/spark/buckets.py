"""Buckets for the reader of buckets: with a base made from the files of a daemon or of an engine, in a directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.bucket.small_bucket import SmallBucket
from topics.bucket.base_format import BaseBody, BaseHead, PackBuilder, encode_base
from topics.bucket.object_names import FORMAT, PackName, base_name, pack_name
from topics.bucket.object_store import ObjectStore
from topics.bucket.ownership.owner_format import BucketFormat, encode_format
from topics.storage.files.datadir import DataDir, parse_segment_file
from topics.storage.files.fs import OsFs
from topics.storage.offline.stored_topics import TopicDirectory
from topics.storage.snapshots.snapshot import decode_manifest, decode_part, load_newest

BASE = 7
WALL_MS = 1_700_000_000_000


class BucketOfFiles(SmallBucket):
    """A bucket of which the bases are as of the last checkpoint of a directory, without rounds."""

    def put_base(self, data: Path, cold: Path | None = None, *, number: int = BASE, wall_ms: int = WALL_MS) -> None:
        if FORMAT not in self.objects.objects:
            self.objects.put_new(FORMAT, encode_format(BucketFormat(bucket=1, id=self.id)))
        fs = OsFs()
        snapshot, damaged = load_newest(fs, DataDir(str(data)))
        assert snapshot is not None
        assert not damaged
        found = TopicDirectory.found(fs, str(data), str(cold) if cold is not None else None).topics(fs, lambda _: True)
        deleted = {(one.id, part.first): set(part.deleted) for one in found.values() for part in one.segments}
        pack = PackBuilder(PackName(self.epoch, self.packs))
        self.packs += 1
        ends = {part.id: list(part.end) for part in map(decode_part, snapshot.topics)}
        pages = self._pages(pack, snapshot, _contents(data, cold, ends), deleted)
        head = BaseHead(
            bucket=self.id,
            epoch=self.epoch,
            number=number,
            first_round=number,
            wall_ms=wall_ms,
            shards=1,
            body_bytes=0,
        )
        self.objects.put_new(pack_name(pack.name), pack.finished())
        self.objects.put_new(base_name(number), encode_base(head, BaseBody(snapshot={}, files=[], pages=pages)))


def _contents(data: Path, cold: Path | None, ends: dict[int, list[int]]) -> dict[str, bytes]:
    """The files of segments, and the manifests that are not older than the part in the snapshot."""
    found: dict[str, bytes] = {}
    for root, front in ((data, ""), (cold, "cold:")):
        for file in sorted((root / "topics").rglob("*")) if root is not None else ():
            if not file.is_file():
                continue
            name, content = f"{front}topics/{file.relative_to(root / 'topics')}", file.read_bytes()  # type: ignore[operator]
            if parse_segment_file(file.name) is not None:
                found[name] = content
            elif not front:
                manifest = decode_manifest(content)
                if list(manifest.end) >= ends.get(manifest.id, [0, 0]):
                    found[name] = content
    return found


def put_all(objects: Mapping[str, bytes], target: ObjectStore) -> None:
    """Put all objects into a store."""
    for name, content in sorted(objects.items()):
        target.put_new(name, content)


def directory_of(objects: Mapping[str, bytes], root: Path) -> str:
    """Write all objects to a directory, as files are in it, and return its URL."""
    for name, content in objects.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return f"file://{root}"
