"""`topics serve`: the daemon in the foreground.

Every flag is a setting of `topics.config` and wins over its environment variable. Exit codes: what the daemon returns,
and 2 for a configuration that is refused.
"""

from __future__ import annotations

import itertools
import os
import sys
import textwrap
from typing import Any, Final

import click

from topics.cli.withheld_modules import withheld
from topics.config import SETTINGS, ConfigError, Setting, load_settings
from topics.runtime.garbage_collector import building

HELP_WIDTH: Final = 100

SHORT: Final = {"bucket_take": "--take"}
"""Second names of flags."""


class SettingOption(click.Option):
    """A flag made from a setting. Values stay text: the configuration checks all of them together."""

    def __init__(self, setting: Setting) -> None:
        boolean = setting.allowed == "one of 1, 0, true, false"
        # A boolean may be given without a value: `--flag` is `--flag=1`.
        bare: dict[str, Any] = {"is_flag": False, "flag_value": "1"} if boolean else {}
        short = [SHORT[setting.name]] if setting.name in SHORT else []
        super().__init__([setting.flag, *short, setting.name], type=str, metavar="VALUE", **bare)


class ServeCommand(click.Command):
    """Whose options are written as a page of settings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_settings(formatter)


def write_settings(formatter: click.HelpFormatter) -> None:
    """Every setting with its flag, variable, default and meaning."""
    formatter.write_paragraph()
    formatter.write("Settings: flag, environment variable [default]. A flag wins over its variable.\n")
    formatter.write(_settings_page() + "\n")


def _settings_page() -> str:
    """The settings by group, in the order of declaration."""
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


def _serve(standby: bool, **flags: str | None) -> None:
    """Run the daemon in the foreground until SIGTERM or SIGINT."""
    if standby:
        flags["role"] = "standby"
    try:
        settings = load_settings(os.environ, {name: text for name, text in flags.items() if text is not None})
    except ConfigError as error:
        click.echo(f"topics: {error}", err=True)
        sys.exit(2)
    # What started the daemon has done its part: neither a child nor a traceback can show the keys from here on.
    for setting in SETTINGS.values():
        if setting.secret:
            os.environ.pop(setting.variable, None)
    # Imported here so that --help and a refused start need neither Trio nor hypercorn. structlog loads rich, if it is
    # there, for tracebacks that the log has in a form of its own. Imported modules stay, so a collection of garbage now
    # would find none.
    with withheld("rich"), building():
        from topics.telemetry.logs import setup_logging  # noqa: PLC0415

        setup_logging(settings.log_level, settings.log_format)
        from topics import daemon  # noqa: PLC0415

    sys.exit(daemon.run(settings))


serve: Final = ServeCommand(
    "serve",
    callback=_serve,
    params=[
        click.Option(["--standby"], is_flag=True, help="The same as --role standby."),
        *(SettingOption(setting) for setting in SETTINGS.values() if not setting.secret),
    ],
    help=_serve.__doc__,
    epilog="\b\nExamples:\n  topics serve --port 4000 --data-dir /var/lib/topics\n  topics --port 0",
)
