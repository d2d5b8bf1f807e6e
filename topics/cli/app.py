"""The `topics` command itself: which commands there are, the options they share, and how a command line ends.

A command is loaded when it is named, so that `topics ls` does not pay for what `topics top` needs; the daemon's own
modules are loaded by `serve`, `inspect`, `verify`, `restore` and `bucket` only. Without arguments it prints its help.
What commands do is said in their modules, what failures say in `topics.cli.failures`, how results look in
`topics.cli.output`.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import click
from click.shell_completion import CompletionItem, shell_complete

import topics
from topics.cli import failures
from topics.cli.values import Duration
from topics.cli.withheld_modules import withheld

if TYPE_CHECKING:
    from topics.client import Client, Retry

Command = TypeVar("Command", bound=Callable[..., Any])

PROGRAM: Final = "topics"
COMPLETE_VARIABLE: Final = "_TOPICS_COMPLETE"
"""The variable that a shell sets to ask for completions (`topics.cli.completion`)."""
DEFAULT_URL: Final = "http://127.0.0.1:4000"
MAX_TOKEN_BYTES: Final = 4096

COMMANDS: Final[Mapping[str, str]] = {
    "serve": "topics.cli.serve:serve",
    "ls": "topics.cli.topic_commands:ls",
    "show": "topics.cli.topic_commands:show",
    "create": "topics.cli.topic_commands:create",
    "set": "topics.cli.topic_commands:set_",
    "rm": "topics.cli.topic_commands:rm",
    "append": "topics.cli.records.record_commands:append",
    "transaction": "topics.cli.records.transaction_command:transaction",
    "read": "topics.cli.records.record_commands:read",
    "latest": "topics.cli.records.latest_command:latest",
    "tail": "topics.cli.records.record_commands:tail",
    "delete": "topics.cli.records.record_commands:delete",
    "seal": "topics.cli.topic_commands:seal",
    "evidence": "topics.cli.evidence_commands:evidence",
    "fence": "topics.cli.fence_commands:fence",
    "router": "topics.cli.router_commands:router",
    "consumer": "topics.cli.consumer_commands:consumer",
    "schedule": "topics.cli.schedule_commands:schedule",
    "group": "topics.cli.group_commands:group",
    "queue": "topics.cli.queue_commands:queue",
    "key": "topics.cli.daemon_commands:key",
    "clients": "topics.cli.daemon_commands:clients",
    "metrics": "topics.cli.figures.metrics_command:metrics",
    "top": "topics.cli.figures.top:top",
    "bench": "topics.cli.figures.bench:bench",
    "inspect": "topics.cli.offline.inspect_command:inspect",
    "verify": "topics.cli.offline.verify_command:verify",
    "restore": "topics.cli.bucket_commands:restore",
    "bucket": "topics.cli.bucket_commands:bucket",
    "completion": "topics.cli.completion:completion",
    "guide": "topics.cli.guide:guide",
    "help": "topics.cli.app:help_",
}
"""Every command: where it is, as `module:attribute`, in the order in which they are listed."""


# ----------------------------------------------------------------- options that commands share


@dataclass(slots=True)
class CommandOptions:
    """The values of the options that most commands share. There is one object for a command line, wherever in the line
    the options stand; it is the object of every click context (`@click.pass_obj`)."""

    as_json: bool = False
    url: str | None = None
    any: bool = False
    token_file: str | None = None
    timeout_ms: int = 30_000


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """A callback that stores an option, if it is given, as the attribute `name` of the Options."""

    def callback(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        options = ctx.ensure_object(CommandOptions)
        if value is not None:
            setattr(options, name, value)

    return callback


def json_option(command: Command) -> Command:
    """Add `--json`, for commands that need no daemon. The command looks at `CommandOptions.as_json`."""
    return click.option(
        "--json",
        is_flag=True,
        default=None,
        expose_value=False,
        callback=_keep("as_json"),
        help="Print JSON, for programs: one document, or a line each of what streams.",
    )(command)


def client_options(command: Command) -> Command:
    """Add the options of every command that calls a daemon: `--json`, `--url`, `--any`, `--token-file`, `--timeout`.
    They may stand before the name of the command as well. Must be the last decorator, right above the function."""
    for decorate in (
        click.option(
            "--timeout",
            type=Duration(plain="s", least=1),
            expose_value=False,
            callback=_keep("timeout_ms"),
            metavar="TIME",
            help="How long to wait for an answer.  [30s]",
        ),
        click.option(
            "--token-file",
            type=click.Path(dir_okay=False),
            expose_value=False,
            callback=_keep("token_file"),
            metavar="FILE",
            help="A file with the key; without it, TOPICS_TOKEN.",
        ),
        click.option(
            "--any",
            is_flag=True,
            default=None,
            expose_value=False,
            callback=_keep("any"),
            help="Read from any of several daemons, also a standby, which may be some seconds behind.",
        ),
        click.option(
            "--url",
            expose_value=False,
            callback=_keep("url"),
            metavar="URL,...",
            help=f"The daemon, or an owner and its standbys; without it TOPICS_URL, else {DEFAULT_URL}.",
        ),
        json_option,
    ):
        command = decorate(command)
    return command


def examples(*lines: str) -> str:
    """The epilog of a command: examples, one a line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def complete_topics(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of topics for the shell's completion, from the daemon; none if it does not answer within 0.4 s."""
    try:
        with connect(ctx.ensure_object(CommandOptions), timeout_s=0.4) as client:
            return [topic.topic for topic in client.list(prefix=incomplete).topics]
    except Exception:  # any error: the shell's prompt is no place to report it
        return []


def complete_routers(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """As `complete_topics`, for routers."""
    try:
        with connect(ctx.ensure_object(CommandOptions), timeout_s=0.4) as client:
            return [router.router for router in client.routers(prefix=incomplete).routers]
    except Exception:
        return []


# ----------------------------------------------------------------- the client of a command


def connect(options: CommandOptions, *, retry: Retry | None = None, timeout_s: float | None = None) -> Client:
    """The client of a command; use it as a context manager.

    By default no call is repeated: a person would rather know that the daemon is away than wait. Commands that run for
    long give a `retry`. Exits with 2 if the url, the token or the token's file cannot be used.
    """
    # What httpx loads only because it is there is half of the time that `topics ls` takes: rich, for a command line of
    # its own, and Trio, for asynchronous clients. Who needs such a client on Trio has loaded Trio before.
    with withheld(*(() if "httpcore" in sys.modules else ("httpx._main", "trio"))):
        import httpcore  # noqa: F401, PLC0415
        import httpx  # noqa: F401, PLC0415

        from topics.client.sync import Client  # noqa: PLC0415

    timeout = options.timeout_ms / 1000 if timeout_s is None else timeout_s
    source, urls = _urls(options)
    token = _token(options)
    try:
        return Client(urls, token, timeout=timeout, retry=retry, any=options.any)
    except ValueError as error:
        raise failures.UsageRefusal(f"{source}: {str(error).removeprefix('url: ')}") from None


def _urls(options: CommandOptions) -> tuple[str, list[str]]:
    """Where the daemons were given, and their addresses. Exits with 2 if one cannot be used."""
    source = "--url" if options.url is not None else "TOPICS_URL"
    said = options.url if options.url is not None else os.environ.get("TOPICS_URL") or DEFAULT_URL
    return source, [_checked_url(url.strip(), source) for url in said.split(",")]


def _checked_url(url: str, source: str) -> str:
    """Exits with 2 if a URL cannot be used. `source` is where it was given."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url:
        raise failures.UsageRefusal(f"{source} must be like {DEFAULT_URL}")
    if "@" in parts.netloc:
        raise failures.UsageRefusal(
            f"{source} must not hold a password: a key is taken from TOPICS_TOKEN or --token-file"
        )
    if parts.query or parts.fragment:
        raise failures.UsageRefusal(f"{source} must be like {DEFAULT_URL}, without a query")
    return url


def _token(options: CommandOptions) -> str | None:
    """The key, of which nothing is ever said but where it was looked for."""
    if options.token_file is None:
        source, token = "TOPICS_TOKEN", os.environ.get("TOPICS_TOKEN", "")
    else:
        source = "--token-file"
        try:
            with Path(options.token_file).open("rb") as file:
                content = file.read(MAX_TOKEN_BYTES + 1)
        except OSError as error:
            raise failures.UsageRefusal(f"--token-file {options.token_file}: {error.strerror}") from None
        token = content.decode("utf-8", "replace").strip()
        if not token:
            raise failures.UsageRefusal(f"--token-file {options.token_file}: it is empty")
    if not token.isascii() or not token.isprintable() or " " in token or len(token) > MAX_TOKEN_BYTES:
        raise failures.UsageRefusal(f"{source} does not hold one key: printable ASCII without spaces")
    return token or None


# ----------------------------------------------------------------- the commands


class LazyGroup(click.Group):
    """A group whose commands are loaded when they are named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            # click suggests from the commands that are loaded, and here none is.
            raise click.exceptions.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None


class ServeByDefaultGroup(LazyGroup):
    """Whose command is `serve` when the line begins with one of its flags, so that `topics --port 0` works."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self._are_of_serve(ctx, args):
            args = ["serve", *args]
        return super().parse_args(ctx, args)

    def _are_of_serve(self, ctx: click.Context, args: Sequence[str]) -> bool:
        if not args:
            return False
        own = {name for param in self.get_params(ctx) for name in param.opts}
        return args[0].startswith("-") and args[0].partition("=")[0] not in own

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            from topics.cli.serve import serve  # noqa: PLC0415

            flags = serve.shell_complete(click.Context(serve, info_name="serve", parent=ctx), incomplete)
            found += [flag for flag in flags if flag.value != "--help"]
        return found

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help(ctx, formatter)
        from topics.cli.serve import write_settings  # noqa: PLC0415

        write_settings(formatter)


@click.group(
    cls=ServeByDefaultGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    subcommand_metavar="COMMAND [ARGS]...",
)
@click.version_option(topics.__version__, prog_name=PROGRAM)
@client_options
def cli() -> None:
    """topics: a persistent, append-only log service on one node.

    `topics serve` runs the daemon. The other commands talk to a daemon that runs, except for inspect and verify, which
    look at the directory of one, and for restore and bucket, which read what one has archived.
    """


@click.command("help")
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Show the help of a command."""
    found = ctx.find_root()
    for name in names:
        command = found.command.get_command(found, name) if isinstance(found.command, click.Group) else None
        if command is None:
            known = found.command.list_commands(found) if isinstance(found.command, click.Group) else []
            raise click.exceptions.NoSuchCommand(name, possibilities=known, ctx=found)
        found = click.Context(command, info_name=name, parent=found)
    click.echo(found.get_help())


# ----------------------------------------------------------------- how a command line ends


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line. Returns the exit code. A failure has been printed, in one line."""
    try:
        return _finish(_do(arguments))
    except KeyboardInterrupt:
        return failures.EXIT_INTERRUPTED


def _do(arguments: Sequence[str] | None) -> int:
    # Not click's own `main`, which has its own ways with Ctrl-C and pipes.
    try:
        instruction = os.environ.get(COMPLETE_VARIABLE)
        if instruction:
            return shell_complete(cli, {}, PROGRAM, COMPLETE_VARIABLE, instruction)
        with cli.make_context(PROGRAM, list(sys.argv[1:] if arguments is None else arguments)) as context:
            cli.invoke(context)
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else failures.EXIT_FAILED if ending.code else 0
    except BaseException as error:
        return _ended_by(error)
    return 0


def _ended_by(error: BaseException) -> int:
    """Print why a command has ended. Returns the exit code."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    client_errors = sys.modules.get("topics.client.errors")
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return failures.EXIT_REFUSED
    if isinstance(error, click.ClickException):
        failures.tell(error.format_message())
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(f"Try '{error.ctx.command_path} --help'.", err=True)
        return error.exit_code
    if isinstance(error, failures.CommandFailure):
        failures.tell(str(error))
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return failures.EXIT_INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return failures.EXIT_PIPE
    if client_errors is not None and isinstance(error, client_errors.TopicsError):
        failures.tell(failures.message(error))
        return failures.exit_code(error)
    if isinstance(error, OSError):
        failures.tell(f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}")
        return failures.EXIT_FAILED
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in place)
    failures.tell(f"unexpected {type(error).__name__}: {error}{where}")
    return failures.EXIT_FAILED


def _finish(code: int) -> int:
    """Flush standard output. Returns the exit code: `code`, or if that is 0 and the flush fails, the one for that."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # Else the interpreter tries again at its end, and complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return code or failures.EXIT_PIPE
        if code == 0:
            failures.tell(f"standard output: {error.strerror}")
            return failures.EXIT_FAILED
    return code
