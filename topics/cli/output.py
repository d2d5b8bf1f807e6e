"""The output of commands: tables, JSON documents, NDJSON lines, figures for people, progress bars.

On a terminal a table is drawn by rich, which is loaded only then; anywhere else it is aligned text. Nothing that comes
from a topic reaches a terminal with control characters in it (`printable`). Results go to stdout, progress and
complaints to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import click
import msgspec

# C0, DEL and C1, which a terminal may act upon; line and paragraph separators; marks that change the direction of text,
# and with it what a line seems to say.
_UNPRINTABLE: Final = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for codes in (range(32), range(127, 160), range(0x2028, 0x202F), range(0x2066, 0x206A), range(0xD800, 0xE000))
    for code in codes
}

_SIZES: Final = ("kB", "MB", "GB", "TB", "PB")
_DURATIONS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))


def printable(text: str) -> str:
    """`text` in one line, with characters that a terminal would act upon written out (`\\x1b`)."""
    return text.translate(_UNPRINTABLE)


def on_terminal() -> bool:
    """Return True if stdout is a terminal, so that a person reads the results."""
    return sys.stdout.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation, unless `yes` is set or nobody can be asked (stdin or stderr is no terminal). Exits with 1
    if the answer is no."""
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if not click.confirm(printable(question), err=True):
        raise click.ClickException("nothing was done")


# ----------------------------------------------------------------- documents and lines


def print_json(document: Any) -> None:
    """Print one JSON document, indented on a terminal: a result of the client, or a value that JSON can express."""
    encoded = msgspec.json.encode(document)
    if on_terminal():
        encoded = msgspec.json.format(encoded, indent=2)
    write_line(encoded)


def print_ndjson(document: Any) -> None:
    """Print one line of a stream as JSON, never indented, and flush it."""
    write_line(msgspec.json.encode(document))


def write_line(line: bytes, *, flush: bool = True) -> None:
    """Write the bytes of `line` and LF to stdout. Without `flush` they may stay in the buffer for a while."""
    out = sys.stdout.buffer
    out.write(line)
    out.write(b"\n")
    if flush:
        out.flush()


def print_line(text: str) -> None:
    """Print a line of text. The caller passes text that comes from a topic or a user through `printable`."""
    click.echo(text)


# ----------------------------------------------------------------- tables


class Column(NamedTuple):
    """A column of a table: its title, and whether its cells are numbers, which are aligned to the right."""

    title: str
    right: bool = False


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with a line of titles. All rows are kept in memory, because they decide the widths."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if on_terminal():
        _draw(columns, cells)
        return
    widths = [max(len(column.title), *(len(row[i]) for row in cells), 0) for i, column in enumerate(columns)]
    for row in [[column.title for column in columns], *cells]:
        aligned = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        write_line("  ".join(aligned).rstrip().encode(), flush=False)
    sys.stdout.flush()


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair a line."""
    pairs = [(name, printable(value)) for name, value in facts]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        print_line(f"{name.ljust(width)}  {value}".rstrip())


def _draw(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    Console(file=sys.stdout, highlight=False).print(table)


# ----------------------------------------------------------------- figures for people


def count(number: float) -> str:
    """A number as `12,345`."""
    return f"{number:,}"


def size(number: float) -> str:
    """Bytes as `999 B`, `1.5 kB`, `20.0 MB`: powers of 1000, as disks are sold."""
    if number < 1000:
        return f"{number:.0f} B"
    power = 0
    while number >= 999.95 and power < len(_SIZES):
        number /= 1000
        power += 1
    return f"{number:,.1f} {_SIZES[power - 1]}"


def duration(ms: int) -> str:
    """Milliseconds as `7d`, `1h30m`, `250ms`: as `topics.cli.values.parse_duration` takes it, and without loss."""
    parts = []
    for unit, scale in _DURATIONS:
        if ms >= scale:
            parts.append(f"{ms // scale}{unit}")
            ms %= scale
    if ms or not parts:
        parts.append(f"{ms}ms")
    return "".join(parts)


def moment(ms: int | None) -> str:
    """Milliseconds of the epoch as `2026-11-21 12:00:00.000` in UTC; `-` for never."""
    if not ms:
        return "-"
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(ms)
    return at.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


# ----------------------------------------------------------------- progress


class ProgressBar:
    """The progress of long work. This class draws nothing, for when nobody watches."""

    def advance(self, amount: float = 1) -> None:
        """Note that `amount` more is done, in the unit of the total."""

    def say(self, text: str) -> None:
        """Set the text in front of the bar."""


@contextmanager
def json_results(*, as_json: bool, many: bool) -> Iterator[list[Any]]:
    """A list for the results of a command. At the end of the block, also after an exception, `as_json` prints them as
    one document: an array if the command was given `many` names, else the result. An empty list prints nothing."""
    results: list[Any] = []
    try:
        yield results
    finally:
        if as_json and results:
            print_json(results if many else results[0])


@contextmanager
def progress(what: str, *, total: float | None = None, unit: str = "records") -> Iterator[ProgressBar]:
    """Show a bar on stderr while the block runs, if stderr is a terminal. `unit` may be `bytes`, which are shown as
    sizes. Without a `total` it shows the amount that is done and the rate."""
    if not sys.stderr.isatty():
        yield ProgressBar()
        return
    # Imported here as rich takes longer to import than most commands take.
    from rich import progress as rich  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    figure: Callable[[float], str] = size if unit == "bytes" else lambda done: f"{done:,.0f}"
    suffix = "" if unit == "bytes" else f" {unit}"

    class AmountColumn(rich.ProgressColumn):
        def render(self, task: rich.Task) -> Text:
            of = "" if task.total is None else f"/{figure(task.total)}"
            speed = "" if task.speed is None else f"  {figure(task.speed)}{suffix}/s"
            return Text(f"{figure(task.completed)}{of}{suffix}{speed}")

    shown = [rich.TextColumn("{task.description}", markup=False), rich.BarColumn(), AmountColumn()]
    if total is not None:
        shown.append(rich.TimeRemainingColumn())
    # Lines on the same terminal go above the bar; those for a file or a pipe stay what they are.
    drawn = rich.Progress(
        *shown, console=Console(stderr=True), transient=True, redirect_stdout=on_terminal(), redirect_stderr=True
    )
    with drawn:
        task = drawn.add_task(what, total=total)

        class TerminalProgressBar(ProgressBar):
            def advance(self, amount: float = 1) -> None:
                drawn.advance(task, amount)

            def say(self, text: str) -> None:
                drawn.update(task, description=printable(text))

        yield TerminalProgressBar()
