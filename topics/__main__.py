"""The command line: `python -m topics [serve] [--flag value ...]`, and the offline commands (`topics.offline`).

Every flag of `serve` is a setting of `topics.config` and wins over its environment variable. Exit codes: what the
daemon returns, and 2 for a command line or configuration that is refused.
"""

from __future__ import annotations

import itertools
import os
import sys
import textwrap
from typing import Any

import click

import topics
from topics import offline
from topics.config import SETTINGS, ConfigError, Setting, load_settings
from topics.logs import setup_logging

HELP_WIDTH = 100


class SettingOption(click.Option):
    """A flag made from a setting. Values stay text: the configuration checks all of them together."""

    def __init__(self, setting: Setting) -> None:
        boolean = setting.allowed == "one of 1, 0, true, false"
        # A boolean may be given without a value: `--flag` is `--flag=1`.
        bare: dict[str, Any] = {"is_flag": False, "flag_value": "1"} if boolean else {}
        super().__init__([setting.flag, setting.name], type=str, metavar="VALUE", **bare)


def _settings_page() -> str:
    """Every setting with its flag, variable, default and meaning, by group, in the order of declaration."""
    lines: list[str] = []
    for group, settings in itertools.groupby(SETTINGS.values(), key=lambda setting: setting.group):
        lines.append(f"\n{group}:")
        for setting in settings:
            default = setting.default or "not set"
            flag = f"{setting.flag}, " if not setting.secret else ""
            lines.append(f"  {flag}{setting.variable}  [{default}]")
            about = f"{setting.help} Must be {setting.allowed}."
            lines.extend(textwrap.wrap(about, HELP_WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6))
    return "\n".join(lines)


class DefaultToServe(click.Group):
    """A group whose command is `serve` when none is named, so that `python -m topics --port 0` works."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in {"--help", "-h", "--version"}):
            args = ["serve", *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help(ctx, formatter)
        _write_settings(formatter)


class ServeCommand(click.Command):
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_settings(formatter)


def _write_settings(formatter: click.HelpFormatter) -> None:
    formatter.write_paragraph()
    formatter.write("Settings: flag, environment variable [default]. A flag wins over its variable.\n")
    formatter.write(_settings_page() + "\n")


@click.group(cls=DefaultToServe, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(topics.__version__, prog_name="topics")
def cli() -> None:
    """topics: a persistent, append-only log service on one node.

    Without a command it serves.
    """


def _serve(**flags: str | None) -> None:
    """Run the daemon in the foreground until SIGTERM or SIGINT."""
    try:
        settings = load_settings(os.environ, {name: text for name, text in flags.items() if text is not None})
    except ConfigError as error:
        click.echo(f"topics: {error}", err=True)
        sys.exit(2)
    # What started the daemon has done its part: neither a child nor a traceback can show the keys from here on.
    for setting in SETTINGS.values():
        if setting.secret:
            os.environ.pop(setting.variable, None)
    setup_logging(settings.log_level, settings.log_format)
    # Imported here so that --help and a refused start need neither Trio nor hypercorn.
    from topics import daemon  # noqa: PLC0415

    sys.exit(daemon.run(settings))


cli.add_command(
    ServeCommand(
        "serve",
        callback=_serve,
        params=[SettingOption(setting) for setting in SETTINGS.values() if not setting.secret],
        help=_serve.__doc__,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
)
cli.add_command(offline.inspect)
cli.add_command(offline.verify)


def main() -> None:
    """The entry point of the console script."""
    cli(prog_name="topics")


if __name__ == "__main__":
    main()
