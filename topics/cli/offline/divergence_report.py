"""`topics inspect --diverged DIR`: the records of a former owner that the bucket has not (`docs/replication.md` section
1).

Responsible for where the end of the log begins, and for the output; `topics.storage.offline.log_tail` reads the log.
With `--records`, findings about the log go to stderr, else to the report.

Exit codes: 0, 1 if not all of the log could be read, 2 for a directory that is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from topics.cli.app import CommandOptions
from topics.cli.failures import UsageRefusal, tell
from topics.cli.offline.directory_look import open_directory, quiet, shown_progress, times
from topics.cli.output import moment, print_json, print_line, printable, size, write_line

if TYPE_CHECKING:
    from topics.storage.offline.findings import Finding
    from topics.storage.offline.log_tail import LogTail
    from topics.storage.offline.tail_facts import TailFacts, TailRecord, TopicTail

EXIT_UNREAD: Final = 1

UNKNOWN_PLACE: Final = "how far the bucket has its log is not known: this is all of the log, and segments may have more"


class _LeftPlace(NamedTuple):
    """The known facts about a directory that was set aside."""

    bucket: str
    epoch: int
    round: int
    exact: bool
    positions: list[tuple[int, int]] | None
    by: str | None = None
    by_epoch: int | None = None
    problem: str | None = None
    """Why the file DIVERGED does not tell these facts; None if it does."""


def show_diverged(
    options: CommandOptions,
    directory: str,
    cold_dir: str | None,
    *,
    in_use: bool,
    topic: str | None,
    records: bool,
    limit: int | None,
) -> None:
    """Print the report, or the records. Raises UsageRefusal."""
    from topics.storage.files.datadir import DataDirError  # noqa: PLC0415
    from topics.storage.offline.log_tail import LogTail  # noqa: PLC0415

    place = _place_of(directory)
    fs = open_directory(directory, in_use=in_use)
    try:
        with quiet():
            tail = LogTail(fs, directory, place.positions, cold_dir)
            with shown_progress(tail.progress, "inspect"):
                if records:
                    findings = _print_records(place, tail, topic, limit)
                else:
                    findings = _print_report(options, directory, place, tail.facts(), topic)
    except DataDirError as error:
        raise UsageRefusal(str(error)) from None
    if any(finding.severity == "damage" for finding in findings):
        sys.exit(EXIT_UNREAD)


def _place_of(directory: str) -> _LeftPlace:
    """Return where the end of the log of a directory begins. Raises UsageRefusal."""
    from topics.bucket.local_note import BadNote, read_note  # noqa: PLC0415
    from topics.bucket.standby.diverged_note import NAME, read_diverged  # noqa: PLC0415
    from topics.storage.files.datadir import DIVERGED, DataDir  # noqa: PLC0415
    from topics.storage.files.fs import OsFs  # noqa: PLC0415

    fs = OsFs()
    try:
        left = read_diverged(fs, directory)
    except FileNotFoundError:
        inside = ", ".join(f"{directory}/{name}" for name in sorted(fs.listdir(directory)) if name.startswith(DIVERGED))
        hint = f"; these in it were: {inside}" if inside else ""
        raise UsageRefusal(f"{directory} was not set aside: it has no file {NAME}{hint}") from None
    except (BadNote, OSError) as error:
        problem = f"{directory}/{NAME} cannot be read: {error}"
    else:
        return _LeftPlace(left.bucket, left.epoch, left.round, left.exact, left.positions, left.by, left.by_epoch, None)
    try:
        note = read_note(fs, DataDir(directory))
    except (BadNote, OSError) as error:
        raise UsageRefusal(f"{problem}; and {directory}/meta/bucket: {error}") from None
    if note is None:
        raise UsageRefusal(f"{problem}; and there is no {directory}/meta/bucket")
    return _LeftPlace(note.bucket, note.epoch, note.round, exact=False, positions=note.positions, problem=problem)


# ------------------------------------------------------------------- the records


def _print_records(place: _LeftPlace, tail: LogTail, topic: str | None, limit: int | None) -> list[Finding]:
    if place.problem is not None:
        tell(place.problem)
    if not place.exact:
        tell(_reach(place))
    for record in islice(tail.records(topic), limit):
        write_line(_line(record), flush=False)
    sys.stdout.buffer.flush()
    for finding in tail.findings:
        tell(_finding_line(finding))
    if tail.refused is not None:
        tell(_refused_line(tail.refused))
    return tail.findings


def _line(found: TailRecord) -> bytes:
    """A record as `topics read` prints it with the name of its topic. Raises UsageRefusal for a record that no version
    writes."""
    from topics.cli.records.record_lines import json_line  # noqa: PLC0415
    from topics.client.results import Record  # noqa: PLC0415

    stored = found.record
    job = {"not_before": found.not_before} if found.not_before else {}
    if found.priority is not None:
        job["priority"] = found.priority
    try:
        record = Record(
            topic=found.topic if found.topic is not None else f"topic {found.topic_id}",
            seq=stored.seq,
            ts=stored.ts,
            tag=stored.tag.decode() or None,
            node=stored.node.decode() or None,
            raw=msgspec.Raw(stored.data),
            meta=msgspec.json.decode(stored.meta, type=dict[str, str]) if stored.meta else {},
        )
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise UsageRefusal(f"record {stored.seq} of topic {found.topic_id} is none: {error}") from None
    return json_line(record, named=True, job=job)


# -------------------------------------------------------------------- the report


def _print_report(
    options: CommandOptions, directory: str, place: _LeftPlace, facts: TailFacts, topic: str | None
) -> list[Finding]:
    topics = [one for one in facts.topics if topic in (None, one.name)]
    facts = facts._replace(topics=topics)
    if options.as_json:
        findings = [finding._asdict() for finding in facts.findings]
        print_json({"directory": directory, **place._asdict(), **facts._asdict(), "findings": findings})
    else:
        for text in _page(directory, place, facts):
            print_line(printable(text))
    return facts.findings


def _page(directory: str, place: _LeftPlace, facts: TailFacts) -> Iterator[str]:
    by = f"; node {place.by} has taken over in epoch {place.by_epoch}" if place.by is not None else ""
    yield f"{directory}: owner of the bucket {place.bucket} in epoch {place.epoch}{by}"
    if place.problem is not None:
        yield place.problem
    yield _reach(place)
    begins = [f"shard {one.shard} from {one.begin[0]}+{one.begin[1]}, {size(one.bytes)}" for one in facts.shards]
    yield f"the log behind that: {'; '.join(begins) or 'none'}"
    if facts.refused is not None:
        yield _refused_line(facts.refused)
    counts = [one.records for one in facts.topics if one.records and not one.is_stage]
    records = times(sum(counts), "record", "records")
    yield f"\nnot carried over: {records} of {times(len(counts), 'topic', 'topics')}"
    for one in facts.topics:
        yield from _topic_lines(one)
    if facts.others:
        yield f"  of no topic: {_frames(facts.others)}"
    if facts.findings:
        yield ""
    for finding in facts.findings:
        yield _finding_line(finding)
    if counts:
        yield f"\nthe records themselves: topics inspect --diverged {directory} --records"


def _reach(place: _LeftPlace) -> str:
    if place.positions is None:
        return UNKNOWN_PLACE
    later = "" if place.exact else " or a later one, of which the directory did not know"
    return f"the bucket has its log up to round {place.round}{later}"


def _topic_lines(topic: TopicTail) -> Iterator[str]:
    about = ", ".join(text for text in (topic.type, topic.durability) if text is not None)
    yield f"  {topic.name or 'of unknown name'}  id {topic.id}{f', {about}' if about else ''}"
    if topic.records:
        gone = "it is not known which are gone again" if topic.gone is None else f"{topic.gone:,} gone again"
        seqs = f"seqs {topic.first_seq} to {topic.last_seq}, {moment(topic.first_ts)} to {moment(topic.last_ts)}"
        yield f"    {times(topic.records, 'record', 'records')}, {size(topic.bytes)}: {seqs}"
        yield f"    {topic.synced:,} of them synced for certain, {gone}"
    if topic.copies:
        yield f"    {times(topic.copies, 'copy', 'copies')} by routers"
    if topic.acked:
        yield f"    {times(topic.acked, 'job', 'jobs')} acked or moved"
    if topic.frames:
        yield f"    {_frames(topic.frames)}"


def _frames(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))


def _refused_line(reason: str) -> str:
    return f"a start would be refused, so records that were deleted or acked again are among these: {reason}"


def _finding_line(finding: Finding) -> str:
    place = finding.path if finding.offset is None else f"{finding.path} at {finding.offset}"
    return f"{finding.severity}: {place}: {finding.problem}"
