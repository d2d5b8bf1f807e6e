"""`rollup`: a stream of records becomes windows: how many there were, and sums and the like of fields of their data.

Responsible for the computation (`Rollup`, by `windows_of`, which is the same for a batch), and for a streaming query
that goes on where it ended and comes to an end if it is told to. Exactly once over restarts is Spark's checkpoint
together with its own Parquet sink, or with the writer of topics.

A window is emitted once, when the watermark has passed its end: the latest time seen, less `watermark`. Nothing of it
comes before that, and a record that comes after it is left out (and counted). So the last windows stay open for as long
as nothing newer comes. `final` closes them: a second, tiny stream, united with the records from the beginning, hands
Spark a time far in the future, whereupon it emits all that it has, by its ordinary ways. After that the rollup is over.

In the directory of the checkpoint:

    rollup.json           the definition of the rollup, so that no run goes on with another one
    lock                  held by the one that runs it
    clock/                the tiny stream: empty, or one file at the end
    topic/, parquet/      Spark's checkpoint of the query to each sink
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from topics.cli.failures import UsageRefusal, tell
from topics.cli.output import print_line
from topics.cli.stop_signals import stopping
from topics.cli.values import Duration
from topics.spark.jobs.locks import held
from topics.spark.session import DaemonAddress, JobOptions, daemon_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FUNCTIONS: Final = ("sum", "avg", "min", "max", "count", "stddev")
GROUPS: Final = ("topic", "tag", "tag-prefix", "node")
OWN_COLUMNS: Final = ("window_start", "window_end", "count")
END_OF_TIME: Final = "9999-01-01 00:00:00"
"""The time of the clock at the end; no record is as late as that."""

LIMIT: Final = "maxRecordsPerTrigger"
DEFAULT_TRIGGER_MS: Final = 10_000


class Aggregate(msgspec.Struct, frozen=True):
    """A function over a field of `data`, of those records in which it is a number."""

    function: str
    field: str

    @property
    def column(self) -> str:
        """The name of the result, like `avg_dep_delay`."""
        return f"{self.function}_{_plain(self.field)}"

    @classmethod
    def parsed(cls, text: str) -> Aggregate:
        """Of `avg:dep_delay`. Raises Refused."""
        function, colon, name = text.partition(":")
        if not colon or not name:
            raise UsageRefusal(f"--aggregate {text}: is not like avg:dep_delay")
        if function not in FUNCTIONS:
            raise UsageRefusal(f"--aggregate {text}: there is no {function!r}; there are {', '.join(FUNCTIONS)}")
        return cls(function, name)


class Rollup(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of a rollup. Raises Refused if it cannot be computed.

    `groups` are `topic`, `tag`, `node`, `tag-prefix` (the tag up to the first `separator`), or `data.FIELD`.
    `time_field` is a field of data that holds the time instead of `ts`: ISO 8601, or milliseconds since the Unix epoch.
    """

    window_ms: int
    watermark_ms: int = 0
    groups: tuple[str, ...] = ("tag-prefix",)
    separator: str = ":"
    aggregates: tuple[Aggregate, ...] = ()
    time_field: str | None = None

    def __post_init__(self) -> None:
        if self.window_ms < 1:
            raise UsageRefusal("--window: is too short")
        if not self.separator:
            raise UsageRefusal("--separator: is empty")
        for group in self.groups:
            if group not in GROUPS and not re.fullmatch(r"data\.[^.].*", group):
                raise UsageRefusal(f"--group {group}: is none of {', '.join(GROUPS)} and data.FIELD")
        columns = self.columns
        for column in columns:
            if columns.count(column) > 1:
                raise UsageRefusal(f"two columns of the result would be called {column}")

    @property
    def columns(self) -> list[str]:
        """Of the result."""
        found = [*OWN_COLUMNS[:2], *map(_group_column, self.groups), OWN_COLUMNS[2]]
        return found + [aggregate.column for aggregate in self.aggregates]

    @property
    def fields(self) -> list[str]:
        """The fields of data that are looked at."""
        found = [group.removeprefix("data.") for group in self.groups if group not in GROUPS]
        found += [aggregate.field for aggregate in self.aggregates]
        return list(dict.fromkeys(found + ([self.time_field] if self.time_field else [])))


def _plain(field: str) -> str:
    return re.sub(r"\W", "_", field)


def _group_column(group: str) -> str:
    return _plain(group.removeprefix("data."))


# ----------------------------------------------------------------- what is computed


def windows_of(records: DataFrame, rollup: Rollup) -> DataFrame:
    """The windows of records that were read as a batch: what the stream emits of the same records when it is final, if
    none of them was late."""
    return _aggregated(_measured(records, rollup), rollup)


def _measured(records: DataFrame, rollup: Rollup) -> DataFrame:
    """`time`, a column for each group and one for each aggregate, of each record."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    tops = dict.fromkeys(field.partition(".")[0] for field in rollup.fields)
    if tops:
        # All as text: one column may be grouped by and summed up.
        schema = ", ".join(f"`{top.replace('`', '``')}` STRING" for top in tops)
        records = records.withColumn("fields", F.from_json("data", schema))

    def text(field: str) -> Column:
        top, dot, rest = field.partition(".")
        found = F.col("fields").getField(top)
        return F.get_json_object(found, f"$.{rest}") if dot else found

    def group(name: str) -> Column:
        if name == "tag-prefix":
            return F.substring_index("tag", rollup.separator, 1)
        return F.col(name) if name in GROUPS else text(name.removeprefix("data."))

    return records.select(
        _time(text(rollup.time_field), rollup.time_field).alias("time")
        if rollup.time_field
        else F.col("ts").alias("time"),
        *(group(name).alias(_group_column(name)) for name in rollup.groups),
        *(text(one.field).try_cast("double").alias(one.column) for one in rollup.aggregates),
    )


def _time(text: Column, field: str) -> Column:
    """A time out of a field, or an error that names the record: one without a time belongs to no window, and would be
    missing without a word."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    missing = F.format_string(f"{field.replace('%', '%%')} of %s %d is no time", F.col("topic"), F.col("seq"))
    of_number = F.timestamp_millis(text.try_cast("bigint"))
    return F.coalesce(of_number, F.try_to_timestamp(text), F.raise_error(missing).cast("timestamp"))


def _aggregated(measured: DataFrame, rollup: Rollup) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: PLC0415

    keys = [F.col(_group_column(name)) for name in rollup.groups]
    values = [getattr(F, one.function)(one.column).alias(one.column) for one in rollup.aggregates]
    return (
        measured.groupBy(F.window("time", f"{rollup.window_ms} milliseconds"), *keys)
        .agg(F.count(F.lit(1)).alias("count"), *values)
        .withColumns({"window_start": F.col("window.start"), "window_end": F.col("window.end")})
        .select(*rollup.columns)
    )


def records_of(windows: DataFrame, rollup: Rollup) -> DataFrame:
    """The records that windows become: `data` with all columns, `tag` the groups with the separator between them."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    data = F.to_json(F.struct("*"), {"ignoreNullFields": "false", "timeZone": "UTC"}).alias("data")
    tag = F.concat_ws(rollup.separator, *map(_group_column, rollup.groups))
    return windows.select(data, F.when(tag != "", tag).alias("tag"))


# ----------------------------------------------------------------- the query


@dataclass(frozen=True, slots=True, kw_only=True)
class Sinks:
    """Where windows go: to a topic, to a directory of Parquet, or to both."""

    topic: str | None = None
    parquet: str | None = None

    def __post_init__(self) -> None:
        if self.topic is None and self.parquet is None:
            raise UsageRefusal("give --to-topic, --to-parquet, or both")


@dataclass(frozen=True, slots=True)
class RollupResult:
    """The result of a run: records read, windows emitted (to each sink), and records that came too late for their
    windows."""

    records: int
    windows: int
    late: int


def run(
    spark: SparkSession,
    rollup: Rollup,
    checkpoint: str | Path,
    *,
    address: DaemonAddress,
    sinks: Sinks,
    source: dict[str, str],
    once: bool = False,
    final: bool = False,
    trigger_ms: int = DEFAULT_TRIGGER_MS,
    until: Callable[[], bool] = lambda: False,
) -> RollupResult:
    """Roll up what `source` names: options of the data source, like `{"topic": "flights"}`.

    With `once` it returns when all that was there has been taken, with `final` when all windows are closed as well;
    otherwise it goes on, every `trigger_ms`. In any case it ends when `until`, asked every second, says so.
    `checkpoint` is a directory that the driver and all executors see; the next run with it goes on where this one
    ended, however that was. Raises Refused if it is of another rollup, or of one that is final; Failed if somebody else
    runs it; and what Spark raises.
    """
    place = Path(checkpoint).absolute()
    (place / "clock").mkdir(parents=True, exist_ok=True)
    with held(place / "lock", f"{place}: somebody else runs this rollup"):
        return _run(spark, rollup, place, address, sinks, source, once, final, trigger_ms, until)


def _run(
    spark: SparkSession,
    rollup: Rollup,
    place: Path,
    address: DaemonAddress,
    sinks: Sinks,
    source: dict[str, str],
    once: bool,
    final: bool,
    trigger_ms: int,
    until: Callable[[], bool],
) -> RollupResult:
    over = place / "clock" / "final.json"
    _check_same(place / "rollup.json", rollup, sinks, source)
    if over.exists() and not final:
        raise UsageRefusal(f"{place}: this rollup is final; begin another one with another checkpoint")

    def start(**limits: str) -> list[StreamingQuery]:
        every_ms = None if once or final else trigger_ms
        return _start(spark, rollup, place, address, sinks, source | limits, every_ms, until)

    if not final:
        return _finish(start(), until)
    counts = RollupResult(0, 0, 0)
    if not over.exists():
        if LIMIT in source:
            counts = _finish(start(), until)
            if until():
                return counts
        _write(over, msgspec.json.encode({"time": END_OF_TIME}))
    # All that is there belongs to the batch in which the clock strikes: in a later one it would be late.
    last = _finish(start(**{LIMIT: str(2**62)}), until)
    return RollupResult(counts.records + last.records, counts.windows + last.windows, counts.late + last.late)


def _check_same(path: Path, rollup: Rollup, sinks: Sinks, source: dict[str, str]) -> None:
    what = {name: source[name] for name in ("topic", "topics", "topicPrefix") if name in source}
    said = msgspec.json.format(msgspec.json.encode([what, rollup, sinks]), indent=1)
    try:
        if path.read_bytes() != said:
            raise UsageRefusal(f"{path.parent}: is the checkpoint of another rollup, see {path.name} in it")
    except FileNotFoundError:
        _write(path, said)


def _write(path: Path, content: bytes) -> None:
    """`content` at `path`, whole or not at all. Spark passes over names that begin with an underscore."""
    new = path.with_name(f"_{path.name}")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _start(
    spark: SparkSession,
    rollup: Rollup,
    place: Path,
    address: DaemonAddress,
    sinks: Sinks,
    source: dict[str, str],
    trigger_ms: int | None,
    until: Callable[[], bool],
) -> list[StreamingQuery]:
    from pyspark.sql import functions as F  # noqa: PLC0415

    when: dict[str, Any] = (
        {"availableNow": True} if trigger_ms is None else {"processingTime": f"{trigger_ms} milliseconds"}
    )
    records = spark.readStream.format("topics").options(**address.options() | source).load()
    clock = spark.readStream.schema("time TIMESTAMP").json(str(place / "clock"))
    measured = (
        _measured(records, rollup)
        .unionByName(clock, allowMissingColumns=True)
        .withWatermark("time", f"{rollup.watermark_ms} milliseconds")
        .where(F.col("time") < F.lit(END_OF_TIME).cast("timestamp"))
    )
    windows = _aggregated(measured, rollup)
    queries = []
    try:
        if sinks.topic is not None:
            writer = records_of(windows, rollup).writeStream.format("topics")
            writer = writer.options(**address.options(), topic=sinks.topic)
            queries.append(writer.option("checkpointLocation", str(place / "topic")).trigger(**when).start())
            if sinks.parquet is not None:
                _await_sources(queries[0], until)
        if sinks.parquet is not None:
            writer = windows.writeStream.format("parquet").option("path", sinks.parquet)
            queries.append(writer.option("checkpointLocation", str(place / "parquet")).trigger(**when).start())
    except BaseException:
        _stop(queries)
        raise
    return queries


def _await_sources(query: StreamingQuery, until: Callable[[], bool]) -> None:
    """Wait until a query has made its sources, or `until` says so. Raises the error that the query has failed with.

    Spark 4.3 writes into the environment of a data source when a query makes its stream, without a lock. Where two
    queries of a session do so at once, that map may be broken, and with it every later task of the session that uses
    the data source (OptionalDataException). Once its keys are there, nothing moves any more.
    """
    while query.isActive and query.status["message"].startswith("Initializing") and not until():
        query.awaitTermination(1)


def _finish(queries: Sequence[StreamingQuery], until: Callable[[], bool]) -> RollupResult:
    """Wait until all have come to their end, one has failed, or `until` says so."""
    try:
        while any(query.isActive for query in queries) and not until():
            for query in queries:
                query.awaitTermination(1)  # raises the error of the query
    finally:
        _stop(queries)
    for query in queries:
        query.awaitTermination()
    progress = [[one.json for one in query.recentProgress] for query in queries]
    decoded = [[msgspec.json.decode(text, type=_Progress) for text in one] for one in progress]
    return RollupResult(
        records=max(sum(source.rows for batch in one for source in batch.sources[:1]) for one in decoded),
        windows=max(sum(state.removed for batch in one for state in batch.states) for one in decoded),
        late=max(sum(state.late for batch in one for state in batch.states) for one in decoded),
    )


def _stop(queries: Sequence[StreamingQuery]) -> None:
    for query in queries:
        query.stop()


class _State(msgspec.Struct):
    removed: int = msgspec.field(name="numRowsRemoved", default=0)
    late: int = msgspec.field(name="numRowsDroppedByWatermark", default=0)


class _Source(msgspec.Struct):
    rows: int = msgspec.field(name="numInputRows", default=0)


class _Progress(msgspec.Struct):
    """The part of a batch's progress that is used here. The first source is that of the records, the second one the
    clock."""

    sources: list[_Source] = []
    states: list[_State] = msgspec.field(name="stateOperators", default_factory=list)


@click.command(
    "rollup",
    epilog="\b\nExamples:\n"
    "  python -m topics.spark rollup flights --window 1h --watermark 2d --time-field time_hour \\\n"
    "      --aggregate avg:dep_delay --to-topic delays --checkpoint /srv/rollups/delays --once\n"
    "  python -m topics.spark rollup --prefix orders. --window 1m --watermark 10s --group topic \\\n"
    "      --aggregate sum:total --to-parquet /srv/orders --checkpoint /srv/rollups/orders --trigger 10s",
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--prefix", metavar="TEXT", help="All topics whose names begin so, instead of naming them.")
@click.option("--window", "window_ms", type=Duration(plain="s", least=1), required=True, metavar="TIME")
@click.option(
    "--watermark",
    "watermark_ms",
    type=Duration(plain="s"),
    default=0,
    metavar="TIME",
    help="How much later than the latest a record may be.  [0]",
)
@click.option("--time-field", metavar="FIELD", help="A field of data that holds the time, instead of ts.")
@click.option(
    "--group",
    "groups",
    multiple=True,
    default=("tag-prefix",),
    metavar="GROUP",
    help="topic, tag, tag-prefix, node or data.FIELD; repeatable.  [tag-prefix]",
)
@click.option("--separator", default=":", metavar="TEXT", help="What the prefix of a tag ends at.  [:]")
@click.option(
    "--aggregate",
    "aggregates",
    multiple=True,
    metavar="FUNCTION:FIELD",
    help=f"{', '.join(FUNCTIONS)} of a field of data; repeatable. The records are counted anyway.",
)
@click.option("--to-topic", metavar="TOPIC", help="Append the windows to a topic.")
@click.option(
    "--to-parquet", type=click.Path(file_okay=False), metavar="DIRECTORY", help="Write them to Parquet files."
)
@click.option("--checkpoint", type=click.Path(file_okay=False), required=True, metavar="DIRECTORY")
@click.option("--once", is_flag=True, help="End when all that is there has been taken; go on with it in the next run.")
@click.option("--final", is_flag=True, help="Likewise, and close all windows: this rollup is over.")
@click.option(
    "--trigger",
    "trigger_ms",
    type=Duration(plain="s", least=1),
    default=DEFAULT_TRIGGER_MS,
    metavar="TIME",
    help="How often, without --once.  [10s]",
)
@click.option("--batch", type=click.IntRange(1), metavar="N", help="At most so many seqs in a batch.  [no limit]")
@click.option("--allow-loss", is_flag=True, help="Go on where retention was faster, with a warning.")
@daemon_options
@click.pass_obj
def command(
    options: JobOptions,
    topics: tuple[str, ...],
    prefix: str | None,
    window_ms: int,
    watermark_ms: int,
    time_field: str | None,
    groups: tuple[str, ...],
    separator: str,
    aggregates: tuple[str, ...],
    to_topic: str | None,
    to_parquet: str | None,
    checkpoint: str,
    once: bool,
    final: bool,
    trigger_ms: int,
    batch: int | None,
    allow_loss: bool,
) -> None:
    """Count and aggregate the records of topics in windows of time.

    A window is emitted once, when the watermark has passed its end. With --once or --trigger the last windows stay open
    until something newer comes; --final closes them.
    """
    if bool(topics) == (prefix is not None):
        raise UsageRefusal("name topics, or give --prefix")
    rollup = Rollup(
        window_ms=window_ms,
        watermark_ms=watermark_ms,
        groups=groups,
        separator=separator,
        aggregates=tuple(map(Aggregate.parsed, aggregates)),
        time_field=time_field,
    )
    sinks = Sinks(topic=to_topic, parquet=None if to_parquet is None else str(Path(to_parquet).absolute()))
    source = {"topics": ",".join(topics)} if prefix is None else {"topicPrefix": prefix}
    source |= {"failOnDataLoss": str(not allow_loss).lower()}
    source |= {} if batch is None else {LIMIT: str(batch)}
    address = options.address()
    # A session has its own way with Ctrl-C, which would break off the call that runs at the moment.
    with options.session("rollup") as spark, stopping() as stop:
        done = run(
            spark,
            rollup,
            checkpoint,
            address=address,
            sinks=sinks,
            source=source,
            once=once,
            final=final,
            trigger_ms=trigger_ms,
            until=lambda: stop.signal is not None,
        )
    if done.late:
        tell(f"at least {done.late:,} records were later than the watermark allows and are in no window")
    print_line(f"{done.records:,} records, {done.windows:,} windows")
    sys.exit(stop.exit_code)
