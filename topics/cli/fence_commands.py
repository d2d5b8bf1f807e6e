"""`topics fence rm` (`docs/spec/consumers.md` section 1). `topics show` lists fences, `topics append` raises them."""

from __future__ import annotations

import click

from topics.cli.app import CommandOptions, client_options, complete_topics, connect, examples
from topics.cli.failures import EXIT_NOT_FOUND, CommandFailure, for_each
from topics.cli.output import confirm, json_results, print_line, printable


@click.group(epilog=examples("topics append orders --fence leader=7 order", "topics fence rm orders leader"))
@client_options
def fence() -> None:
    """Fences: tokens that keep former leaders from writing to a topic."""


@fence.command(epilog=examples("topics fence rm orders leader"))
@click.argument("topic", shell_complete=complete_topics)
@click.argument("names", nargs=-1, required=True, metavar="FENCE...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@client_options
@click.pass_obj
def rm(options: CommandOptions, topic: str, names: tuple[str, ...], yes: bool) -> None:
    """Remove fences of a topic, so that any token holds again.

    On a terminal it asks first. A missing fence is a failure (exit code 3).
    """
    confirm(f"Remove {', '.join(names)}? Clients that a fence kept out can write again.", yes=yes)
    with connect(options) as client, json_results(as_json=options.as_json, many=len(names) > 1) as removed:

        def one(name: str) -> None:
            done = client.delete_fence(topic, name)
            removed.append(done)
            if not done.deleted:
                raise CommandFailure(f"topic {topic!r} has no fence {name!r}", EXIT_NOT_FOUND)
            if not options.as_json:
                print_line(f"{printable(name)}: removed")

        for_each(names, one)
