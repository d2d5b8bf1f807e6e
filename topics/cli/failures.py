"""The messages and exit codes of commands that do not succeed.

Responsible for one line on stderr and for the exit code of every failure; where in a command line it is caught is
`topics.cli.app`'s business. No line holds a traceback or a token.

Exit codes: 0 done; 1 failed; 2 a command line that is refused; 3 not found; 4 not allowed; 5 in conflict or full; 6 the
daemon cannot be reached or is not ready; 130 interrupted; 141 the reader of a pipe has gone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

import click

from topics.cli.output import printable

if TYPE_CHECKING:
    from topics.client.errors import TopicsError

Thing = TypeVar("Thing")

EXIT_FAILED: Final = 1
EXIT_REFUSED: Final = 2
EXIT_NOT_FOUND: Final = 3
EXIT_NOT_ALLOWED: Final = 4
EXIT_CONFLICT: Final = 5
EXIT_UNAVAILABLE: Final = 6
EXIT_INTERRUPTED: Final = 130
EXIT_PIPE: Final = 141

_ERRNO: Final = re.compile(r"\[Errno -?\d+\] ")
_BY_STATUS: Final = {
    401: EXIT_NOT_ALLOWED,
    403: EXIT_NOT_ALLOWED,
    404: EXIT_NOT_FOUND,
    409: EXIT_CONFLICT,
    422: EXIT_CONFLICT,
    429: EXIT_UNAVAILABLE,
    503: EXIT_UNAVAILABLE,
}


class UsageRefusal(click.ClickException):
    """A command line, an environment variable or a file cannot be used. The message is one line."""

    exit_code = EXIT_REFUSED


class CommandFailure(Exception):
    """A command has failed. `str()` is the message, one line."""

    def __init__(self, text: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def exit_code(error: TopicsError) -> int:
    """The exit code of a command that ended with `error`."""
    from topics.client.errors import ApiError, ConnectionFailed  # noqa: PLC0415

    if isinstance(error, ConnectionFailed):
        return EXIT_UNAVAILABLE
    return _BY_STATUS.get(error.status, EXIT_FAILED) if isinstance(error, ApiError) else EXIT_FAILED


def message(error: TopicsError) -> str:
    """The message for an error, one line: that of the daemon or the client, and advice where there is some."""
    from topics.client.errors import ApiError  # noqa: PLC0415

    text = _ERRNO.sub("", error.message)
    if isinstance(error, ApiError):
        if error.status == 401:
            text += " (a key is taken from TOPICS_TOKEN or --token-file)"
        if "cycle" in error.detail:
            text += f": {' -> '.join(map(str, error.detail['cycle']))}"
    if error.retry_after is not None:
        text += f" (try again in {error.retry_after:g} s)"
    return text


def tell(text: str) -> None:
    """Print one line on stderr, with the name of the program in front."""
    click.echo(f"topics: {printable(text)}", err=True)


def for_each(things: Iterable[Thing], act: Callable[[Thing], None]) -> None:
    """Call `act` with each of `things`. A failure is printed, with the thing in front where the message does not name
    it, and the others are tried all the same; at the end it exits with the code of the first failure. After a daemon
    could not be reached it tries no more."""
    from topics.client.errors import ConnectionFailed, TopicsError  # noqa: PLC0415

    first = 0
    for thing in things:
        try:
            act(thing)
        except CommandFailure as error:
            tell(str(error))
            first = first or error.exit_code
        except TopicsError as error:
            text, subject = message(error), str(thing)
            tell(text if subject in text or isinstance(error, ConnectionFailed) else f"{subject}: {text}")
            first = first or exit_code(error)
            if isinstance(error, ConnectionFailed):
                break
    if first:
        sys.exit(first)
