"""`load`: the rows of CSV, JSON or Parquet files become records of a topic.

Responsible for the record of a row (its columns as a JSON object, tag and node by templates) and for the order: that of
the files by name and of the rows within them, or that of `order_by`. That all of it is published or nothing, and once
for a job id, is the writer's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import click

from topics.cli.failures import UsageRefusal
from topics.cli.output import print_line
from topics.spark.jobs.progress import progress
from topics.spark.jobs.templates import Template, column_of
from topics.spark.session import DaemonAddress, JobOptions, daemon_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS: Final = ("csv", "json", "parquet")
_BY_EXTENSION: Final = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}
_COMPRESSED: Final = frozenset({".gz", ".bz2", ".zst", ".snappy", ".lz4", ".deflate", ".xz"})


@dataclass(frozen=True, slots=True)
class LoadSource:
    """How files are to be read. `schema` is as Spark writes one (`carrier STRING, flight INT`); without it the types of
    CSV and JSON are inferred, which reads the files twice, or with `infer=False` every column of a CSV is text."""

    format: str | None = None
    """None: what the extension of the first path says."""
    schema: str | None = None
    header: bool = True
    infer: bool = True
    delimiter: str | None = None
    null: str | None = None
    """A text that means null in a CSV, beside the empty field."""
    multiline: bool = False
    """True if a row, or a JSON document, may go over several lines. Such a file is read by one task."""

    def read(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        """The rows of all files, in the order of `paths`, within a directory or pattern in that of the files' names,
        and within a file as they stand. Raises Refused if there are none."""
        kind = self.format or format_of(paths[0])
        options = self._options(kind, paths[0])
        # Once over all of them, so that a column has one type even where a file has only nulls in it.
        everything = self._load(spark, kind, options, list(paths), self.schema)
        files = [file for path in paths for file in files_below(spark, path)]
        if not files:
            raise UsageRefusal(f"no files: {' '.join(paths)}")
        if len(files) == 1:
            return everything
        # Spark would pack the files of one reader by size. The partitions of a union stay in order.
        parts = (self._load(spark, kind, options | base_of(file), [file], everything.schema) for file in files)
        return reduce(lambda left, right: left.union(right), parts)

    def _options(self, kind: str, path: str) -> dict[str, Any]:
        options: dict[str, Any] = {} if kind == "parquet" else {"mode": "FAILFAST", "multiLine": self.multiline}
        if kind == "csv":
            delimiter = self.delimiter or ("\t" if PurePath(path).suffix == ".tsv" else ",")
            # Fields are quoted as RFC 4180 has it, and a header that is not what the schema says is an error.
            options |= {"header": self.header, "sep": delimiter, "escape": '"', "enforceSchema": not self.header}
            if self.schema is None:
                options["inferSchema"] = self.infer
            if self.null is not None:
                options["nullValue"] = self.null
        return options

    @staticmethod
    def _load(spark: SparkSession, kind: str, options: dict[str, Any], paths: list[str], schema: Any) -> DataFrame:
        reader = spark.read.format(kind).options(**options)
        return (reader if schema is None else reader.schema(schema)).load(paths)


def files_below(spark: SparkSession, path: str) -> list[str]:
    """The files that a path, a directory or a pattern stands for, by name."""
    return sorted(unquote(uri) for uri in spark.read.format("text").load(path).inputFiles())


def base_of(file: str) -> dict[str, str]:
    """Return the option that keeps the columns in the names of directories (`day=2026-11-22/`) when one file is read by
    itself."""
    parts = file.split("/")
    first = next((at for at, part in enumerate(parts[:-1]) if "=" in part), None)
    return {} if first is None else {"basePath": "/".join(parts[:first])}


def format_of(path: str) -> str:
    """The format that the extension of `path` stands for, with `.gz` and the like put aside. Raises Refused."""
    name = PurePath(path)
    if name.suffix.lower() in _COMPRESSED:
        name = name.with_suffix("")
    try:
        return _BY_EXTENSION[name.suffix.lower()]
    except KeyError:
        raise UsageRefusal(f"{path}: the name does not say the format; --format {', '.join(FORMATS)}") from None


def records_of(
    rows: DataFrame,
    *,
    tag: str | None = None,
    node: str | None = None,
    order_by: Sequence[str] = (),
    keep_nulls: bool = False,
) -> DataFrame:
    """The records that rows become: `data`, and `tag` and `node` where there is a template for them. Raises Refused for
    a template or an order over columns that are not there."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    data = F.to_json(F.struct("*"), {"ignoreNullFields": str(not keep_nulls).lower()}).alias("data")
    chosen = [data]
    for name, text in (("tag", tag), ("node", node)):
        if text is not None:
            chosen.append(Template.parsed(text, f"--{name}").filled(rows, f"--{name}").alias(name))
    if order_by:
        rows = rows.orderBy(*(column_of(rows, name, "--order-by") for name in order_by))
    return rows.select(*chosen)


def run(
    spark: SparkSession,
    paths: Sequence[str],
    topic: str,
    *,
    address: DaemonAddress,
    source: LoadSource = LoadSource(),
    tag: str | None = None,
    node: str | None = None,
    order_by: Sequence[str] = (),
    keep_nulls: bool = False,
    job_id: str | None = None,
) -> int:
    """Append a record to `topic` for each row of the files: all of them, or none. Returns how many rows there were.

    `tag` and `node` are templates (`{carrier}:{flight}`). Fields that are null are left out of a record unless
    `keep_nulls`. With a `job_id` a load that is submitted again adds nothing, for as long as the daemon remembers it
    (7 days). Raises Refused for what does not fit the files, and what Spark raises.
    """
    from pyspark.sql import Observation  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    if not paths:
        raise UsageRefusal("no files were named")
    rows = source.read(spark, paths)
    records = records_of(rows, tag=tag, node=node, order_by=order_by, keep_nulls=keep_nulls)
    options = address.options() | {"topic": topic} | ({} if job_id is None else {"jobId": job_id})
    rows_read = Observation()
    counted = records.observe(rows_read, F.count(F.lit(1)).alias("rows"))
    with progress(spark, f"loading {topic}"):
        counted.write.format("topics").mode("append").options(**options).save()
    return int(rows_read.get["rows"])


@click.command(
    "load",
    epilog="\b\nExamples:\n"
    "  python -m topics.spark load flights.csv --to flights --tag '{carrier}:{flight}' --node '{origin}'\n"
    "  python -m topics.spark load 'events/*.parquet' --to events --order-by ts --job-id events-2026-11",
)
@click.argument("paths", nargs=-1, required=True, metavar="FILE...")
@click.option("--to", "topic", required=True, metavar="TOPIC", help="The topic, made if there is none.")
@click.option("--tag", metavar="TEMPLATE", help="The tag of a record, like '{carrier}:{flight}'; none if one is null.")
@click.option("--node", metavar="TEMPLATE", help="The node of a record, likewise.")
@click.option("--format", "format_", type=click.Choice(FORMATS), help="By default what the extension says.")
@click.option("--schema", metavar="DDL", help="Names and types, like 'carrier STRING, flight INT'; otherwise inferred.")
@click.option("--header/--no-header", default=True, help="Whether a CSV begins with the names of its columns.  [yes]")
@click.option("--infer/--no-infer", default=True, help="Infer the types of a CSV, or leave all as text.  [infer]")
@click.option("--delimiter", metavar="TEXT", help="Between the fields of a CSV.  [a comma; a tab in .tsv]")
@click.option("--null", metavar="TEXT", help="What stands for null in a CSV, like NA.")
@click.option("--multiline", is_flag=True, help="A row, or a JSON document, may go over several lines.")
@click.option("--keep-nulls", is_flag=True, help="Write fields that are null as null, and do not leave them out.")
@click.option("--order-by", multiple=True, metavar="COLUMN", help="Sort by it; repeatable.  [order of the files]")
@click.option("--job-id", metavar="ID", help="What a repeat of the same load is known by: it adds nothing.")
@daemon_options
@click.pass_obj
def command(
    options: JobOptions,
    paths: tuple[str, ...],
    topic: str,
    tag: str | None,
    node: str | None,
    format_: str | None,
    schema: str | None,
    header: bool,
    infer: bool,
    delimiter: str | None,
    null: str | None,
    multiline: bool,
    keep_nulls: bool,
    order_by: tuple[str, ...],
    job_id: str | None,
) -> None:
    """Append the rows of CSV, JSON or Parquet files to a topic.

    A row becomes a record whose data is a JSON object of its columns. All of them are published at once, or none is.
    """
    source = LoadSource(format_ or format_of(paths[0]), schema, header, infer, delimiter, null, multiline)
    for option, text in (("--tag", tag), ("--node", node)):
        if text is not None:
            Template.parsed(text, option)  # before anything is started
    address = options.address()
    with options.session("load") as spark:
        count = run(
            spark,
            paths,
            topic,
            address=address,
            source=source,
            tag=tag,
            node=node,
            order_by=order_by,
            keep_nulls=keep_nulls,
            job_id=job_id,
        )
    print_line(f"{topic}: {count:,} records")
