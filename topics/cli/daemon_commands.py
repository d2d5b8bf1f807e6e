"""`topics key` and `topics clients`: what the caller may do, and who is connected (`docs/spec/api.md` sections 11 and
12)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from topics.cli.app import CommandOptions, client_options, connect, examples
from topics.cli.output import Column, count, duration, print_facts, print_json, print_line, print_table, printable, size

if TYPE_CHECKING:
    from topics.client.daemon_results import ClientConnection, KeyUsage

MAX_SHOWN: Final = 10_000
"""Connections that are listed; a daemon may have more."""


@click.command(epilog=examples("topics key", "topics key --json | jq .scopes"))
@client_options
@click.pass_obj
def key(options: CommandOptions) -> None:
    """Show what this key may do: its scopes, and the names that it covers."""
    with connect(options) as client:
        found = client.key()
    if options.as_json:
        print_json(found)
        return
    names = ", ".join(f"{prefix}*" for prefix in found.prefixes) or "all"
    print_facts(
        [
            ("key", found.key if found.has_keys else "none: this daemon has no keys"),
            ("may", ", ".join(found.scopes)),
            ("names", names),
        ]
    )


@click.command(epilog=examples("topics clients", "topics clients --json | jq '.connections[].peer'"))
@client_options
@click.pass_obj
def clients(options: CommandOptions) -> None:
    """List open streams, sockets and exports, the furthest behind first, and the use of each key.

    For keys of the scope admin without prefixes.
    """
    with connect(options) as client:
        page = client.connections(page_size=1000)
        found = page.connections
        while page.next_cursor is not None and len(found) < MAX_SHOWN:
            page = client.connections(page_size=1000, cursor=page.next_cursor)
            found += page.connections
    if options.as_json:
        print_json({"connections": found, "keys": page.keys, "limits": page.limits, "total": page.total})
        return
    columns = [Column("kind"), Column("topics"), Column("behind", right=True), Column("waiting", right=True)]
    columns += [Column("since", right=True), Column("peer"), Column("key")]
    print_table(columns, map(_row, sorted(found, key=lambda one: -one.lag)))
    if page.total > len(found):
        print_line(f"{count(page.total - len(found))} more")
    if page.keys:
        print_line("")
        columns = [Column("key"), Column("may"), Column("names")]
        columns += [Column(title, right=True) for title in ("requests", "streams", "sessions")]
        print_table(columns, map(_key_row, page.keys))


def _row(one: ClientConnection) -> list[str]:
    more = one.topics_total - len(one.topics)
    topics = ", ".join(map(printable, one.topics)) + (f" and {count(more)} more" if more else "")
    since = duration(max(int(time.time() * 1000) - one.since, 0) // 1000 * 1000)
    return [one.kind, topics, count(one.lag), size(one.waiting_bytes), since, one.peer, one.key]


def _key_row(one: KeyUsage) -> list[str]:
    names = ", ".join(f"{prefix}*" for prefix in one.prefixes) or "all"
    return [one.key, "+".join(one.scopes), names, count(one.requests), count(one.connections), count(one.sessions)]
