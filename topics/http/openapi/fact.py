"""A fact about a field, and the parts that many facts have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from topics.config import SETTINGS
from topics.log.names import ROUTER_NAME, TOPIC_NAME
from topics.model import MAX_U64


class Fact(NamedTuple):
    """The meaning of a field, and additions to its schema."""

    text: str
    schema: Mapping[str, Any] = {}


U64: Final[Mapping[str, Any]] = {"minimum": 0, "maximum": MAX_U64}
NOT_EMPTY: Final[Mapping[str, Any]] = {"minLength": 1}
TOPIC: Final[Mapping[str, Any]] = {"pattern": f"^{TOPIC_NAME.pattern}$"}
ROUTER: Final[Mapping[str, Any]] = {"pattern": f"^{ROUTER_NAME.pattern}$"}


def setting(name: str) -> str:
    """A setting and its default, as a sentence names them."""
    known = SETTINGS[name]
    return f"`{known.variable}` ({known.default})"


def seq(text: str) -> Fact:
    """Return the fact of a seq, or of another number that is not negative."""
    return Fact(text, U64)


def clamped(text: str, low: int, high: int) -> Fact:
    """Return the fact of a number that is clamped to a range."""
    return Fact(f"{text} Clamped to {low}..{high}.")


FILTER: Final = Fact(
    "Only records that match this filter, such as "
    '`["And",["tag","Glob","eu:*"],["data","/total","Ge",10]]` (docs, filters); null for all.',
    {
        "anyOf": [
            {
                "type": "array",
                "prefixItems": [{"enum": ["tag", "node", "meta", "data", "And", "Or", "Not"]}],
                "minItems": 2,
            },
            {"type": "null"},
        ]
    },
)
