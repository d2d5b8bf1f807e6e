"""`archive`: topics to Parquet, partitioned by topic and day, each run from where the one before it ended.

    topic, day                    the partition; the day, in UTC, of `ts`
    epoch, seq, ts, node, tag, meta, data
                                  a record; `epoch` tells instances of a topic apart, so (topic, epoch, seq) is unique
    gap_from, gap_to, reason      null, but in a row that stands for records that were lost (`allow_loss`); in such a
                                  row everything else is null but topic, day (of the run) and epoch

A run takes the records that exist when it begins, in rounds, each of which gets into the archive whole and once
(`topics.spark.jobs.archive_files`). Before a round counts, it is read back and compared with the written rows. Deleting
comes last, and only after the seqs of all records that would go have been found in the archive.

Records are lost if retention removes them before they are archived, or if a topic is deleted and made again before. A
loss fails the run; with `allow_loss` the run notes it and goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from topics.cli.failures import EXIT_CONFLICT, CommandFailure, UsageRefusal, tell
from topics.cli.output import print_line
from topics.spark.jobs.archive_files import ArchiveFiles, Offset, Offsets
from topics.spark.jobs.progress import progress
from topics.spark.session import DaemonAddress, JobOptions, daemon_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from topics.client import Client

COLUMNS: Final = ("epoch", "seq", "ts", "node", "tag", "meta", "data", "gap_from", "gap_to", "reason")
SCHEMA: Final = (
    "epoch BIGINT, seq BIGINT, ts TIMESTAMP, node STRING, tag STRING, meta MAP<STRING, STRING>, data STRING, "
    "gap_from BIGINT, gap_to BIGINT, reason STRING, topic STRING, day DATE"
)
"""The schema of an archive. Readers must give it to Spark, which else takes a topic that is called 7 for a number."""

ROUND: Final = 10_000_000
"""Seqs in a round, over all topics: what a kill costs at most, and the space that a round needs beside the archive."""

_DAY: Final = "date_from_unix_date(CAST(unix_micros(ts) DIV 86400000000 AS INT))"


@dataclass(frozen=True, slots=True)
class TopicBounds:
    """A topic as it is when a run begins."""

    topic: str
    epoch: int
    head: int
    earliest: int
    is_queue: bool = False


@dataclass(frozen=True, slots=True)
class ArchiveRange:
    """The records that a round takes of a topic: the seqs `(after, last]` of its instance `epoch`."""

    topic: str
    epoch: int
    after: int
    last: int


@dataclass(slots=True)
class ArchiveResult:
    """The result of a run: `records` in all, and by topic how far it is archived, how many records were deleted from
    it, and which were lost before they could be archived."""

    records: int = 0
    offsets: dict[str, Offset] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    gaps: int = 0


def plan(
    topics: Iterable[TopicBounds], offsets: Offsets, limit: int, *, allow_loss: bool = False
) -> list[ArchiveRange]:
    """Return the next round: records that are not archived yet, topic by topic, at most `limit` seqs. Empty if there is
    nothing.

    Raises Failed for an instance of a topic that is not the one that was archived. It raises for an older one always,
    because its seqs would be in the archive twice; for a newer one unless `allow_loss`, because it is unknown which
    records the former one still had.
    """
    ranges = []
    for now in topics:
        done = offsets.topics.get(now.topic)
        after = now.earliest - 1  # of a topic that is new here, nothing is lost by what retention took before
        if done is not None and done.epoch == now.epoch:
            if now.head < done.seq:
                raise CommandFailure(
                    f"{now.topic}: ends at {now.head}, but is archived up to {done.seq}: another data directory?"
                )
            after = done.seq
        elif done is not None and done.epoch > now.epoch:
            raise CommandFailure(
                f"{now.topic}: is an older instance than the one that is archived: another data directory?"
            )
        elif done is not None and not allow_loss:
            raise CommandFailure(
                f"{now.topic}: was deleted and made again, and what it had after seq {done.seq} is not in the archive; "
                "--allow-loss goes on with the new one"
            )
        last = min(now.head, after + limit)
        if last > after:
            ranges.append(ArchiveRange(now.topic, now.epoch, after, last))
            limit -= last - after
    return ranges


def run(
    spark: SparkSession,
    path: str | Path,
    *,
    address: DaemonAddress,
    topics: Sequence[str] = (),
    prefix: str | None = None,
    delete: bool = False,
    allow_loss: bool = False,
    records_per_round: int = ROUND,
) -> ArchiveResult:
    """Archive what `topics`, or all topics with a `prefix`, have now and the archive at `path` has not.

    `path` is a directory that the driver and all executors see under that name. `delete` removes from the topics what
    is in the archive; not from queues, whose jobs go when they are done. Raises Failed if somebody else is archiving to
    it, for loss unless `allow_loss`, and if what was written cannot be read back; TopicsError of the daemon; and what
    Spark raises. After any end, the archive has each record once, and the next run goes on from there.
    """
    archive = ArchiveFiles(Path(path))
    done = ArchiveResult()
    with archive.locked(), address.client() as client:
        present = _present(client, topics, prefix)
        if delete and (queues := [now.topic for now in present if now.is_queue]):
            raise UsageRefusal(f"--delete: {', '.join(queues)} is a queue, whose jobs are removed by acks")
        offsets = archive.offsets()
        while ranges := plan(present, offsets, records_per_round, allow_loss=allow_loss):
            for new in ranges:
                old = offsets.topics.get(new.topic)
                if old is not None and old.epoch != new.epoch:
                    tell(f"{new.topic}: was made again; what the former instance had after seq {old.seq} is lost")
            written = archive.begin()
            records, gaps = _write(spark, address, ranges, str(written), allow_loss)
            # Had a topic been made again since the plan, another instance would have been read in its name.
            _check_epochs(client, ranges)
            moves = {new.topic: (Offset(new.epoch, new.after), Offset(new.epoch, new.last)) for new in ranges}
            offsets = archive.publish(written, moves)
            done.records += records
            done.gaps += gaps
        done.offsets = {now.topic: offsets.topics[now.topic] for now in present if now.topic in offsets.topics}
        if delete:
            done.deleted = _delete(spark, client, address, archive.root, present, offsets)
    return done


def rows_of(spark: SparkSession, path: str | Path) -> DataFrame:
    """The rows of an archive, gaps among them."""
    return spark.read.schema(SCHEMA).parquet(str(path))


def _present(client: Client, topics: Sequence[str], prefix: str | None) -> list[TopicBounds]:
    """The topics to be archived, as they are now. Raises NotFound for one that was named and is not there."""
    if bool(topics) == (prefix is not None):
        raise UsageRefusal("name topics, or give --prefix")
    if prefix is None:
        found = [client.state(topic) for topic in dict.fromkeys(topics)]
        return [TopicBounds(t.topic, t.epoch, t.head_seq, t.earliest_seq, t.type == "queue") for t in found]
    return [
        TopicBounds(t.topic, t.epoch, t.head_seq, t.earliest_seq, t.type == "queue")
        for t in client.list_all(prefix=prefix)
    ]


def _check_epochs(client: Client, ranges: Iterable[ArchiveRange]) -> None:
    for new in ranges:
        if client.state(new.topic).epoch != new.epoch:
            raise CommandFailure(f"{new.topic}: was deleted and made again while it was archived", EXIT_CONFLICT)


# ----------------------------------------------------------------- one round


def _read(spark: SparkSession, address: DaemonAddress, ranges: Sequence[ArchiveRange], **more: str) -> DataFrame:
    """The rows of the ranges, gaps among them if `tombstones` is asked for."""
    options = address.options() | {
        "topics": ",".join(new.topic for new in ranges),
        "startingSeq": _json({new.topic: new.after + 1 for new in ranges}),
        "endingSeq": _json({new.topic: new.last for new in ranges}),
    }
    return spark.read.format("topics").options(**options, **more).load()


def _write(
    spark: SparkSession, address: DaemonAddress, ranges: Sequence[ArchiveRange], path: str, allow_loss: bool
) -> tuple[int, int]:
    """Write the ranges to `path` and read them back. Returns how many records and gaps they have."""
    from pyspark.sql import Observation  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    if allow_loss:
        rows = _read(spark, address, ranges, tombstones="true", failOnDataLoss="false")
    else:
        rows = _read(spark, address, ranges)
        for name, kind in (("gap_from", "bigint"), ("gap_to", "bigint"), ("reason", "string")):
            rows = rows.withColumn(name, F.lit(None).cast(kind))
    epochs = F.from_json(F.lit(_json({new.topic: new.epoch for new in ranges})), "map<string,bigint>")
    known = spark.range(1).select(F.explode(epochs).alias("topic", "epoch"))
    today = F.lit(datetime.now(UTC).date())
    rows = rows.join(F.broadcast(known), "topic").withColumn("day", F.coalesce(F.expr(_DAY), today))

    observed = Observation()
    names = ", ".join(new.topic for new in ranges[:3]) + (" and others" if len(ranges) > 3 else "")
    with progress(spark, f"archiving {names}"):
        (
            rows.select(*COLUMNS, "topic", "day")
            .sortWithinPartitions("topic", "day", "seq")
            .observe(observed, *_sums())
            .write.partitionBy("topic", "day")
            .parquet(path)
        )
    written = observed.get
    records, gaps = int(written["records"] or 0), int(written["gaps"] or 0)
    if records + gaps:
        found = rows_of(spark, path).select(*_sums()).first()
        if found is None or found.asDict() != written:
            raise CommandFailure(f"{path}: what was written is not what is read back; nothing was archived")
    return records, gaps


def _sums() -> list[Column]:
    """How many records and gaps there are, and what tells whether they are the same ones."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    columns = [F.map_entries(F.col(name)) if name == "meta" else F.col(name) for name in (*COLUMNS, "topic", "day")]
    return [
        F.count("seq").alias("records"),
        F.count("reason").alias("gaps"),
        F.bit_xor(F.xxhash64(*columns)).alias("hash"),
    ]


# ----------------------------------------------------------------- deleting


def _delete(
    spark: SparkSession,
    client: Client,
    address: DaemonAddress,
    root: Path,
    present: Sequence[TopicBounds],
    offsets: Offsets,
) -> dict[str, int]:
    """Delete archived records from the topics. Returns how many records that were, by topic.

    The offsets are not enough: a record is deleted only if its seq is found in the files. Raises Failed, with nothing
    deleted, if one is not there (somebody has removed files)."""
    ranges = []
    for now in present:
        end = offsets.topics.get(now.topic)
        if end is not None and end.epoch == now.epoch and now.earliest <= end.seq:
            ranges.append(ArchiveRange(now.topic, now.epoch, now.earliest - 1, end.seq))
    if not ranges:
        return {}
    _check_archived(spark, address, root, ranges)
    deleted = {}
    for old in ranges:
        _check_epochs(client, [old])
        deleted[old.topic] = client.delete_records(old.topic, before_seq=old.last + 1).deleted
    return deleted


def _check_archived(spark: SparkSession, address: DaemonAddress, root: Path, ranges: Sequence[ArchiveRange]) -> None:
    from pyspark.sql import functions as F  # noqa: PLC0415

    # What retention takes meanwhile is not there to be deleted either.
    there = _read(spark, address, ranges, columns="topic,seq", failOnDataLoss="false")
    epochs = F.from_json(F.lit(_json({old.topic: old.epoch for old in ranges})), "map<string,bigint>")
    known = spark.range(1).select(F.explode(epochs).alias("topic", "epoch"))
    archived = rows_of(spark, root).where(F.col("topic").isin([old.topic for old in ranges]))
    archived = archived.join(F.broadcast(known), ["topic", "epoch"]).select("topic", "seq")
    with progress(spark, "looking for what is to be deleted in the archive"):
        missing = there.join(archived, ["topic", "seq"], "left_anti").first()
    if missing is not None:
        raise CommandFailure(
            f"{root}: has not {missing.topic} {missing.seq}, which was archived once; nothing was deleted"
        )


def _json(values: dict[str, int]) -> str:
    return msgspec.json.encode(values).decode()


@click.command(
    "archive",
    epilog="\b\nExamples:\n"
    "  python -m topics.spark archive /srv/archive flights\n"
    "  python -m topics.spark archive /srv/archive --prefix orders. --delete",
)
@click.argument("path", type=click.Path(file_okay=False, path_type=Path), metavar="DIRECTORY")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--prefix", metavar="TEXT", help="All topics whose names begin so, instead of naming them.")
@click.option("--delete", is_flag=True, help="Then delete from the topics what is safely in the archive.")
@click.option("--allow-loss", is_flag=True, help="Note what was lost before it was archived as rows, and go on.")
@click.option(
    "--round",
    "records_per_round",
    type=click.IntRange(1),
    default=ROUND,
    metavar="N",
    help=f"Seqs in a round.  [{ROUND}]",
)
@daemon_options
@click.pass_obj
def command(
    options: JobOptions,
    path: Path,
    topics: tuple[str, ...],
    prefix: str | None,
    delete: bool,
    allow_loss: bool,
    records_per_round: int,
) -> None:
    """Archive topics to Parquet, from where the last run ended.

    DIRECTORY is one that the driver and all executors see. It may be killed at any moment and run again: each record is
    in the archive once.
    """
    if bool(topics) == (prefix is not None):
        raise UsageRefusal("name topics, or give --prefix")
    address = options.address()
    with options.session("archive") as spark:
        done = run(
            spark,
            path,
            address=address,
            topics=topics,
            prefix=prefix,
            delete=delete,
            allow_loss=allow_loss,
            records_per_round=records_per_round,
        )
    for topic, offset in done.offsets.items():
        more = f", {done.deleted[topic]:,} deleted" if topic in done.deleted else ""
        print_line(f"{topic}: archived to seq {offset.seq:,}{more}")
    print_line(f"{done.records:,} records, {done.gaps:,} gaps")
