"""`python -m topics.spark <job>`: which jobs there are, and how a command line ends.

A job is loaded when it is named, and Spark when the job has looked at everything else, so that help and refusals are
quick and need neither pyspark nor Java. The modules of the jobs describe them. Failures are one line and an exit code,
as those of the `topics` command (`topics.cli.failures`); what Spark logs by itself, from WARN on, comes before.
"""

from __future__ import annotations

import importlib
import logging
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Final

import click

import topics
from topics.cli import failures
from topics.spark.needs import MissingRequirement
from topics.spark.session import JobOptions

PROGRAM: Final = "python -m topics.spark"

JOBS: Final[Mapping[str, str]] = {
    "load": "CSV, JSON or Parquet files to a topic.",
    "archive": "Topics to Parquet, from where the last run ended.",
    "restore": "An archive to a topic.",
    "rollup": "Windows of a topic, counted and aggregated as they fill.",
    "audit": "Check the files of a data directory.",
}
"""Every job, in the order in which they are listed, with a line about it."""

_OURS: Final = re.compile(r"^topics\.[\w.]+\.(\w+): (.+)$", re.MULTILINE)
_ANY: Final = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)
"""The last line of a traceback, of an exception of ours and of any."""


class JobGroup(click.Group):
    """The group of all jobs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in JOBS:
            return None
        command: click.Command = importlib.import_module(f"topics.spark.jobs.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Jobs"):
            formatter.write_dl(list(JOBS.items()))


@click.group(
    cls=JobGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    subcommand_metavar="JOB [ARGS]...",
)
@click.version_option(topics.__version__, prog_name="topics.spark")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Spark jobs on the topics of a daemon."""
    ctx.ensure_object(JobOptions)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line. Returns the exit code; an error was reported in one line."""
    before = signal.signal(signal.SIGTERM, _terminate)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs a traceback when it is interrupted
    try:
        with cli.make_context(PROGRAM, list(sys.argv[1:] if arguments is None else arguments)) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else failures.EXIT_FAILED if ending.code else 0
    except BaseException as error:
        return _ended_by(error)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _terminate(number: int, _frame: FrameType | None) -> None:
    """SIGTERM ends a job as Ctrl-C does: with its session stopped, and everything removed that it has made for
    itself."""
    sys.exit(128 + number)


def _ended_by(error: BaseException) -> int:
    """Report the error that has ended a job. Returns the exit code."""
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
    if isinstance(error, MissingRequirement):
        failures.tell(str(error))
        return failures.EXIT_REFUSED
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
    failures.tell(cause(error))
    return failures.EXIT_FAILED


def cause(error: BaseException) -> str:
    """Return the cause of a failure of Spark: the message of one of our tasks, else that of any task, else Spark's
    first line. Spark wraps it in the tracebacks of a worker, of the JVM and of the driver."""
    text = str(error)
    found = _OURS.findall(text) or _ANY.findall(text)
    if found:
        return f"{found[-1][1]} ({found[-1][0]})"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


if __name__ == "__main__":
    sys.exit(run())
