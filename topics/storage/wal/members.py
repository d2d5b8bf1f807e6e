"""How a transaction names its members, one for each of its topics (`docs/design/transactions.md`).

A member that appends is named by its topic id, its first and its last seq. One that appends nothing (it deletes
records, or is an event of a group) is named by its topic id and a token in the place of both: a number above all seqs,
which no other transaction has.
"""

from __future__ import annotations

import secrets
from itertools import count
from typing import Final

FIRST_TOKEN: Final = 1 << 63
"""All tokens are at least this, and all seqs are below it."""

_TOKENS: Final = count(FIRST_TOKEN + secrets.randbits(62))
"""Begins at a random number in each process, so that a token of an earlier process is none of this one."""


def new_token() -> int:
    """Return a token for the members of a new transaction that append nothing."""
    return next(_TOKENS)
