"""Looking at a directory without a daemon: common options, opening it, progress, and quiet logs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

from topics.cli.app import Command, json_option
from topics.cli.failures import UsageRefusal

if TYPE_CHECKING:
    from topics.storage.files.fs import Fs
    from topics.storage.files.progress import Progress


def directory_options(command: Command) -> Command:
    """Add the argument and the options that all commands on a directory have."""
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


def open_directory(directory: str, *, in_use: bool) -> Fs:
    """Return the file system, if the directory is one of ours and may be looked at. Raises UsageRefusal otherwise."""
    from topics.storage.files.fs import OsFs  # noqa: PLC0415

    fs = OsFs()
    if not any(fs.exists(f"{directory}/{name}") for name in ("FORMAT", "wal", "meta")):
        raise UsageRefusal(f"{directory} is no data directory: it has neither FORMAT nor wal nor meta")
    if not in_use:
        refuse_if_in_use(fs, directory, "is in use")
    return fs


def refuse_if_in_use(fs: Fs, directory: str, problem: str) -> None:
    """Raises UsageRefusal if a daemon uses the directory."""
    holder = fs.lock_holder(f"{directory}/LOCK")
    if holder is not None:
        by = holder or "another process"
        raise UsageRefusal(
            f"the data directory {directory} {problem} (lock held by {by}); --in-use looks at it all the same"
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the log of recovery, because the findings and facts have its content."""
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


def times(count: int, one: str, many: str) -> str:
    """A number and its noun."""
    return f"{count:,} {one if count == 1 else many}"
