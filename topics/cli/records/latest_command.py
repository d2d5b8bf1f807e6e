"""`topics latest`: the newest records of tags, and with `--follow` their changes."""

from __future__ import annotations

import click

from topics.cli.app import CommandOptions, client_options, complete_topics, connect, examples
from topics.cli.output import on_terminal
from topics.cli.read_commands import style_of


@click.command(
    epilog=examples(
        "topics latest settings checkout.retries",
        "topics latest settings --prefix checkout.",
        "topics latest prices --json | jq -r '[.\"$tag\", .data] | @tsv'",
        "topics latest flags --follow",
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@click.argument("tag", required=False)
@click.option("--prefix", metavar="PREFIX", help="Only tags that begin with this.")
@click.option("--follow", "-f", is_flag=True, help="Go on with the changes, until Ctrl-C.")
@click.option("--data-only", is_flag=True, help="Print only the data of each record.")
@client_options
@click.pass_obj
def latest(
    options: CommandOptions, topic: str, tag: str | None, prefix: str | None, follow: bool, data_only: bool
) -> None:
    """Print the newest record of a tag, or of every tag in order.

    A line each, as `topics read` prints records. Records whose data is null are left out: they stand for tags that were
    removed. If a tag has no record, or such a one, the command fails (exit code 3). With --follow every further record
    is printed as it comes, also those whose data is null.
    """
    if tag is not None and (prefix is not None or follow):
        raise click.UsageError("A tag goes neither with --prefix nor with --follow.")
    from topics.cli.records.record_lines import printer  # noqa: PLC0415
    from topics.client.results import Record, Tombstone  # noqa: PLC0415

    show = printer(style_of(options, data_only=data_only), named=False, prompt=follow or on_terminal())
    with connect(options) as client:
        if tag is not None:
            show(client.latest(topic, tag).record)
            return
        for value in (client.follow_table if follow else client.all_latest)(topic, prefix or ""):
            if isinstance(value, Record | Tombstone):
                show(value)
