"""Filters as people write them: `tag ~ "eu:*" and data./total >= 10`. The page is `docs/filters.md`.

    filter    = all { "or" all }
    all       = one { "and" one }
    one       = "not" one | "(" filter ")" | subject test
    subject   = "tag" | "node" | "meta." name | "data" [ "." pointer ]
    test      = ( "=" | "!=" | "<" | "<=" | ">" | ">=" | "~" ) value | "in" "(" value { "," value } ")"
              | "exists" | "missing"
    value     = a JSON string, a JSON number, true, false or null

A name or a pointer with other characters than letters, digits and some signs is written as a JSON string. The result is
the filter's JSON; `topics.filters.record_filter` checks whether the filter is valid.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from topics.filters.filter_error import FilterError
from topics.filters.record_filter import OPERATORS, parse_filter

_SPACE: Final = re.compile(r"\s*")
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.])", re.ASCII)
_WORD: Final = re.compile(r"[A-Za-z_]+")
_SIGN: Final = re.compile(r"==|!=|<=|>=|[=<>~(),]")
_NAME: Final = re.compile(r"[\w$:-]+(?:\.[\w$:-]+)*")
_POINTER: Final = re.compile(r'/(?:[^\s()=<>!,"~]|~[01])*')

_OPERATORS: Final = {
    "=": "Eq",
    "!=": "Ne",
    "<": "Lt",
    "<=": "Le",
    ">": "Gt",
    ">=": "Ge",
    "~": "Glob",
    "in": "In",
    "exists": "Exists",
    "missing": "Exists",
}
"""The operators in text, and their names in JSON. `==` is the same as `=`."""

_CONSTANTS: Final = ("true", "false", "null")
_MOST_LEVELS: Final = 32
"""Levels of brackets and `not`. A valid filter has fewer levels, but a text may have superfluous brackets."""


class _Part(NamedTuple):
    """A part of a text: its JSON, its place in the text, and, if its JSON is a list, the parts of the elements."""

    text: str
    at: int
    parts: tuple[_Part, ...] = ()

    def place_of(self, path: str) -> int:
        """Return where the element begins to which the indexes in `path` lead, for example `[2][1]`. If such an element
        does not exist, return where the last existing part on the way begins."""
        part = self
        for index in map(int, re.findall(r"[0-9]+", path)):
            if index >= len(part.parts):
                break
            part = part.parts[index]
        return part.at


def json_of(text: str) -> str:
    """Return the JSON of the filter that is written as text. Raises FilterError, which names the character of the
    mistake."""
    reader = _Reader(text)
    part = reader.filter(0)
    reader.expect_end()
    try:
        return parse_filter(part.text).text
    except FilterError as error:
        raise reader.error(error.message, part.place_of(error.place)) from None


class _Reader:
    """Reads a text from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def filter(self, level: int) -> _Part:
        """Read a filter."""
        return self._joined("or", "Or", level)

    def expect_end(self) -> None:
        """Raise FilterError if there is more text."""
        self._skip()
        if self._at < len(self._text):
            raise self.error("expected `and`, `or` or the end")

    def error(self, message: str, at: int | None = None) -> FilterError:
        """Return the error about the character at index `at`, by default about the next character."""
        at = self._at if at is None else at
        shown = self._text[at : at + 20]
        where = f"at character {at + 1}" + (f" ({shown!r})" if shown else ", the end")
        return FilterError(where, message)

    def _joined(self, word: str, operator: str, level: int) -> _Part:
        parts = [self._operand(operator, level)]
        while self._take_word(word):
            parts.append(self._operand(operator, level))
        return parts[0] if len(parts) == 1 else _list_of(parts[0].at, _Part(f'"{operator}"', parts[0].at), *parts)

    def _operand(self, operator: str, level: int) -> _Part:
        return self._joined("and", "And", level) if operator == "Or" else self._one(level)

    def _one(self, level: int) -> _Part:
        if level > _MOST_LEVELS:
            raise self.error(f"more than {_MOST_LEVELS} brackets or `not` within each other")
        start = self._skip()
        if self._take_word("not"):
            return _list_of(start, _Part('"Not"', start), self._one(level + 1))
        if self._take_sign("("):
            part = self.filter(level + 1)
            if not self._take_sign(")"):
                raise self.error("expected `and`, `or` or `)`")
            return part
        return self._predicate()

    def _predicate(self) -> _Part:
        start = self._skip()
        found = _WORD.match(self._text, self._at)
        subject = found[0] if found is not None else ""
        if subject not in OPERATORS:
            raise self.error("expected tag, node, meta, data, `not` or `(`")
        self._at += len(subject)
        parts = [_Part(f'"{subject}"', start)]
        if subject == "meta":
            parts.append(self._place(_NAME, "a name, such as meta.trace"))
        elif subject == "data":
            starts = self._text.startswith((".", "/"), self._at)
            place = self._place(_POINTER, "a JSON pointer, such as data./total") if starts else _Part('""', self._at)
            parts.append(place)
        return _list_of(start, *parts, *self._test(subject))

    def _place(self, bare: re.Pattern[str], what: str) -> _Part:
        """Read the name or pointer behind a subject."""
        if not self._text.startswith(".", self._at):
            raise self.error(f"expected `.` and {what}")
        self._at += 1
        if self._text.startswith('"', self._at):
            return self._string()
        found = bare.match(self._text, self._at)
        if found is None:
            raise self.error(f"expected {what}")
        self._at = found.end()
        return _Part(json.dumps(found[0]), found.start())

    def _test(self, subject: str) -> tuple[_Part, _Part]:
        """Read an operator that is allowed for the subject, and its operand."""
        start = self._skip()
        operator = self._operator()
        if operator not in OPERATORS[subject]:
            allowed = [written for written, name in _OPERATORS.items() if name in OPERATORS[subject]]
            raise self.error(f"{subject} takes only {', '.join(allowed)}", start)
        if operator == "Exists":
            operand = _Part("false" if self._text[start].lower() == "m" else "true", start)
        else:
            operand = self._values() if operator == "In" else self._value()
        return _Part(f'"{operator}"', start), operand

    def _operator(self) -> str:
        """Read an operator. Return its name in JSON."""
        found = _WORD.match(self._text, self._at) or _SIGN.match(self._text, self._at)
        written = "" if found is None else found[0].lower()
        name = "Eq" if written == "==" else _OPERATORS.get(written)
        if found is None or name is None:
            raise self.error("expected =, !=, <, <=, >, >=, ~, `in`, `exists` or `missing`")
        self._at = found.end()
        return name

    def _values(self) -> _Part:
        start = self._skip()
        if not self._take_sign("("):
            raise self.error("expected `(` and values")
        values = [self._value()]
        while self._take_sign(","):
            values.append(self._value())
        if not self._take_sign(")"):
            raise self.error("expected `,` or `)`")
        return _list_of(start, *values)

    def _value(self) -> _Part:
        start = self._skip()
        if self._text.startswith('"', self._at):
            return self._string()
        found = _NUMBER.match(self._text, self._at)
        if found is None:
            found = _WORD.match(self._text, self._at)
            if found is None or found[0] not in _CONSTANTS:
                hint = ": strings need quotes" if found is not None else ""
                raise self.error(f"expected a string, a number, true, false or null{hint}")
        self._at = found.end()
        return _Part(found[0], start)

    def _string(self) -> _Part:
        found = _STRING.match(self._text, self._at)
        if found is None:
            raise self.error("a string that does not end")
        try:
            json.loads(found[0])
        except ValueError:
            raise self.error("a string with a bad escape") from None
        self._at = found.end()
        return _Part(found[0], found.start())

    def _take_word(self, word: str) -> bool:
        self._skip()
        found = _WORD.match(self._text, self._at)
        if found is None or found[0].lower() != word:
            return False
        self._at = found.end()
        return True

    def _take_sign(self, sign: str) -> bool:
        self._skip()
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True

    def _skip(self) -> int:
        """Skip white space. Return where the next part begins."""
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._at


def _list_of(at: int, *parts: _Part) -> _Part:
    return _Part("[" + ",".join(part.text for part in parts) + "]", at, parts)
