"""`restore`: what an archive holds becomes records of a topic again.

The records of each topic come in their order, one topic after the other by name. They keep tag, node, meta and data.
Their seq and ts are new; the former ones are in their meta (`META`). Rows of gaps are passed over. Restoring is
appending under a job id that follows from the archive, what it holds, what of it is wanted and the target: a repeat
adds nothing, for as long as the daemon remembers it (7 days).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from topics.cli.failures import EXIT_NOT_FOUND, CommandFailure
from topics.cli.output import print_line
from topics.spark.jobs.archive import rows_of
from topics.spark.jobs.archive_files import ArchiveFiles, Offsets
from topics.spark.jobs.progress import progress
from topics.spark.session import DaemonAddress, JobOptions, daemon_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

META: Final = ("archive.topic", "archive.seq", "archive.ts")
"""The keys of what a record had before: its topic, its seq, its ts in milliseconds since the Unix epoch."""


def job_id_of(offsets: Offsets, topics: Sequence[str], target: str) -> str:
    """Return an id that is equal for two runs that restore the same, also if the archive was moved in between."""
    what = msgspec.json.encode([offsets, sorted(set(topics)), target], order="deterministic")
    return f"restore-{hashlib.sha256(what).hexdigest()[:32]}"


def records_of(rows: DataFrame, offsets: Offsets, topics: Sequence[str] = ()) -> DataFrame:
    """The records that the rows of an archive become, in order: those that its offsets cover, of `topics` if any are
    named. Records that are archived meanwhile are not among them."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    ends = F.from_json(
        F.lit(msgspec.json.encode(offsets.topics).decode()), "map<string, struct<epoch:bigint,seq:bigint>>"
    )
    covered = rows.sparkSession.range(1).select(F.explode(ends).alias("topic", "end"))
    rows = rows.where("reason IS NULL").join(F.broadcast(covered), "topic")
    rows = rows.where("epoch < end.epoch OR (epoch = end.epoch AND seq <= end.seq)")
    if topics:
        rows = rows.where(F.col("topic").isin(list(topics)))
    former = F.create_map(
        *(F.lit(META[0]), F.col("topic")),
        *(F.lit(META[1]), F.col("seq").cast("string")),
        *(F.lit(META[2]), F.unix_millis("ts").cast("string")),
    )
    kept = F.map_filter(
        F.coalesce("meta", F.create_map().cast("map<string,string>")), lambda key, _: ~key.isin(list(META))
    )
    return rows.orderBy("topic", "epoch", "seq").select("data", "tag", "node", F.map_concat(kept, former).alias("meta"))


def run(
    spark: SparkSession,
    path: str | Path,
    target: str,
    *,
    address: DaemonAddress,
    topics: Sequence[str] = (),
    job_id: str | None = None,
) -> int:
    """Append what the archive at `path` holds, or of it what it has of `topics`, to the topic `target`: all or nothing.
    Returns how many records that are, whether they were there already or not.

    Raises Failed for what is no archive or has none of a topic, and what Spark raises.
    """
    from pyspark.sql import Observation  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    offsets = ArchiveFiles(Path(path)).offsets()
    if not offsets.archive:
        raise CommandFailure(f"{path}: is no archive", EXIT_NOT_FOUND)
    for topic in topics:
        if topic not in offsets.topics:
            raise CommandFailure(
                f"{path}: has nothing of {topic}; it has {', '.join(sorted(offsets.topics))}", EXIT_NOT_FOUND
            )
    observed = Observation()
    records = records_of(rows_of(spark, path), offsets, topics).observe(observed, F.count(F.lit(1)).alias("records"))
    options = address.options() | {"topic": target, "jobId": job_id or job_id_of(offsets, topics, target)}
    with progress(spark, f"restoring {target}"):
        records.write.format("topics").mode("append").options(**options).save()
    return int(observed.get["records"])


@click.command(
    "restore",
    epilog="\b\nExamples:\n"
    "  python -m topics.spark restore /srv/archive --to flights-again\n"
    "  python -m topics.spark restore /srv/archive flights --to flights-again",
)
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIRECTORY")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--to", "target", required=True, metavar="TOPIC", help="The topic, made if there is none.")
@click.option("--job-id", metavar="ID", help="What a repeat is known by.  [follows from archive and target]")
@daemon_options
@click.pass_obj
def command(options: JobOptions, path: Path, topics: tuple[str, ...], target: str, job_id: str | None) -> None:
    """Append what an archive holds to a topic.

    TOPICs are those that were archived; without any, all of them. A repeat adds nothing.
    """
    address = options.address()
    with options.session("restore") as spark:
        count = run(spark, path, target, address=address, topics=topics, job_id=job_id)
    print_line(f"{target}: {count:,} records of the archive are in it")
