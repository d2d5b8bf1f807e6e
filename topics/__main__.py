"""`python -m topics`, and the entry point of the console script. The command line itself is `topics.cli.app`.

The two differ in one thing: without arguments `python -m topics` serves, as units and containers expect of it, and the
console script prints its help.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(without_arguments: Sequence[str] = ()) -> None:
    """Run the command line of `sys.argv`, or `without_arguments` if that has none, and exit with its code."""
    try:
        from topics.cli import app  # noqa: PLC0415 - inside, so that Ctrl-C shows no traceback while it loads
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(app.run(sys.argv[1:] or without_arguments))


if __name__ == "__main__":
    main(["serve"])
