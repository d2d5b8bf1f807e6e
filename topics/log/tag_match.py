"""Selecting records by tag: what a deletion, a router filter or an export means by a match (`docs/spec/api.md` section
1)."""

from __future__ import annotations

from dataclasses import dataclass

from topics.errors import ApiError, invalid


@dataclass(frozen=True, slots=True)
class Match:
    """A condition on a tag: equal to `pattern`, or, if `prefix`, beginning with it.

    `pattern` is literal text in both cases: the final `*` of a Glob is not part of it.
    """

    pattern: str
    prefix: bool

    def matches(self, tag: str | None) -> bool:
        """Whether a record with this tag is selected. An untagged one (None) never is."""
        if tag is None:
            return False
        return tag.startswith(self.pattern) if self.prefix else tag == self.pattern

    def to_wire(self) -> list[str]:
        """The three-element form; `parse_match` of it gives an equal Match."""
        return ["tag", "Glob", self.pattern + "*"] if self.prefix else ["tag", "Eq", self.pattern]


def parse_match(value: object, field: str = "match") -> Match:
    """The Match that a decoded JSON value stands for; any other shape, operator or pattern is 400 about `field`."""
    if isinstance(value, str):
        # A bare string is Eq even if it ends in `*`: nobody gets a wildcard without asking for one.
        return Match(_encodable(value, field), prefix=False)
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise _refusal(field)
    subject, operator, pattern = value
    if subject != "tag" or not isinstance(pattern, str):
        raise _refusal(field)
    if operator == "Eq":
        return Match(_encodable(pattern, field), prefix=False)
    if operator == "Glob" and pattern.endswith("*"):
        return Match(_encodable(pattern[:-1], field), prefix=True)
    raise _refusal(field)


def _encodable(pattern: str, field: str) -> str:
    # A match goes into frames and back over the wire, and a lone surrogate could do neither.
    try:
        pattern.encode()
    except UnicodeEncodeError:
        raise invalid(field, "is not valid Unicode") from None
    return pattern


def _refusal(field: str) -> ApiError:
    return invalid(field, 'must be ["tag","Eq","x"], ["tag","Glob","x*"] or a string')
