"""`topics inspect DIR` (`docs/spec/storage.md`).

Responsible for options, progress and output; the facts are `topics.storage.offline.inspect`'s. Nothing is ever written.
Results go to stdout, progress and refusals to stderr.

Exit codes: 0; 2 for a command line or a directory that is refused; with `--diverged` 1 if not all could be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from topics.cli.app import CommandOptions, examples
from topics.cli.failures import UsageRefusal
from topics.cli.offline.directory_look import directory_options, open_directory, quiet, shown_progress, times
from topics.cli.offline.divergence_report import show_diverged
from topics.cli.output import moment, print_json, print_line, print_ndjson, printable, size

if TYPE_CHECKING:
    from topics.storage.files.fs import Fs
    from topics.storage.offline.directory_facts import DirectoryFacts, ShardFacts, TopicFacts
    from topics.storage.offline.frame_dump import FrameFacts

HOLES_SHOWN: Final = 20


@click.command(
    epilog=examples(
        "topics inspect /var/lib/topics",
        "topics inspect /var/lib/topics --topic orders --in-use",
        "topics inspect /var/lib/topics --frames --limit 100 --json",
        "topics inspect --diverged /var/lib/topics/diverged-3",
        "topics inspect --diverged /data/diverged-3 --records --topic orders | topics append orders --records",
    )
)
@directory_options
@click.option("--frames", is_flag=True, help="Dump the frames of the WAL and of segments, one per line.")
@click.option(
    "--diverged",
    is_flag=True,
    help="DIR was set aside after a takeover: show what is in its log and was not carried over.",
)
@click.option(
    "--records",
    is_flag=True,
    help="With --diverged: the records themselves, one JSON a line, as `topics append --records` takes them.",
)
@click.option("--topic", metavar="NAME", help="This topic only; also lists its segments.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Dump at most N frames or records.")
@click.pass_obj
def inspect(
    options: CommandOptions,
    directory: str,
    cold_dir: str | None,
    in_use: bool,
    frames: bool,
    diverged: bool,
    records: bool,
    topic: str | None,
    limit: int | None,
) -> None:
    """Show what is in a data directory: topics, segments per tier, WAL files, frames by type, floors, holes. Changes
    nothing.

    With --diverged exit code 1 if not all of the log could be read.
    """
    from topics.storage.files.datadir import DataDirError  # noqa: PLC0415
    from topics.storage.offline.inspect import Inspection  # noqa: PLC0415

    if records and not diverged:
        raise click.UsageError("--records needs --diverged.")
    if diverged and frames:
        raise click.UsageError("--diverged and --frames exclude each other.")
    if diverged:
        show_diverged(options, directory, cold_dir, in_use=in_use, topic=topic, records=records, limit=limit)
        return
    fs = open_directory(directory, in_use=in_use)
    inspection = Inspection(fs, directory, cold_dir)
    try:
        with quiet(), shown_progress(inspection.progress, "inspect"):
            if frames:
                for line in islice(inspection.frames(topic), limit):
                    if options.as_json:
                        print_ndjson(line)
                    else:
                        print_line(printable(_frame_line(line, directory)))
                return
            facts = inspection.facts(in_use=fs.lock_holder(f"{directory}/LOCK") is not None)
    except DataDirError as error:
        raise UsageRefusal(str(error)) from None
    facts = replace(facts, bucket=_bucket_note(fs, directory))
    if options.as_json:
        print_json(facts)
        return
    for text in _page(facts, topic):
        print_line(text)


# ----------------------------------------------------------------- what is printed


def _page(facts: DirectoryFacts, topic: str | None) -> Iterator[str]:
    formats = ", ".join(f"{name} {number}" for name, number in facts.format.items())
    yield f"{facts.root}: {formats}{'' if facts.holder is None else f'; in use by {facts.holder}'}"
    if facts.cold is not None:
        yield f"cold: {facts.cold}"
    if facts.bucket is not None:
        yield _bucket_line(facts.bucket)
    if facts.refused is not None:
        yield f"topics are as of their last checkpoint: {facts.refused}"
    yield "\nsnapshots"
    for snapshot in facts.snapshots:
        about = f"{snapshot.topics} topics, {size(snapshot.bytes)}, {moment(snapshot.clock)}"
        places = (snapshot.positions or {}).items()
        begins = "; ".join(f"shard {shard} from {at[0]}+{at[1]}" for shard, at in sorted(places))
        yield f"  {snapshot.number}  {snapshot.problem or f'{about}; {begins}'}"
    yield "\nwal"
    for shard in facts.shards:
        yield from _shard_lines(shard)
    yield f"\ntopics ({len(facts.topics)})"
    for one in facts.topics:
        if topic in (None, one.name):
            yield from _topic_lines(one, segments=topic is not None)


def _bucket_note(fs: Fs, directory: str) -> dict[str, Any] | None:
    """Return the directory's note about its bucket, without the places of the files of the log."""
    from topics.bucket.local_note import BadNote, read_note  # noqa: PLC0415
    from topics.storage.files.datadir import DataDir  # noqa: PLC0415

    try:
        note = read_note(fs, DataDir(directory))
    except (BadNote, OSError) as error:
        return {"problem": str(error)}
    if note is None:
        return None
    return {
        "bucket": note.bucket,
        "directory": note.dir,
        "epoch": note.epoch,
        "round": note.round,
        "wall_ms": note.wall_ms,
        "history": note.history,
        "positions": note.positions,
    }


def _bucket_line(note: dict[str, Any]) -> str:
    if "problem" in note:
        return f"bucket: meta/bucket cannot be read: {note['problem']}"
    begins = "" if note["positions"] is not None else "; a history is to begin"
    if not note["bucket"]:
        return f"bucket: none has been taken yet{begins}"
    at = f", {moment(note['wall_ms'])}" if note["wall_ms"] else ""
    return f"bucket: {note['bucket']}, epoch {note['epoch']}, round {note['round']}{at} or a later one{begins}"


def _shard_lines(shard: ShardFacts) -> Iterator[str]:
    used, total = sum(file.used for file in shard.files), sum(file.bytes for file in shard.files)
    types: Counter[str] = Counter()
    for file in shard.files:
        types.update(file.types)
    yield f"  shard {shard.shard}  {times(len(shard.files), 'file', 'files')}, {size(used)} of {size(total)} used"
    yield f"    frames: {', '.join(f'{name} {n:,}' for name, n in types.most_common()) or 'none'}"
    for file in shard.files:
        span = f"{moment(file.first_ts)} to {moment(file.last_ts)}" if file.frames else ""
        name = file.path.rpartition("/")[2]
        yield f"    {name}  {size(file.used)} of {size(file.bytes)}  {file.frames:,} frames  {file.end}  {span}"


def _topic_lines(topic: TopicFacts, *, segments: bool) -> Iterator[str]:
    yield f"  {topic.name}  id {topic.id}, shard {topic.shard}, {topic.type}, {topic.durability}"
    floors = f"earliest {topic.earliest_seq}, evict floor {topic.evict_floor}"
    ceiling = f", ceiling {topic.ceiling}" if topic.ceiling != topic.head_seq else ""
    yield f"    head {topic.head_seq}{ceiling}, {floors}; {topic.count:,} live, {size(topic.bytes)}"
    tiers = []
    for tier in ("hot", "cold", "gone"):
        found = [segment for segment in topic.segments if segment.tier == tier]
        if found:
            total, stored = sum(one.bytes for one in found), sum(one.stored_bytes for one in found)
            packed = f", {size(stored)} packed" if stored != total else ""
            held = f", {size(total)}{packed}" if tier != "gone" else ""
            tiers.append(f"{times(len(found), 'segment', 'segments')} {tier}{held}")
    if topic.unstored:
        tiers.append(f"{topic.unstored:,} records in the WAL only")
    if tiers:
        yield f"    {'; '.join(tiers)}"
    if topic.derived:
        yield f"    {topic.derived:,} of them copies of frames of other topics"
    if topic.queue is not None:
        jobs = f"{topic.queue.ready:,} ready, {topic.queue.leased:,} leased, {topic.queue.delayed:,} delayed"
        yield f"    jobs: {jobs}, {topic.queue.parked:,} parked; {topic.queue.dead_lettered:,} dead-lettered so far"
    for group in topic.groups:
        jobs = f"{group.queue.ready:,} ready, {group.queue.leased:,} leased, {group.queue.delayed:,} delayed"
        more = f"{group.queue.parked:,} parked; {group.queue.dead_lettered:,} dead-lettered, {group.missed:,} missed"
        yield f"    group {group.name}: floor {group.floor}, {group.runs:,} runs above it; {jobs}, {more}"
    if topic.evidence is not None:
        tree = topic.evidence
        in_files = f", {tree.stored:,} of them in files" if tree.stored != tree.leaves else ""
        yield f"    evidence: tree {tree.tree} from seq {tree.start_seq}, {tree.leaves:,} leaves{in_files}"
    for name, token in sorted(topic.fences.items()):
        yield f"    fence {printable(name)}: {token}"
    for router in topic.routers:
        source = router.source or f"topic {router.source_id}"
        yield f"    router {router.name} from {source}: cursor {router.cursor}, {router.copies:,} copies"
    if topic.holes:
        holes = [f"{hole.first} to {hole.last} {hole.reason}" for hole in topic.holes[:HOLES_SHOWN]]
        more = f" and {len(topic.holes) - HOLES_SHOWN} more" if len(topic.holes) > HOLES_SHOWN else ""
        yield f"    holes: {', '.join(holes)}{more}"
    for segment in topic.segments if segments else ():
        live = "to be removed" if segment.live is None else f"{segment.live:,} live"
        state = f"{segment.tier}, {'sealed' if segment.sealed else 'active'}"
        packed = f", {size(segment.stored_bytes)} packed" if segment.stored_bytes != segment.bytes else ""
        counts = f"{segment.records:,} records, {live}, {size(segment.bytes)}{packed}"
        yield f"    {segment.first_seq} to {segment.last_seq}  {state}  {counts}  {moment(segment.opened_ms)}"


def _frame_line(frame: FrameFacts, root: str) -> str:
    """`wal/shard-00/wal-….log+123  #4  Append  orders  seq 5  …`; what a frame does not have is left out."""
    parts = [f"{frame.path.removeprefix(root.rstrip('/') + '/')}+{frame.offset}"]
    if frame.number is not None:
        parts.append(f"#{frame.number}")
    parts.append(frame.type)
    if frame.topic_id:
        parts.append(frame.topic or f"topic {frame.topic_id}")
    if frame.seq:
        parts.append(f"seq {frame.seq}")
    if frame.ts:
        parts.append(moment(frame.ts))
    parts.append(f"{frame.bytes} bytes")
    if frame.flags:
        parts.append(",".join(frame.flags))
    parts += [f"{name}={value}" for name, value in (("node", frame.node), ("tag", frame.tag)) if value]
    if frame.payload:
        parts.append(frame.payload)
    return "  ".join(parts)
