"""The command line of `scripts/bench`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks import (
    append,
    bulk,
    checkpoint,
    cold,
    diff,
    guardrails,
    memory,
    pressure,
    producer,
    queue,
    reclaim,
    recovery,
    routers,
    spark,
    watch,
    ws,
)
from benchmarks.bench import Bench
from benchmarks.figures import as_json, print_table
from benchmarks.machine import machine_facts

BENCHMARKS = {
    "append": append.run,
    "diff": diff.run,
    "recovery": recovery.run,
    "memory": memory.run,
    "checkpoint": checkpoint.run,
    "reclaim": reclaim.run,
    "cold": cold.run,
    "watch": watch.run,
    "ws": ws.run,
    "pressure": pressure.run,
    "routers": routers.run,
    "queue": queue.run,
    "guardrails": guardrails.run,
    "producer": producer.run,
    "bulk": bulk.run,
    "spark": spark.run,
}
DIRECTORY = Path(__file__).resolve().parents[2] / "bench-results"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)))
@click.option("--quick", is_flag=True, help="Smaller and shorter: does it work, roughly how fast.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures there.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DIRECTORY,
    help="Where scratch data directories are made; a real disk, or syncs mean nothing.  [default: bench-results]",
)
def main(names: tuple[str, ...], quick: bool, json_path: Path | None, directory: Path) -> None:
    """Measure the daemon on this machine; all benchmarks, or those that are named."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # nothing to fit into: no line of a table is broken
    directory.mkdir(parents=True, exist_ok=True)
    bench = Bench(directory, console, quick)
    facts = machine_facts(directory)
    for name, value in facts.items():
        console.print(f"{name}: {value}", highlight=False)
    if facts["filesystem"] in {"tmpfs", "ramfs"}:
        raise click.ClickException(f"{directory} is not on a disk; use --dir")
    results: dict[str, Any] = {}
    for name in names or BENCHMARKS:
        began = time.monotonic()
        figures = BENCHMARKS[name](bench)
        print_table(console, f"{name} ({time.monotonic() - began:.0f} s{', quick' if quick else ''})", figures)
        results[name] = as_json(figures)
    if json_path is not None:
        document = {"machine": facts, "quick": quick, "benchmarks": results}
        json_path.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
