"""`python -m topics`, and the entry point of the console script. The command line itself is `topics.cli.app`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from topics.cli import app  # noqa: PLC0415 - inside, so that Ctrl-C shows no traceback while it loads
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(app.run())


if __name__ == "__main__":
    main()
