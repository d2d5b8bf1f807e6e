"""The machines that seeds are taken from: the real engine has written their files on a simulated disk.

Responsible for two lives with everything in them that can be logged and stored, and for directories made around a file
that may be anything. Each life is lived once for a run, and nobody changes what it left. Nothing on those disks is
pending any more, so copying one takes about a ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from tests.fuzz.framing import header_of
from tests.simulation.disk import SimFs
from tests.simulation.wal_content import scan_of
from tests.simulation.world import COLD, ROOT, Life, World, settings
from topics.http.requests.append_requests import decode_append
from topics.job_model import (
    ClaimRequest,
    HeldRequest,
    Job,
    NackTerms,
)
from topics.log.tag_match import parse_match
from topics.model import Performance, RouterPatch, TopicConfigPatch
from topics.storage.files.datadir import DataDir, open_data_dir, wal_path
from topics.storage.files.file_header import FILE_HEADER_BYTES, encode_file_header
from topics.storage.wal.frames import Frame
from topics.storage.wal.wal_head import TAIL_BYTES

LOGGED: Final = settings(wal_file_bytes=1 << 20, min_free_bytes=0, cold_dir=Path(COLD))
"""All that a life writes is in one file of the log."""
STORED: Final = settings(
    wal_file_bytes=8 << 10,
    segment_max_events=8,
    segment_max_bytes=2048,
    segment_max_age_ms=0,
    hot_retain_segments=2,
    cold_dir=Path(COLD),
    min_free_bytes=0,
)
"""A dozen records fill a segment."""

DIRECTORY: Final = DataDir(ROOT)


class Hand:
    """Requests to an engine, as short as they are written here."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.engine = life.engine

    async def put(self, name: str, **config: Any) -> None:
        """Create or configure a topic."""
        await self.engine.topic_lifecycle.put(name, TopicConfigPatch(**config))

    async def append(self, name: str, *records: Mapping[str, Any], **rest: Any) -> None:
        """Append records."""
        body = msgspec.json.encode({"records": records, **rest})
        request = decode_append(body, self.engine.settings)
        await self.engine.appends.append(name, request, Performance())

    async def some(self, name: str, count: int, **fields: Any) -> None:
        """Append records one after the other: with a tag, a node, a meta, in turn."""
        for i in range(count):
            record: dict[str, Any] = {"data": {"n": i, "text": "é" * (i % 5)}, **fields}
            if i % 2:
                record["tag"] = f"tag{i % 3}"
            if i % 3 == 1:
                record["node"] = "writer"
            if i % 4 == 2:
                record["meta"] = {"k": "v" * i}
            await self.append(name, record)

    async def router(self, name: str, source: str, dest: str, **fields: Any) -> None:
        """Create a router."""
        await self.engine.routers.put(name, RouterPatch(source=source, dest=dest, **fields))

    async def stage(self, topic: str, stage: str, key: str, *records: Mapping[str, Any]) -> None:
        """Append to a stage."""
        body = msgspec.json.encode({"records": records, "idempotency_key": key})
        await self.engine.stages.append(topic, stage, decode_append(body, self.engine.settings), Performance())

    async def claim(self, name: str, most: int, lease_ms: int | None = None) -> list[Job]:
        """Claim jobs."""
        request = ClaimRequest(node="worker", most=most, lease_ms=lease_ms, wait_ms=0)
        return (await self.engine.queues.claim(name, request, Performance())).jobs


def _held(jobs: Sequence[Job]) -> HeldRequest:
    return HeldRequest(node="worker", seqs=[job.seq for job in jobs], lease_ids=None)


async def _everything(life: Life) -> None:
    """Do every operation that writes a type of frames of its own."""
    hand, engine = Hand(life), life.engine
    for name in ("ephemeral", "memory", "disk", "fsync"):
        await hand.put(name, durability=name)
        await hand.some(name, 6)
    await hand.append("fsync", {"data": 1}, {"data": 2, "tag": "b"}, {"data": 3, "node": "n"}, idempotency_key="key/1")
    await engine.deletions.delete_records("fsync", 3, None, Performance())
    await engine.deletions.delete_records("fsync", None, parse_match(["tag", "Glob", "tag*"]), Performance())
    await hand.put("capped", durability="disk", cap_records=3)
    await hand.some("capped", 6)
    await hand.router("copying", "fsync", "copies", guarantee="exactly_once", start="earliest")
    await hand.router("filtering", "disk", "memory", filter=["tag", "Glob", "tag*"], preserve_node=False)
    await hand.some("fsync", 3)
    await hand.some("disk", 3)
    await trio.sleep(0.2)
    await hand.stage("fsync", "part-1", "q/1/1", {"data": "a"}, {"data": "b", "tag": "t"})
    await hand.stage("fsync", "part-2", "q/1/2", {"data": "c"})
    await engine.stage_commits.commit("fsync", ["part-1", "part-2"], "q/1", Performance())
    await hand.stage("disk", "left", "q/2/1", {"data": "open"})
    await _work(hand)
    await hand.put("ephemeral", durability="disk")
    await hand.some("ephemeral", 2)
    await engine.routers.delete("filtering")
    await engine.topic_lifecycle.delete("capped", if_empty=False)
    await trio.sleep(0.2)


async def _work(hand: Hand) -> None:
    """Jobs in every state, and one that is moved to a dead-letter topic."""
    engine = hand.engine
    await hand.put("jobs", type="queue", durability="fsync", max_deliveries=2, dead_letter="dead", lease_ms=60_000)
    await hand.some("jobs", 10)
    jobs = await hand.claim("jobs", 6)
    await engine.queues.ack("jobs", _held(jobs[:2]), Performance())
    await engine.queues.nack("jobs", _held(jobs[2:3]), NackTerms(60_000), Performance())
    await engine.queues.extend("jobs", _held(jobs[3:4]), 90_000, Performance())
    await engine.queues.nack("jobs", _held(jobs[4:6]), NackTerms(0), Performance())
    again = await hand.claim("jobs", 2)
    await engine.queues.nack("jobs", _held(again), NackTerms(0), Performance())
    await trio.sleep(0.2)


async def _stored(life: Life) -> None:
    """The same, and what checkpoints make of it, two times, with more in between."""
    hand, engine = Hand(life), life.engine
    await _everything(life)
    for _ in range(2):
        await engine.compactor.checkpoint()
        await engine.reclaimer.pass_over()
        await engine.relocator.pass_over()
        for name in ("memory", "disk", "fsync", "copies", "jobs"):
            await hand.some(name, 9)
        await engine.deletions.delete_records("disk", None, parse_match(["tag", "Eq", "tag1"]), Performance())
    await engine.compactor.checkpoint()
    await hand.some("disk", 2)


@cache
def logged() -> SimFs:
    """The disk of a daemon that was killed before its first checkpoint."""
    world = World(config=LOGGED)
    assert world.live(_everything, end="kill")
    return world.fs.after_machine_crash("keep", 0)


@cache
def stored() -> SimFs:
    """The disk of a daemon that was killed after several."""
    world = World(config=STORED)
    assert world.live(_stored, end="kill")
    return world.fs.after_machine_crash("keep", 0)


@cache
def reopened() -> SimFs:
    """The disk of the first one after the machine went down, and another start: holes are in its log."""
    world = World(config=LOGGED, fs=logged()).after("tear", 3)

    async def go_on(life: Life) -> None:
        await Hand(life).some("memory", 2)

    assert world.live(go_on, end="kill")
    return world.fs.after_machine_crash("keep", 0)


@cache
def stopped() -> SimFs:
    """The disk of a daemon that was stopped."""
    world = World(config=STORED)
    assert world.live(_stored)
    return world.fs.after_machine_crash("keep", 0)


def contents(fs: SimFs, ending: str, *, within: str = "") -> list[bytes]:
    """The files with this end of their names, in the order of their paths."""
    return [data for path, data in fs.tree().items() if data is not None and path.endswith(ending) and within in path]


@cache
def logs() -> list[bytes]:
    """What the log of each machine holds, file by file, without what was preallocated."""
    found = []
    for fs in (logged(), reopened(), stored(), stopped()):
        for content in contents(fs, ".log"):
            stop = scan_of(content).stop
            found.append(content[:stop])
    return [content for content in found if content]


def frames_of(log: bytes) -> list[Frame]:
    """The frames of a log, up to the first bad one; of an unknown type there is none that we have written."""
    return scan_of(log).frames


def directory_around(log: bytes) -> SimFs:
    """A directory whose only file of the log is this. A header that holds is made that of the file's name, and what was
    preallocated is behind the bytes."""
    fs = SimFs()
    open_data_dir(fs, ROOT)
    header = header_of(log)
    if header is not None:
        log = encode_file_header(header.salt, 0) + log[FILE_HEADER_BYTES:] + bytes(2 * TAIL_BYTES)
    put(fs, wal_path(DIRECTORY.wal_dir, 0), log)
    return fs


def put(fs: SimFs, path: str, content: bytes) -> None:
    """Make this the durable content of a file."""
    handle = fs.open(path, create=True)
    handle.truncate(0)
    handle.pwrite(content, 0)
    handle.fdatasync()
    handle.close()
    fs.sync_dir(str(Path(path).parent))
