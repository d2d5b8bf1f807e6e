"""`docs/commands.md` out of the commands themselves: `topics guide`, or `python -m topics.cli.guide`, prints it.

Responsible for the page as a whole; what it says about a command is the command's help, options and examples.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Final

import click

from topics.cli import failures
from topics.cli.app import DEFAULT_URL, PROGRAM, cli

HEAD: Final = """# Commands

`topics` (or `python -m topics`) is the daemon and its command line. This page is made from the commands' own
help: `topics guide > docs/commands.md`.

`topics serve` runs the daemon, and so do flags of `serve` without a command (`topics --port 0`) and `python -m topics`
without arguments. All other commands call a running daemon, except `inspect` and `verify`, which read the
directory of a daemon, `completion` and `help`.
"""

SHARED: Final = """## What commands share

These options may stand before the name of a command or after it:
"""

OUTPUT: Final = f"""
| environment | |
|---|---|
| `TOPICS_URL` | the daemon, or several with commas between them; `{DEFAULT_URL}` if it is not set |
| `TOPICS_TOKEN` | the key. No option takes it: command lines are visible to every user of the machine |
| `NO_COLOR` | no colours on a terminal |
| other `TOPICS_...` | settings of `serve`: [operations](operations.md) section 5 |

**Several daemons.** An owner and its standbys are given as `http://a:4000,http://b:4000`. A command finds the owner by
itself. With `--any` it reads from any of them; a standby may be some seconds behind ([replication](replication.md)).

**Output.** Commands print tables on a terminal, and the same as aligned text on a pipe. With `--json` they print one
document, the answer of the daemon. Commands that stream (`read`, `tail`, `top`, `queue work`) print NDJSON with
`--json`, one line for each item; records are NDJSON on a pipe even without it. With several names `--json` gives an
array. Results go to stdout; questions, notes, progress bars and errors go to stderr. An error is a line that begins
with `topics:`.

**Terminals.** On a terminal, control characters in names and data, and characters that change the direction of text,
are escaped (`\\x1b`). Commands that ask before they delete ask on a terminal only, not in scripts.

| exit code | |
|---|---|
| 0 | done; also after Ctrl-C, for commands that end by Ctrl-C only |
| {failures.EXIT_FAILED} | failed; `verify` has found damage |
| {failures.EXIT_REFUSED} | the command line, a file or an environment variable is wrong |
| {failures.EXIT_NOT_FOUND} | not found (404) |
| {failures.EXIT_NOT_ALLOWED} | not allowed: no key, an unknown key, or a key that may not make this call (401, 403) |
| {failures.EXIT_CONFLICT} | a conflict, or a full topic (409, 422) |
| {failures.EXIT_UNAVAILABLE} | the daemon cannot be reached, is not ready, or asks to try again later (429, 503) |
| {failures.EXIT_INTERRUPTED} | interrupted by Ctrl-C |
| {failures.EXIT_PIPE} | the reader of the pipe has ended |

If several names are given, all are tried, and the exit code is that of the first failure.

**Completion.** `topics completion bash|zsh|fish` prints a script that completes commands, options, and, while a
daemon answers, names of topics and routers.
"""


def page() -> str:
    """The whole page, in Markdown."""
    context = click.Context(cli, info_name=PROGRAM, **cli.context_settings)
    shared = [param for param in cli.params if isinstance(param, click.Option) and param.name != "version"]
    parts = [HEAD, _contents(context), SHARED, _options(context, shared), OUTPUT]
    for name, command in _commands(context):
        parts += _sections(click.Context(command, info_name=name, parent=context), {param.name for param in shared})
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def _commands(context: click.Context) -> Iterator[tuple[str, click.Command]]:
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            yield name, command


def _contents(context: click.Context) -> str:
    rows = [f"| [`{name}`](#{PROGRAM}-{name}) | {_short(command)} |" for name, command in _commands(context)]
    return "\n".join(["| command | |", "|---|---|", *rows])


def _short(command: click.Command) -> str:
    return command.get_short_help_str(limit=200)


def _sections(context: click.Context, shared: set[str | None]) -> Iterator[str]:
    """A command, and the commands of a group below it."""
    command = context.command
    level = "##" if context.parent is not None and context.parent.parent is None else "###"
    yield f"{level} {context.command_path}"
    pieces = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
    own = [param for param in command.params if isinstance(param, click.Option) and param.name not in shared]
    yield f"    {' '.join([context.command_path, *(['[OPTIONS]'] if own else []), *pieces])}"
    # Click ends what it shows at a form feed, and takes a line that is a backspace as "do not wrap this".
    yield inspect.cleandoc(command.help or "").partition("\f")[0].replace("\b\n", "")
    if command.name == "serve":
        yield "Its options are settings of the daemon: [operations](operations.md) section 5."
    elif own:
        yield _options(context, own)
    if command.epilog:
        examples = [line for line in command.epilog.splitlines() if line.startswith("  ")]
        yield "\n".join(f"    {line.strip()}" for line in examples)
    if isinstance(command, click.Group):
        for name, below in _commands(context):
            yield from _sections(click.Context(below, info_name=name, parent=context), shared)


def _options(context: click.Context, options: list[click.Option]) -> str:
    rows = [row for option in options if not option.hidden and (row := option.get_help_record(context))]
    lines = [f"| `{_cell(names)}` | {_cell(' '.join(about.split()))} |" for names, about in rows]
    return "\n".join(["| option | |", "|---|---|", *lines])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


@click.command(hidden=True)
def guide() -> None:
    """Print the page that documents all commands."""
    click.echo(page(), nl=False)


if __name__ == "__main__":
    guide()
