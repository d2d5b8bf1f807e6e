"""`topics router ls|show|create|set|rm` (`docs/spec/api.md` section 7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from topics.cli.app import Command, CommandOptions, client_options, complete_routers, complete_topics, connect, examples
from topics.cli.failures import EXIT_NOT_FOUND, CommandFailure, for_each
from topics.cli.output import confirm, count, json_results, print_facts, print_json, print_line, printable
from topics.cli.topic_commands import filter_text, print_routers

if TYPE_CHECKING:
    from topics.client.results import RouterState

name_argument: Final = click.argument("name", metavar="ROUTER", shell_complete=complete_routers)


@click.group(epilog=examples("topics router create eu orders orders-eu --tag eu", "topics router ls --source orders"))
@client_options
def router() -> None:
    """Routers: copy new records of one topic into another."""


@router.command(epilog=examples("topics router ls", "topics router ls --dest orders-eu --json"))
@click.option("--prefix", default="", metavar="TEXT", help="Only routers whose names begin with this.")
@click.option("--source", metavar="TOPIC", shell_complete=complete_topics, help="Only routers from this topic.")
@click.option("--dest", metavar="TOPIC", shell_complete=complete_topics, help="Only routers to this topic.")
@client_options
@click.pass_obj
def ls(options: CommandOptions, prefix: str, source: str | None, dest: str | None) -> None:
    """List routers, in the order of names."""
    with connect(options) as client:
        found = list(client.all_routers(prefix=prefix, source=source, dest=dest))
    if options.as_json:
        print_json({"routers": found})
    else:
        print_routers(found)


@router.command(epilog=examples("topics router show eu"))
@name_argument
@client_options
@click.pass_obj
def show(options: CommandOptions, name: str) -> None:
    """Show a router, how far it is and what it has copied."""
    with connect(options) as client:
        found = client.router(name)
    if options.as_json:
        print_json(found)
    else:
        print_facts(_facts(found))


def _facts(found: RouterState) -> Iterator[tuple[str, str]]:
    yield "router", found.router
    yield "source", found.source
    yield "dest", found.dest
    yield "filter", filter_text(found.filter)
    yield "guarantee", found.guarantee
    yield "from", found.from_
    for field in ("preserve_node", "preserve_tag", "create_dest", "allow_cycle"):
        yield field, "yes" if getattr(found, field) else "no"
    yield "forwarded", count(found.forwarded_total)
    yield "cursor", str(found.cursor_seq)
    yield "lag", count(found.lag)


def _settings(command: Command) -> Command:
    """Add the options that `create` and `set` have. An option that is not given is None."""
    for decorate in reversed(
        (
            click.option("--tag", help="Copy records with this tag only."),
            click.option("--tag-prefix", metavar="TEXT", help="Copy records with tags that begin with this only."),
            click.option("--no-filter", is_flag=True, help="Copy all records."),
            click.option("--preserve-node/--no-preserve-node", default=None, help="Copies have the node.  [yes]"),
            click.option("--preserve-tag/--no-preserve-tag", default=None, help="Copies have the tag.  [yes]"),
            click.option("--create-dest/--no-create-dest", default=None, help="Create a missing dest.  [yes]"),
            click.option("--allow-cycle/--no-allow-cycle", default=None, help="The router may close a cycle.  [no]"),
            click.option(
                "--guarantee",
                type=click.Choice(["at_least_once", "exactly_once"]),
                help="exactly_once: where several routers lead to the dest, it takes each record once. A single one "
                "copies nothing twice with either value.  [at_least_once]",
            ),
        )
    ):
        command = decorate(command)
    return command


def _said(tag: str | None, tag_prefix: str | None, no_filter: bool, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given, as the interface takes them."""
    said = {field: value for field, value in settings.items() if value is not None}
    if (tag is not None) + (tag_prefix is not None) + no_filter > 1:
        raise click.UsageError("Only one of --tag, --tag-prefix and --no-filter can be given.")
    if tag is not None:
        said["filter"] = ["tag", "Eq", tag]
    if tag_prefix is not None:
        said["filter"] = ["tag", "Glob", f"{tag_prefix}*"]
    if no_filter:
        said["filter"] = None
    return said


@router.command(
    epilog=examples("topics router create eu orders orders-eu --tag eu", "topics router create all a b --from earliest")
)
@name_argument
@click.argument("source", shell_complete=complete_topics)
@click.argument("dest", shell_complete=complete_topics)
@_settings
@click.option(
    "--from", "from_", type=click.Choice(["tail", "earliest"]), help="Where a new router begins in the source.  [tail]"
)
@client_options
@click.pass_obj
def create(
    options: CommandOptions,
    /,
    name: str,
    source: str,
    dest: str,
    tag: str | None,
    tag_prefix: str | None,
    no_filter: bool,
    **settings: Any,
) -> None:
    """Create a router from SOURCE to DEST. One that is there already takes the settings that are given."""
    said = _said(tag, tag_prefix, no_filter, settings)
    with connect(options) as client:
        done = client.create_router(name, source, dest, **said)
    if options.as_json:
        print_json(done)
    else:
        what = "created" if done.created else "configured"
        print_line(printable(f"{done.router}: {what}, {done.source} to {done.dest}"))


@router.command("set", epilog=examples("topics router set eu --tag-prefix eu-", "topics router set eu --no-filter"))
@name_argument
@_settings
@client_options
@click.pass_obj
def set_(
    options: CommandOptions, /, name: str, tag: str | None, tag_prefix: str | None, no_filter: bool, **settings: Any
) -> None:
    """Change the settings of an existing router. Others stay, and its source and dest cannot change."""
    said = _said(tag, tag_prefix, no_filter, settings)
    if not said:
        raise click.UsageError("There is nothing to set: name at least one setting.")
    with connect(options) as client:
        done = client.update_router(name, **said)
    if options.as_json:
        print_json(done)
    else:
        print_line(printable(f"{done.router}: configured, {done.source} to {done.dest}"))


@router.command(epilog=examples("topics router rm eu"))
@click.argument("names", nargs=-1, required=True, metavar="ROUTER...", shell_complete=complete_routers)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@client_options
@click.pass_obj
def rm(options: CommandOptions, names: tuple[str, ...], yes: bool) -> None:
    """Delete routers; the copies stay.

    On a terminal it asks first. A missing router is a failure (exit code 3).
    """
    confirm(f"Delete {'router' if len(names) == 1 else 'routers'} {', '.join(names)}?", yes=yes)
    with connect(options) as client, json_results(as_json=options.as_json, many=len(names) > 1) as removed:

        def one(name: str) -> None:
            done = client.delete_router(name)
            removed.append(done)
            if not done.deleted:
                raise CommandFailure(f"there is no router {name!r}", EXIT_NOT_FOUND)
            if not options.as_json:
                print_line(f"{printable(name)}: deleted")

        for_each(names, one)
