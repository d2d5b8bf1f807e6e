"""`audit`: checks that a data directory is as it was written. It does the work of `topics verify`, with the segments
and the blocks of Merkle trees, which are nearly all of it, verified in parallel.

Responsible for dividing the work, for the report (a row for each segment) and for the summary.
`topics.storage.offline.verify` decides between damage and notes, so both find the same. The driver looks at the log,
snapshots, manifests and floors, and joins the roots of the blocks. A task that verifies a segment or a block needs its
directory under the same path.

Exit codes are those of `topics verify`: 0, 1 if there is damage, 2 for a command line or a directory that is refused.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

import click
import msgspec

from topics.cli.failures import EXIT_FAILED, UsageRefusal
from topics.cli.offline.verify_command import kept_checkpoint
from topics.cli.output import count, print_line, printable, size
from topics.log.span import Span
from topics.spark.session import JobOptions, spark_options
from topics.storage.files.datadir import DataDir, DataDirError
from topics.storage.files.fs import OsFs
from topics.storage.offline.findings import Finding
from topics.storage.offline.stored_topics import TopicDirectory
from topics.storage.offline.verify_division import DividedVerification, SegmentWork, damaged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.storage.offline.verify_trees import KeptCheckpoint, LeafResult, LeafWork

W = TypeVar("W")
R = TypeVar("R")

MAX_TASKS: Final = 10_000
"""Each segment is a task of its own up to here; of more, several share one."""

BLOCKS_IN_A_TASK: Final = 8
"""Files of leaves that share a task: the root of a block of 16,384 leaves takes 10 ms, about what a task costs."""


class SegmentReport(NamedTuple):
    """A row of the report. `status` is `sound`, `note` or `damage`; `records` are physically in the file, `live` those
    of them that a reader gets; `bytes` are those of `.data` that count."""

    topic: str
    file: str
    first_seq: int
    last_seq: int
    records: int
    live: int
    bytes: int
    status: str
    problems: list[str]


class Audit(NamedTuple):
    """The findings: segment by segment, and about everything else in the directory."""

    segments: list[SegmentReport]
    findings: list[Finding]

    @property
    def damaged(self) -> bool:
        """Return True if there is any damage."""
        return damaged(self.findings) or any(segment.status == "damage" for segment in self.segments)


def run(
    spark: SparkSession,
    path: str,
    cold: str | None = None,
    *,
    in_use: bool = False,
    against: Sequence[KeptCheckpoint] = (),
) -> Audit:
    """Look at a data directory, or a copy of one as `scripts/copy` makes it. Changes nothing.

    `in_use`: a daemon may work on it; files that it replaces meanwhile are checked again. `against`: checkpoints of
    topics with evidence that were kept elsewhere. Raises Refused if it is no data directory, or is in use and may not
    be; OSError if the disk does not answer.
    """
    fs = OsFs()
    root, cold = _data_directory(fs, path, cold, in_use=in_use)
    verification = DividedVerification(fs, root, cold, in_use=in_use, against=against)
    with _quiet():
        findings = list(verification.findings())
    reports = []
    for work, about in zip(verification.work, _each(spark, _segment, verification.work), strict=True):
        again = in_use and damaged(about)
        reports.append(_report(work, verification.again(work) if again else about))
    findings += verification.tree_findings(_each(spark, _leaves, verification.leaves, BLOCKS_IN_A_TASK))
    if not in_use:
        _refuse_if_in_use(fs, root, "has come into use meanwhile, so what was found says nothing")
    return Audit(reports, findings)


def _each(spark: SparkSession, verify: Callable[[W], R], work: Sequence[W], in_a_task: int = 1) -> list[R]:
    """Return what `verify` returns for each piece of work, in their order. It is called in executors."""
    if not work:
        return []
    tasks = min(-(-len(work) // in_a_task), MAX_TASKS)
    return spark.sparkContext.parallelize(work, tasks).map(verify).collect()


def _segment(work: SegmentWork) -> list[Finding]:
    """In an executor."""
    return work.findings(OsFs())


def _leaves(work: LeafWork) -> LeafResult:
    """In an executor."""
    return work.verified(OsFs())


def _report(work: SegmentWork, findings: Sequence[Finding]) -> SegmentReport:
    segment = work.loaded()
    live = Span.load(work.span).live if work.span is not None else 0
    status = "damage" if damaged(findings) else "note" if findings else "sound"
    return SegmentReport(
        work.topic,
        work.path(),
        segment.first,
        segment.end - 1,
        segment.frames,
        live,
        segment.data_bytes,
        status,
        [sentence(finding) for finding in findings],
    )


def sentence(finding: Finding) -> str:
    """A finding in one line, as `topics verify` prints it."""
    place = finding.path if finding.offset is None else f"{finding.path} at {finding.offset}"
    return f"{finding.severity}: {place}: {finding.problem}"


# ----------------------------------------------------------------- the directory


def _data_directory(fs: OsFs, path: str, cold: str | None, *, in_use: bool) -> tuple[str, str | None]:
    """Where the data directory and the cold one are. A missing FORMAT is damage, and no reason to refuse."""
    try:
        found = TopicDirectory.found(fs, path, cold)
        root, cold = found.data, found.cold or cold
    except DataDirError as error:
        layout = DataDir(path)
        if not any(map(fs.exists, (layout.format_path, layout.wal_dir, layout.meta_dir))):
            raise UsageRefusal(str(error)) from None
        root = path
    if root is None:
        raise UsageRefusal(f"{path} is a cold directory: give the data directory, and this one with --cold")
    if not in_use:
        _refuse_if_in_use(fs, root, "is in use")
    return root, cold


def _refuse_if_in_use(fs: OsFs, root: str, problem: str) -> None:
    holder = fs.lock_holder(DataDir(root).lock_path)
    if holder is not None:
        by = holder.strip() or "another process"
        raise UsageRefusal(
            f"the data directory {root} {problem} (lock held by {by}); --in-use looks at it all the same"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the log of recovery, because the findings have its content."""
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


# ----------------------------------------------------------------- what comes out


def write_report(reports: Sequence[SegmentReport], path: Path) -> None:
    """One row for each segment: lines of JSON if the name ends in `.json`, else a Parquet file. Appears whole."""
    unfinished = path.with_name(f"{path.name}.tmp")
    rows = [report._asdict() for report in reports]
    if path.suffix == ".json":
        unfinished.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    else:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        numbers = ("first_seq", "last_seq", "records", "live", "bytes")
        kinds = dict.fromkeys(SegmentReport._fields, pa.string()) | dict.fromkeys(numbers, pa.int64())
        schema = pa.schema(list((kinds | {"problems": pa.list_(pa.string())}).items()))
        pq.write_table(pa.Table.from_pylist(rows, schema), unfinished)
    os.replace(unfinished, path)


def show(audit: Audit) -> None:
    """The findings and a summary, on stdout."""
    lines = [sentence(finding) for finding in audit.findings]
    lines += [problem for segment in audit.segments for problem in segment.problems]
    for line in lines:
        print_line(printable(line))
    worst = sum(line.startswith("damage:") for line in lines)
    held = size(sum(segment.bytes for segment in audit.segments))
    topics = len({segment.topic for segment in audit.segments})
    bad = sum(segment.status == "damage" for segment in audit.segments)
    print_line(
        f"{_times(len(audit.segments), 'segment')} of {_times(topics, 'topic')}, {held}, "
        f"{count(sum(segment.live for segment in audit.segments))} live records; "
        f"{_times(worst, 'damage')}, {_times(len(lines) - worst, 'note')}; {_times(bad, 'segment')} damaged"
    )


def _times(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


@click.command(
    "audit",
    epilog="\b\nExamples:\n"
    "  python -m topics.spark audit --path /var/lib/topics\n"
    "  python -m topics.spark audit --path /backup --report audit.parquet --master local[8]",
)
@click.option(
    "--path",
    required=True,
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False),
    help="A data directory, or a copy made by scripts/copy.",
)
@click.option(
    "--cold",
    envvar="TOPICS_COLD_DIR",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Its cold directory, if it has one (TOPICS_COLD_DIR).",
)
@click.option(
    "--report",
    metavar="OUT",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a row for each segment: lines of JSON to a name in .json, else Parquet.",
)
@click.option(
    "--against",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Compare a topic with evidence with a checkpoint that was kept elsewhere. Repeatable.",
)
@click.option("--in-use", is_flag=True, help="Go on although a daemon works on the directory.")
@spark_options
@click.pass_obj
def command(
    options: JobOptions, path: str, cold: str | None, report: Path | None, against: tuple[str, ...], in_use: bool
) -> None:
    """Look for damage in a data directory, its segments and Merkle trees in parallel: checksums and hashes, order of
    seqs, indexes and tags against the data, floors. Changes nothing.

    Exit code 1 if there is damage. Notes alone are no damage.
    """
    if report is not None and not report.absolute().parent.is_dir():
        raise UsageRefusal(f"--report {report}: its directory does not exist")
    kept = [kept_checkpoint(file) for file in against]
    # Executors do not share our working directory.
    path, cold = os.path.abspath(path), os.path.abspath(cold) if cold is not None else None
    _data_directory(OsFs(), path, cold, in_use=in_use)  # refused before a session is made
    with options.session("audit") as spark:
        found = run(spark, path, cold, in_use=in_use, against=kept)
    if report is not None:
        write_report(found.segments, report)
    show(found)
    if found.damaged:
        sys.exit(EXIT_FAILED)
