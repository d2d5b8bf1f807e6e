"""How a transaction names its members, one for each of its topics (`docs/design/transactions.md`).

A member that appends is named by its topic id, its first and its last seq. One that appends nothing (it deletes
records, or is an event of a group) is named by its topic id and a token in the place of both: a number above all seqs,
which no other transaction has.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from itertools import count
from typing import Final

FIRST_TOKEN: Final = 1 << 63
"""All tokens are at least this, and all seqs are below it."""


def tokens() -> Iterator[int]:
    """Return the tokens of one engine, for the members of its transactions that append nothing. They begin at a random
    number, so that a token of an earlier engine is none of this one."""
    return count(FIRST_TOKEN + secrets.randbits(62))
