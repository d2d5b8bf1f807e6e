"""The fences of one topic: the highest token that was seen under each name (`docs/spec/consumers.md` section 1).

An append raises its fence when it gets its seqs; clients see the raised fence when the append is published. So there
are two tables. Conditions are judged by `decided`. States and snapshots show `published`, which passes through the same
states as a replay of the log. If a commit fails, `decided` stays too high; this has no effect, because its shard takes
no appends before a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from topics.errors import invalid
from topics.log.dumped_values import whole
from topics.model import MAX_U64

MAX_FENCES: Final = 100
"""Fences of a topic at most."""

MAX_NAME_BYTES: Final = 128
"""Bytes of a name at most."""


class Fences:
    """The fences of one topic, by name."""

    __slots__ = ("decided", "published")

    def __init__(self, known: Mapping[str, int] | None = None) -> None:
        self.decided: dict[str, int] = dict(known or {})
        self.published: dict[str, int] = dict(known or {})

    def decide(self, name: str, token: int | None) -> None:
        """Set the token of a fence; None removes the fence."""
        _set(self.decided, name, token)

    def publish(self, name: str, token: int | None) -> None:
        """Show the decision that `decide` made, at its commit point."""
        _set(self.published, name, token)


def _set(tokens: dict[str, int], name: str, token: int | None) -> None:
    if token is None:
        tokens.pop(name, None)
    else:
        tokens[name] = token


def check_fence_name(name: str, field: str = "fence") -> str:
    """Return `name` if it is a valid name of a fence: a text of 1 to 128 bytes in UTF-8. Raises 400 about `field`."""
    if not 1 <= len(name.encode()) <= MAX_NAME_BYTES:
        raise invalid(field, f"must have 1 to {MAX_NAME_BYTES} bytes", max=MAX_NAME_BYTES)
    return name


def fences_of(value: object) -> dict[str, int]:
    """Return the tokens by name from the fences of a snapshot. Raises ValueError if `value` is not a map of tokens."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError("fences: not a map of names")
    tokens = {str(name): whole(token) for name, token in value.items()}
    if any(token > MAX_U64 for token in tokens.values()):
        raise ValueError("fences: a token is too high")
    return tokens
