"""`topics top`: a live view of a daemon, on a terminal, as plain text, or as lines of JSON.

Responsible for looking at the daemon, for the terminal, and for how it is drawn. Computing figures from two looks is
the business of `topics.cli.figures.snapshots`.
"""

from __future__ import annotations

import itertools
import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from topics.cli.app import CommandOptions, client_options, connect, examples
from topics.cli.figures.snapshots import (
    DaemonObservation,
    LineSelection,
    Outage,
    SortBy,
    TopicObservation,
    TopSnapshot,
    snapshot,
    standings,
    truncated,
)
from topics.cli.output import (
    Column,
    count,
    duration,
    on_terminal,
    print_line,
    print_ndjson,
    print_table,
    printable,
    size,
)
from topics.cli.signal_exceptions import undisturbed, unwinding
from topics.cli.values import Duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from topics.client import Client
    from topics.client.daemon_results import Load

DEFAULT_LIMIT: Final = 20
MAX_LIMIT: Final = 1000
FITS: Final = 0
"""The limit that stands for what a terminal can show."""
MIN_INTERVAL_MS: Final = 200
PATIENCE_S: Final = 10.0
"""How long to wait for an answer, in seconds. Keys are not read meanwhile."""

PAGE: Final = 1000
MAX_PAGES: Final = 5
"""How many pages of the list of topics one look reads, where the metrics leave topics out. Later topics are not
seen."""

TOPIC_COLUMNS: Final = (
    Column("topic"),
    *(
        Column(title, right=True)
        for title in ("records/s", "bytes/s", "records", "bytes", "head", "ready", "in flight")
    ),
)
CONSUMER_COLUMNS: Final = (Column("topic"), Column("consumer"), Column("lag", right=True))
GROUP_COLUMNS: Final = (
    Column("topic"),
    Column("group"),
    *(Column(title, right=True) for title in ("lag", "ready", "in flight")),
)
ROUTER_COLUMNS: Final = (Column("router"), *(Column(title, right=True) for title in ("lag", "copies/s", "copies")))

Pause = Callable[[float], bool]
"""Waits for so many seconds. Returns True if the command is to end."""


@click.command(epilog=examples("topics top", "topics top --prefix logs. --sort bytes", "topics top --json --count 1"))
@click.option(
    "--interval", metavar="TIME", type=Duration(plain="s"), default=2000, help="Time between two snapshots.  [2s]"
)
@click.option("--count", "times", metavar="N", type=click.IntRange(min=1), help="End after N intervals.")
@click.option(
    "--sort",
    type=click.Choice(["rate", "bytes-rate", "records", "bytes", "ready", "name"]),
    default="rate",
    help="Column by which topics are sorted.  [rate]",
)
@click.option("--prefix", metavar="TEXT", default="", help="Only topics whose names begin with this.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(1, MAX_LIMIT),
    help=f"Topics, routers, consumers and groups shown, at most.  [{DEFAULT_LIMIT}; on a terminal what fits]",
)
@client_options
@click.pass_obj
def top(
    options: CommandOptions, interval: int, times: int | None, sort: SortBy, prefix: str, limit: int | None
) -> None:
    """Show what a daemon does: topics with their rates and jobs, routers, consumers and groups with their lag,
    pressure, syncs.

    q or Ctrl-C ends it. Rates are those between two looks, in records and in bytes of their data. Where there is no
    terminal, or with --json, one snapshot is printed after each interval. A daemon that does not answer any more is
    waited for. Of very many topics the first 5000 of the prefix, in the order of their names, are looked at.
    """
    if interval < MIN_INTERVAL_MS:
        raise click.BadParameter(f"must be {MIN_INTERVAL_MS} ms at least", param_hint="--interval")
    live = on_terminal() and not options.as_json and os.environ.get("TERM", "dumb") != "dumb"
    wanted = LineSelection(sort, prefix, limit or (FITS if live else DEFAULT_LIMIT))
    with unwinding(), connect(options, timeout_s=min(options.timeout_ms / 1000, PATIENCE_S)) as client:
        watch = _TopView(client, wanted, interval / 1000, times)
        with suppress(KeyboardInterrupt):
            if live:
                _draw(watch, client.url)
            else:
                for seen in watch.lines(_sleep):
                    if options.as_json:
                        print_ndjson(seen)
                    else:
                        _print(seen, client.url)


# ----------------------------------------------------------------- looking


class _TopView:
    """Looks at a daemon again and again."""

    def __init__(self, client: Client, wanted: LineSelection, interval_s: float, times: int | None) -> None:
        self._client = client
        self._wanted = wanted
        self._interval_s = interval_s
        self._times = times
        self._queues: set[str] = set()

    def lines(self, pause: Pause, *, at_once: bool = False) -> Iterator[TopSnapshot | Outage]:
        """Yield a look after each interval, and before the first one too if `at_once`. Raises every error of the first
        look, and later those that are no outage, such as a key that is not valid any more."""
        from topics.client import ConnectionFailed, ServerError, Throttled  # noqa: PLC0415

        before = self._look()
        if at_once:
            yield self._snapshot(None, before)
        due = time.monotonic()
        for _ in itertools.count() if self._times is None else range(self._times):
            due = max(due + self._interval_s, time.monotonic())
            if pause(due - time.monotonic()):
                return
            try:
                now = self._look()
                seen = self._snapshot(before, now)
            except (ConnectionFailed, ServerError, Throttled) as error:
                yield Outage(ts=_now_ms(), error=error.message)
                continue
            yield seen
            before = now

    def _look(self) -> DaemonObservation:
        version = self._client.health().version
        metrics = self._client.metrics()
        at = time.monotonic()
        topics, complete = standings(metrics, self._wanted.prefix), True
        if truncated(metrics):
            topics, complete = self._listed()
        return DaemonObservation(at, _now_ms(), version, metrics, topics, complete, self._load())

    def _load(self) -> Load | None:
        """Return the daemon's rates and latencies; None if the daemon is older than that call."""
        from topics.client import NotFound  # noqa: PLC0415

        try:
            return self._client.figures()
        except NotFound:
            return None

    def _listed(self) -> tuple[dict[str, TopicObservation], bool]:
        """The topics of the first pages of the list, and whether these are all topics."""
        found: dict[str, TopicObservation] = {}
        cursor: str | None = None
        self._queues.clear()
        for _ in range(MAX_PAGES):
            page = self._client.list(prefix=self._wanted.prefix, page_size=PAGE, cursor=cursor)
            for topic in page.topics:
                found[topic.topic] = TopicObservation(topic.head_seq, topic.count, topic.bytes)
                if topic.type == "queue":
                    self._queues.add(topic.topic)
            cursor = page.next_cursor
            if cursor is None:
                return found, True
        return found, False

    def _snapshot(self, before: DaemonObservation | None, now: DaemonObservation) -> TopSnapshot:
        """With the jobs of the queues that are shown and that the metrics do not tell of."""
        from topics.client import NotFound  # noqa: PLC0415

        limit = shutil.get_terminal_size().lines if self._wanted.limit == FITS else self._wanted.limit
        seen = snapshot(before, now, replace(self._wanted, limit=limit))
        for line in seen.topics:
            if line.ready is None and line.topic in self._queues:
                with suppress(NotFound):
                    jobs = self._client.state(line.topic, touch=False).queue
                    if jobs is not None:
                        line.ready, line.in_flight = jobs.ready, jobs.in_flight
        return seen


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


# ----------------------------------------------------------------- what is said


def _header(seen: TopSnapshot, url: str) -> list[str]:
    """Three lines."""
    ready = "ready" if seen.ready else f"NOT READY, {seen.replayed:.0%} replayed"
    p99 = "-" if seen.fsync_p99_us is None else f"{seen.fsync_p99_us / 1000:g} ms"
    topics = count(seen.topics_total)
    if not seen.complete:
        topics += f" (looked at {count(seen.topics_seen)})"
    written = "-" if seen.wal_bytes_per_s is None else f"{size(seen.wal_bytes_per_s)}/s"
    return [
        f"topics {seen.version} at {url}, up {_uptime(seen.uptime_ms)}, {ready}"
        + (", READ-ONLY" if seen.read_only else ""),
        f"pressure {seen.pressure:.0%}   connections {count(seen.connections)}, {count(seen.watchers)} of them streams"
        f"   sync p99 {p99}   WAL {written}",
        f"{_records(seen)}   topics {topics}   routers {count(seen.routers_total)}",
    ]


def _records(seen: TopSnapshot) -> str:
    """Records a second, in the words of the console, and how long their appends and deliveries take."""
    if seen.records_in_per_s is None:
        return f"{_rate(seen.records_per_s)} records/s"
    text = f"in {_rate(seen.records_in_per_s)} records/s, out {_rate(seen.records_out_per_s)} records/s"
    for name, p50, p99 in (
        ("append", seen.append_p50_ms, seen.append_p99_ms),
        ("delivery", seen.delivery_p50_ms, seen.delivery_p99_ms),
    ):
        if p50 is not None and p99 is not None:
            text += f"   {name} p50 {p50:.1f} ms, p99 {p99:.1f} ms"
    return text


def _uptime(ms: int) -> str:
    """To the second, from a day on to the minute."""
    return duration(ms // 60_000 * 60_000 if ms >= 86_400_000 else ms // 1000 * 1000) if ms >= 1000 else "0s"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def _topic_rows(seen: TopSnapshot) -> list[tuple[str, ...]]:
    return [
        (
            line.topic,
            _rate(line.records_per_s),
            "-" if line.bytes_per_s is None else size(line.bytes_per_s),
            count(line.records),
            size(line.bytes),
            count(line.head_seq),
            "" if line.ready is None else count(line.ready),
            "" if line.in_flight is None else count(line.in_flight),
        )
        for line in seen.topics
    ]


def _router_rows(seen: TopSnapshot) -> list[tuple[str, ...]]:
    return [(line.router, count(line.lag), _rate(line.copies_per_s), count(line.copies)) for line in seen.routers]


def _consumer_rows(seen: TopSnapshot) -> list[tuple[str, ...]]:
    return [(line.topic, line.consumer, count(line.lag)) for line in seen.consumers]


def _group_rows(seen: TopSnapshot) -> list[tuple[str, ...]]:
    return [(line.topic, line.group, count(line.lag), count(line.ready), count(line.in_flight)) for line in seen.groups]


def _tables(seen: TopSnapshot) -> list[tuple[Sequence[Column], list[tuple[str, ...]]]]:
    """Return the tables below that of the topics, those without rows left out."""
    tables = [
        (ROUTER_COLUMNS, _router_rows(seen)),
        (CONSUMER_COLUMNS, _consumer_rows(seen)),
        (GROUP_COLUMNS, _group_rows(seen)),
    ]
    return [(columns, rows) for columns, rows in tables if rows]


def _print(seen: TopSnapshot | Outage, url: str) -> None:
    """One snapshot as plain text, with an empty line after it."""
    if isinstance(seen, Outage):
        print_line(f"no answer: {printable(seen.error)}\n")
        sys.stdout.flush()
        return
    for line in _header(seen, url):
        print_line(line)
    print_line("")
    print_table(TOPIC_COLUMNS, _topic_rows(seen))
    for columns, rows in _tables(seen):
        print_line("")
        print_table(columns, rows)
    print_line("")
    sys.stdout.flush()


# ----------------------------------------------------------------- the terminal


def _draw(watch: _TopView, url: str) -> None:
    """Draw on a screen of its own until q, Ctrl-C or the last interval. However it ends, the terminal is as it was."""
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    console = Console(highlight=False)
    last: TopSnapshot | None = None
    away_since = 0.0
    with ExitStack() as at_the_end, _keys() as pause:
        lines = watch.lines(pause, at_once=True)
        first = next(lines)  # where there is no daemon, there is nothing to draw
        with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as screen:
            try:
                for seen in itertools.chain([first], lines):
                    trouble = ""
                    if isinstance(seen, TopSnapshot):
                        last, away_since = seen, 0.0
                    else:
                        away_since = away_since or time.monotonic()
                        trouble = f"no answer for {time.monotonic() - away_since:.0f} s: {printable(seen.error)}"
                    assert last is not None
                    screen.update(_picture(last, trouble, url, console), refresh=True)
            finally:
                at_the_end.enter_context(undisturbed())


def _picture(seen: TopSnapshot, trouble: str, url: str, console: Console) -> RenderableType:
    """Return as many lines as fit on the screen. With `trouble`, which comes first, the figures are old."""
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    style = "dim" if trouble else ""
    first, *others = _header(seen, url)
    alarmed = seen.read_only or not seen.ready
    header = [
        Text(first, "bold red" if alarmed and not trouble else style or "bold"),
        *(Text(x, style) for x in others),
    ]
    if trouble:
        header.insert(0, Text(trouble, "bold red"))
    rows = max(console.size.height - len(header) - 2, 1)  # an empty line, and the titles
    tables = []
    for columns, all_rows in _tables(seen):
        shown = all_rows[: max(rows // 4, 1)]
        rows = max(rows - len(shown) - 2, 1)
        tables.append((columns, shown))
    parts: list[RenderableType] = [*header, Text(), _table(TOPIC_COLUMNS, _topic_rows(seen)[:rows], style)]
    for columns, shown in tables:
        parts += [Text(), _table(columns, shown, style)]
    for line in header:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*parts)


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]], style: str) -> Table:
    """A table with one line for each row, in a terminal of any width."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", style=style)
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(Text(printable(cell), style) for cell in row))
    return table


@contextmanager
def _keys() -> Iterator[Pause]:
    """A pause that q ends, and the end of the keyboard. Nothing that is typed is shown, and Ctrl-Z does nothing, as it
    would leave the screen behind."""
    import termios  # noqa: PLC0415
    import tty  # noqa: PLC0415

    if not sys.stdin.isatty():
        yield _sleep
        return
    keyboard = sys.stdin.fileno()

    def pause(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while select.select([keyboard], [], [], max(until - time.monotonic(), 0))[0]:
            typed = os.read(keyboard, 100)
            if not typed or b"q" in typed.lower():
                return True
        return False

    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        quiet = termios.tcgetattr(keyboard)
        quiet[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(keyboard, termios.TCSADRAIN, quiet)
        yield pause
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(keyboard, termios.TCSAFLUSH, before)
