"""Giving back what was deleted: how much, how long it takes, and what it does to appends meanwhile."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.append import append_latencies, append_singles
from benchmarks.bench import PLAIN_DATA, Bench, Control, CountAppended, append_request, plain_record
from benchmarks.client import WrongAnswer, run_while
from benchmarks.diff import BATCH, TOPIC, fill
from benchmarks.figures import Figure, figure
from benchmarks.references import echo_reference, sync_reference

OTHER = "other"
TAGS = 10
DELETED = 6
"""Of the tags, which are spread at random: six records of ten."""

RECLAIM_MS = 500
CHECKPOINT_MS = 1000
QUIET_S = 6.0
"""The reclaimer has finished if nothing has changed for so long since it gave something back: several checkpoints and
scans. Beside appends without a pause it takes seconds to begin."""

MOST_S = 100.0


def run(bench: Bench) -> list[Figure]:
    """Figures of one topic; the appends go to another one of the same daemon."""
    records = 50_000 if bench.quick else 500_000
    bench = replace(bench, many=True)
    figures = [*sync_reference(bench), *echo_reference(bench)]
    with bench.daemon(reclaim_ms=RECLAIM_MS, checkpoint_ms=CHECKPOINT_MS) as daemon:
        control = Control(daemon.port)
        control.create(TOPIC)
        control.create(OTHER, durability="disk")
        bench.say(f"{records:,} records")
        fill(daemon.port, tagged_batches(records))
        control.checkpoint()
        state = control.state(TOPIC)
        directory = daemon.data_dir / "topics" / f"{state['epoch']:016x}"
        full, live_before = segment_bytes(directory), state["bytes"]
        request = append_request(OTHER, [plain_record(0)])
        before = bench.repeat(append_singles, bench, daemon.port, request)

        bench.say("deleting, and waiting until the reclaimer has nothing left to do")
        began = time.perf_counter()
        deleted = 0
        for tag in range(DELETED):
            deleted += control.call("POST", f"/v0/topics/{TOPIC}/delete", {"match": f"tag-{tag}"})["deleted"]
        deletion_s = time.perf_counter() - began
        watch = _Watch(directory)
        meanwhile = run_while(daemon.port, watch, request, CountAppended(1))
        reclaim_s = watch.changed_at - began
        left = segment_bytes(directory)
        state = control.state(TOPIC)
        if state["count"] != records - deleted:
            raise WrongAnswer(f"{state['count']} records are left of {records}, {deleted} were deleted")
        segments = sum(control.segments().values())
        control.close()
    mib = 1 << 20
    share = 100 * deleted / records
    figures += [
        figure(
            f"{records:,} records, of which {DELETED} tags of {TAGS} are deleted", "s", [deletion_s], key="deletion"
        ),
        figure("... share of records", "%", [share], key="share"),
        figure("segment files before it", "MiB", [full / mib], key="before"),
        figure("... times live payload bytes", "x", [full / live_before], key="times"),
        figure("segment files when the reclaimer is done", "MiB", [left / mib], key="after"),
        figure("... segments", "", [segments]),
        figure("... times live payload bytes", "x", [left / state["bytes"]], key="times"),
        # As many bytes a record as before the deletion: what is above is not given back.
        figure("... times what live records need", "x", [left / (full * (1 - share / 100))], key="need", at_most=2),
        figure(f"until the last file has shrunk (scans every {RECLAIM_MS} ms)", "s", [reclaim_s], key="reclaimed"),
        figure("... given back", "MiB/s", [(full - left) / mib / reclaim_s], key="rate"),
    ]
    for when, loads, p99 in (("before", before, 1), ("meanwhile", [meanwhile], 5)):
        figures += append_latencies(f"append, one record, one connection, disk, {when}", f"append-{when}", loads, p99)
    return figures


def tagged_batches(records: int) -> list[bytes]:
    """Appends of 1000 records to `TOPIC`, each with a tag by chance."""
    chance = random.Random(1)
    return [
        append_request(TOPIC, [f'{{"data":{PLAIN_DATA},"tag":"tag-{chance.randrange(TAGS)}"}}' for _ in range(BATCH)])
        for _ in range(records // BATCH)
    ]


def segment_bytes(directory: Path) -> int:
    """Bytes of all segment files of a topic."""
    total = 0
    for path in directory.glob("seg-*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # replaced or dropped while we looked
    return total


class _Watch:
    """Whether the reclaimer is still at work, by what the segment files look like; asked as often as one likes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._size = self._full = segment_bytes(directory)
        self._began = self._looked_at = self.changed_at = time.perf_counter()

    def __call__(self) -> bool:
        now = time.perf_counter()
        if now - self._looked_at < 0.2:
            return True
        self._looked_at = now
        size = segment_bytes(self._directory)
        if size != self._size:
            self._size, self.changed_at = size, now
        if now - self._began > MOST_S:
            raise RuntimeError(f"the reclaimer is still at work after {MOST_S:.0f} s")
        return self._size > 0.9 * self._full or now - self.changed_at < QUIET_S
