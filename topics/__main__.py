"""`python -m topics`, and the entry point of the console script. The command line itself is `topics.cli.app`.

The two differ in one thing: without arguments `python -m topics` serves, as units and containers expect of it, and the
console script prints its help.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn


def main(without_arguments: Sequence[str] = ()) -> None:
    """Run the command line of `sys.argv`, or `without_arguments` if that has none, and exit with its code."""
    try:
        from topics.cli import app  # noqa: PLC0415 - inside, so that Ctrl-C shows no traceback while it loads
    except KeyboardInterrupt:
        sys.exit(130)
    code = app.run(sys.argv[1:] or without_arguments)
    if "topics.daemon" in sys.modules:
        _end_at_once(code)
    sys.exit(code)


def _end_at_once(code: int) -> NoReturn:
    """End the process of a daemon that has stopped, without taking its objects apart: with 100,000 topics that takes
    1.5 to 4 s, and everything is on disk."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or nobody reads it, or there is none
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main(["serve"])
