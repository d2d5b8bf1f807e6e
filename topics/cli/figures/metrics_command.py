"""`topics metrics`: what the daemon counts."""

from __future__ import annotations

import re

import click

from topics.cli.app import CommandOptions, client_options, connect, examples
from topics.cli.output import print_json, print_line, printable


@click.command(
    epilog=examples("topics metrics", "topics metrics --grep 'topic_head_seq.*orders'", "topics metrics --json"),
)
@click.option("--grep", metavar="REGEX", help="Only lines (with --json: names) that match this.")
@client_options
@click.pass_obj
def metrics(options: CommandOptions, grep: str | None) -> None:
    """Print the daemon's metrics, in the text format of Prometheus."""
    try:
        wanted = re.compile(grep or "")
    except re.error as error:
        raise click.BadParameter(str(error), param_hint="--grep") from None
    with connect(options) as client:
        if options.as_json:
            found = client.metrics()
            print_json({name: value for name, value in found.items() if wanted.search(name)})
            return
        for line in client.metrics_text().splitlines():
            if wanted.search(line):
                print_line(printable(line))
