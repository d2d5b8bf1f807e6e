"""The command line of `scripts/bench`: measure, compare, and write the document."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from benchmarks import compare, report
from benchmarks.bench import Part
from benchmarks.harness import Harness, revision_of_checkout
from benchmarks.machine import machine_facts, versions
from benchmarks.parts import PARTS
from benchmarks.results import Document, Unusable, load, merged, save

REPOSITORY = Path(__file__).resolve().parents[2]
DIRECTORY = REPOSITORY / "bench-results"
PAGE = REPOSITORY / "docs" / "performance.md"

FilePath = click.Path(dir_okay=False, path_type=Path)
ExistingFile = click.Path(exists=True, dir_okay=False, path_type=Path)


class Commands(click.Group):
    """`measure`, unless another one is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args and args[0] in self.commands else ["measure", *args])


@click.group(cls=Commands)
def main() -> None:
    """Measure the daemon on this machine."""


@main.command()
@click.argument("names", nargs=-1, type=click.Choice(list(PARTS)), metavar="[PART]...")
@click.option("--list", "list_", is_flag=True, help="List the parts, and how long they take.")
@click.option("--quick", is_flag=True, help="Smaller and shorter runs: rough figures only.")
@click.option("--json", "json_path", type=FilePath, help="Write all figures to this file, after each part.")
@click.option("--add", is_flag=True, help="Keep the figures that the file already has, if it is of this machine.")
@click.option("--compare", "old_path", type=ExistingFile, help="Show what has changed since the run in this file.")
@click.option(
    "--fail-over", type=float, metavar="PERCENT", help="With --compare: exit with 1 if a figure is worse by this much."
)
@click.option("--report", "page", is_flag=True, help="Write docs/performance.md at the end.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DIRECTORY,
    help="Directory for scratch data, on a real disk (else syncs mean nothing).  [default: bench-results]",
)
def measure(
    names: tuple[str, ...],
    list_: bool,
    quick: bool,
    json_path: Path | None,
    add: bool,
    old_path: Path | None,
    fail_over: float | None,
    page: bool,
    directory: Path,
) -> None:
    """Measure all parts, or those that are named.

    Other commands are `compare OLD NEW` and `report --from FILE`; each has a --help of its own.
    """
    console = _console()
    parts = [PARTS[name] for name in names or PARTS]
    if list_:
        _list(console, parts)
        return
    if fail_over is not None and old_path is None:
        raise click.UsageError("--fail-over needs --compare")
    if add and json_path is None:
        raise click.UsageError("--add needs --json")
    old = None if old_path is None else _load(old_path)  # now: it may be the file that is written to
    document = _begin(console, directory, quick, json_path if add else None)

    def keep(whole: Document) -> None:
        if json_path is not None:
            save(whole, json_path)

    passed = Harness(console, directory, quick, revision_of_checkout(), keep).run(parts, document)
    if page:
        report.write(document, PAGE)
        console.print(f"written: {PAGE.relative_to(REPOSITORY)}", highlight=False)
    if old is not None:
        passed &= compare.show(console, old, document, fail_over)
    if not passed:
        raise SystemExit(1)


@main.command("compare")
@click.argument("old", type=ExistingFile)
@click.argument("new", type=ExistingFile)
@click.option("--fail-over", type=float, metavar="PERCENT", help="Exit with 1 if a figure is worse by this much.")
def compare_command(old: Path, new: Path, fail_over: float | None) -> None:
    """What has changed between two runs, measured or not."""
    if not compare.show(_console(), _load(old), _load(new), fail_over):
        raise SystemExit(1)


@main.command("report")
@click.option("--from", "source", type=ExistingFile, required=True, help="A file that `--json` has written.")
@click.option("--out", type=FilePath, default=PAGE, help="The page to write.  [default: docs/performance.md]")
def report_command(source: Path, out: Path) -> None:
    """Write the document about a run that was made before."""
    report.write(_load(source), out)


def _console() -> Console:
    console = Console()
    # Where there is nothing to fit into, no line of a table is broken.
    return console if console.is_terminal else Console(width=200)


def _list(console: Console, parts: list[Part]) -> None:
    for part in parts:
        console.print(f"{part.name:<11} {part.minutes:4.1f} min  {part.sentence}", highlight=False, soft_wrap=True)
    console.print(f"{'together':<11} {sum(part.minutes for part in parts):4.1f} min", highlight=False)


def _load(path: Path) -> Document:
    try:
        return load(path)
    except Unusable as error:
        raise click.ClickException(str(error)) from None


def _begin(console: Console, directory: Path, quick: bool, added_to: Path | None) -> Document:
    """The facts, and what is there already."""
    directory.mkdir(parents=True, exist_ok=True)
    document = Document(machine=machine_facts(directory), versions=versions(), quick=quick)
    for name, value in {**document.machine, **document.versions}.items():
        console.print(f"{name}: {value}", highlight=False)
    if document.machine["filesystem"] in {"tmpfs", "ramfs"}:
        raise click.ClickException(f"{directory} is not on a disk; use --dir")
    if added_to is None or not added_to.exists():
        return document
    try:
        return merged(_load(added_to), document)
    except Unusable as error:
        raise click.ClickException(f"{added_to} cannot be added to: {error}") from None


if __name__ == "__main__":
    main()
