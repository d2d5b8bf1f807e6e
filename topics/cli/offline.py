"""The offline commands: `topics inspect DIR` and `topics verify DIR` (`docs/spec/storage.md`).

Responsible for options, progress and what is printed; the facts are `topics.storage.offline.inspect`'s, the findings
`topics.storage.offline.verify`'s. Nothing is ever written. Results go to stdout, progress and refusals to stderr.

Exit codes: 0, 1 if `verify` has found damage, 2 for a command line or a directory that is refused.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from topics.cli.app import Command, CommandOptions, examples, json_option
from topics.cli.failures import UsageRefusal
from topics.cli.output import moment, print_json, print_line, print_ndjson, printable, size

if TYPE_CHECKING:
    from topics.storage.files.fs import Fs
    from topics.storage.files.progress import Progress
    from topics.storage.offline.directory_facts import DirectoryFacts, ShardFacts, TopicFacts
    from topics.storage.offline.frame_dump import FrameFacts
    from topics.storage.offline.verify_trees import KeptCheckpoint

EXIT_DAMAGE: Final = 1
HOLES_SHOWN: Final = 20


def _common(command: Command) -> Command:
    """The argument and the options that both commands have."""
    for decorate in (
        json_option,
        click.option("--in-use", is_flag=True, help="Read the directory even if a daemon uses it."),
        click.option(
            "--cold-dir",
            envvar="TOPICS_COLD_DIR",
            metavar="PATH",
            type=click.Path(file_okay=False),
            help="The directory of cold segments (TOPICS_COLD_DIR).",
        ),
        click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False)),
    ):
        command = decorate(command)
    return command


@click.command(
    epilog=examples(
        "topics verify /var/lib/topics",
        "topics verify /backup/data --cold-dir /backup/cold --json",
        "topics verify /var/lib/topics --against orders.checkpoint",
    )
)
@_common
@click.option(
    "--against",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Compare a topic with evidence with a checkpoint that was kept elsewhere. Repeatable.",
)
@click.pass_obj
def verify(
    options: CommandOptions, directory: str, cold_dir: str | None, in_use: bool, against: tuple[str, ...]
) -> None:
    """Look for damage in a data directory: every checksum, indexes and tags against data, continuity, floors against
    segments, zero tails, Merkle trees. Changes nothing.

    Exit code 1 if there is damage. Notes alone are no damage: what the next start clears away, what nobody needs.
    """
    from topics.storage.offline.verify import Verification  # noqa: PLC0415

    fs = _open(directory, in_use=in_use)
    kept = [kept_checkpoint(path) for path in against]
    verification = Verification(fs, directory, cold_dir, in_use=in_use, against=kept)
    counts: Counter[str] = Counter()
    with _quiet(), shown_progress(verification.progress, "verify"):
        for finding in verification.findings():
            counts[finding.severity] += 1
            if options.as_json:
                print_ndjson(finding._asdict())
            else:
                place = finding.path if finding.offset is None else f"{finding.path} at {finding.offset}"
                print_line(printable(f"{finding.severity}: {place}: {finding.problem}"))
    if not in_use:
        _refuse_if_in_use(fs, directory, "has come into use meanwhile, so what was found says nothing")
    if options.as_json:
        print_ndjson({"damage": counts["damage"], "notes": counts["note"], "bytes": verification.progress.total})
    else:
        read = f"{verification.progress.total / 1e6:,.1f} MB read"
        print_line(
            f"{_times(counts['damage'], 'damage', 'damages')}, {_times(counts['note'], 'note', 'notes')}; {read}"
        )
    if counts["damage"]:
        sys.exit(EXIT_DAMAGE)


def kept_checkpoint(path: str) -> KeptCheckpoint:
    """Return the checkpoint in a file: a note, or what `topics evidence prove` has written. Its signature is not
    checked: whoever keeps the file knows where it is from."""
    from topics.cli.evidence_commands import read_evidence  # noqa: PLC0415
    from topics.evidence.proof_file import note_in  # noqa: PLC0415
    from topics.evidence.signed_note import BadSignedNote  # noqa: PLC0415
    from topics.storage.offline.verify_trees import KeptCheckpoint, is_about_topic  # noqa: PLC0415

    try:
        checkpoint = note_in(read_evidence(path)).checkpoint
    except (BadSignedNote, OSError) as error:
        raise UsageRefusal(f"--against {path}: {error}") from None
    if not is_about_topic(checkpoint):
        raise UsageRefusal(f"--against {path}: its origin, {checkpoint.origin[:200]!r}, is not that of a topic")
    return KeptCheckpoint(path, checkpoint)


@click.command(
    epilog=examples(
        "topics inspect /var/lib/topics",
        "topics inspect /var/lib/topics --topic orders --in-use",
        "topics inspect /var/lib/topics --frames --limit 100 --json",
    )
)
@_common
@click.option("--frames", is_flag=True, help="Dump the frames of the WAL and of segments, one per line.")
@click.option("--topic", metavar="NAME", help="This topic only; also lists its segments.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Dump at most N frames.")
@click.pass_obj
def inspect(
    options: CommandOptions,
    directory: str,
    cold_dir: str | None,
    in_use: bool,
    frames: bool,
    topic: str | None,
    limit: int | None,
) -> None:
    """Show what is in a data directory: topics, segments per tier, WAL files, frames by type, floors, holes. Changes
    nothing."""
    from topics.storage.files.datadir import DataDirError  # noqa: PLC0415
    from topics.storage.offline.inspect import Inspection  # noqa: PLC0415

    fs = _open(directory, in_use=in_use)
    inspection = Inspection(fs, directory, cold_dir)
    try:
        with _quiet(), shown_progress(inspection.progress, "inspect"):
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


# ----------------------------------------------------------------- the directory


def _open(directory: str, *, in_use: bool) -> Fs:
    """The file system, if the directory is one of ours and may be looked at; exits otherwise."""
    from topics.storage.files.fs import OsFs  # noqa: PLC0415

    fs = OsFs()
    if not any(fs.exists(f"{directory}/{name}") for name in ("FORMAT", "wal", "meta")):
        raise UsageRefusal(f"{directory} is no data directory: it has neither FORMAT nor wal nor meta")
    if not in_use:
        _refuse_if_in_use(fs, directory, "is in use")
    return fs


def _refuse_if_in_use(fs: Fs, directory: str, problem: str) -> None:
    holder = fs.lock_holder(f"{directory}/LOCK")
    if holder is not None:
        by = holder or "another process"
        raise UsageRefusal(
            f"the data directory {directory} {problem} (lock held by {by}); --in-use looks at it all the same"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """What recovery logs while it is asked is in the findings and facts already."""
    import structlog  # noqa: PLC0415

    before = structlog.get_config()
    structlog.configure(processors=[_drop])
    try:
        yield
    finally:
        structlog.configure(**before)


def _drop(_logger: Any, _method: str, _event: Any) -> NoReturn:
    import structlog  # noqa: PLC0415

    raise structlog.DropEvent


@contextmanager
def shown_progress(progress: Progress, what: str) -> Iterator[None]:
    """A bar of bytes read of bytes to read, on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    # Imported here as rich takes longer to import than small directories take to read.
    from rich import progress as rich  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    class ReadingProgressBar(rich.Progress):
        """Looks at `progress` whenever it is drawn."""

        def get_renderables(self) -> Iterable[Any]:
            for task in self.tasks:
                task.total = progress.total or None
                task.completed = min(progress.done, progress.total)
            return super().get_renderables()

    columns = (
        rich.TextColumn(what),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
    )
    # Lines on the same terminal go above the bar; those for a file or a pipe stay what they are.
    with ReadingProgressBar(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty()
    ) as bar:
        bar.add_task(what, total=None)
        yield


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
    """What the directory knows of its bucket, but for where each file of the log is."""
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
    yield f"  shard {shard.shard}  {_times(len(shard.files), 'file', 'files')}, {size(used)} of {size(total)} used"
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
            tiers.append(f"{_times(len(found), 'segment', 'segments')} {tier}{held}")
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


def _times(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
