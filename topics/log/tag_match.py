"""Conditions on tags: the match of a deletion, a router filter or an export (`docs/spec/api.md` section 1)."""

from __future__ import annotations

from dataclasses import dataclass

from topics.errors import ApiError, invalid


@dataclass(frozen=True, slots=True)
class TagMatch:
    """A condition on a tag: equal to `pattern`, or, if `prefix`, beginning with it.

    `pattern` is literal text in both cases: the final `*` of a Glob is not part of it.
    """

    pattern: str
    prefix: bool

    def matches(self, tag: str | None) -> bool:
        """Return True if a record with this tag is selected. A record without a tag (None) never is."""
        if tag is None:
            return False
        return tag.startswith(self.pattern) if self.prefix else tag == self.pattern

    def to_wire(self) -> list[str]:
        """Return the three-element form; `parse_match` turns it back into an equal Match."""
        return ["tag", "Glob", self.pattern + "*"] if self.prefix else ["tag", "Eq", self.pattern]


def parse_match(value: object, field: str = "match") -> TagMatch:
    """Return the Match that a decoded JSON value means. Any other shape, operator or pattern is 400 about `field`."""
    if isinstance(value, str):
        # A bare string is Eq even if it ends in `*`: a wildcard has to be asked for with Glob.
        return TagMatch(_encodable(value, field), prefix=False)
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise _refusal(field)
    subject, operator, pattern = value
    if subject != "tag" or not isinstance(pattern, str):
        raise _refusal(field)
    if operator == "Eq":
        return TagMatch(_encodable(pattern, field), prefix=False)
    if operator == "Glob" and pattern.endswith("*"):
        return TagMatch(_encodable(pattern[:-1], field), prefix=True)
    raise _refusal(field)


def _encodable(pattern: str, field: str) -> str:
    # A match is written to frames and sent in answers, and a lone surrogate cannot be encoded in either.
    try:
        pattern.encode()
    except UnicodeEncodeError:
        raise invalid(field, "is not valid Unicode") from None
    return pattern


def _refusal(field: str) -> ApiError:
    return invalid(field, 'must be ["tag","Eq","x"], ["tag","Glob","x*"] or a string')
