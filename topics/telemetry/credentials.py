"""Credentials in texts are found by the words in front of them, and replaced.

Applied to every text that is about to be logged. No code should log a credential in the first place; this is a second
safeguard. It looks at the finished text, so that it also covers bytes, `repr` texts and tracebacks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

SECRET_KEYS: Final = frozenset({"token", "authorization", "api_key", "api_keys", "password", "secret"})
"""Names of fields whose values are never shown."""

HIDDEN: Final = "(hidden)"
"""The replacement of a credential."""


def _spelled(word: str) -> str:
    """A pattern for a word whose letters may be percent-encoded, as in the query of a URL."""
    return "".join(f"(?:{letter}|%{ord(letter):02x}|%{ord(letter.upper()):02x})" for letter in word)


def _within_json(end: str) -> str:
    """A pattern for a value in JSON: it ends at white space, also escaped, and at the end of the string. An escape
    sequence is hidden whole or not at all."""
    return rf"(?:\\[^nrt]|[^\s{end}\"\\])+"


def _within_text(end: str) -> str:
    return rf"[^\s{end}]+"


def _pattern(quote: str, within: Callable[[str], str]) -> re.Pattern[bytes]:
    """The pattern for what is hidden in a text in lower case: what follows `token=` in its many spellings, or `bearer`.

    `quote` is the pattern of a quotation mark in this text. Within a JSON string it has one backslash in front, or 3,
    7, ... if the string holds JSON itself. A quotation mark after an even number of backslashes ends the string. No
    match reaches beyond it, so that the line is still valid JSON afterwards.
    """
    equals = r"(?:%(?:25)?3d|=)"
    colon = r"(?:%(?:25)?3a|:)"
    gap = r"\s{0,8}"
    blanks = r"(?:\s|\\t|\+|%(?:25)?20){1,8}"
    name = rf"(?:{_spelled('token')}|password|secret)"
    keys = r"api[_-]?keys?"
    before = (
        rf"{name}{gap}(?:{equals}|{colon}){gap}",
        # Not a colon alone: error messages about the setting TOPICS_API_KEYS have its name and a colon in front.
        rf"{keys}{gap}{equals}{gap}",
        rf"(?:{name}|{keys}){quote}{gap}[:,=]{gap}",
    )
    # The credentials of some schemes have more than one word.
    header = rf"authorization{quote}?{gap}(?:{equals}|[:,]){gap}({within('')}(?:{blanks}{within('')}){{0,64}})"
    opening = rf"(?:b?{quote})?(?:(?:bearer|basic){blanks})?"
    return re.compile(rf"{header}|(?:{'|'.join(before)}){opening}({within('&')})|bearer{blanks}({within('')})".encode())


_IN_JSON: Final = _pattern(r"(?:(?:\\\\)*\\\"|\\*')", _within_json)
_IN_TEXT: Final = _pattern(r"\\*[\"']", _within_text)
_JSON_MEMBER: Final = re.compile(rb'"(?:token|authorization|api_keys?|password|secret)"\s*:\s*"((?:\\.|[^"\\])*)')
# Where a match may begin. Searching for the whole patterns instead would take a hundred times as long.
_STARTS: Final = re.compile(rb"token|t(?:o|ok|oke)?%|%[57]4|authorization|password|secret|api|bearer")
_WORDS: Final = (b"token", b"authorization", b"password", b"secret", b"api", b"bearer", b"%")


def hide_credentials(text: str, *, as_json: bool = True) -> str:
    """The text with everything that looks like a credential replaced by `HIDDEN`.

    With `as_json` the text is a JSON value on one line, and is valid JSON afterwards. Without it, quotation marks and
    backslashes have no special meaning.
    """
    data = text.encode("utf-8", "surrogatepass")
    small = data.lower()
    if not any(word in small for word in _WORDS):
        return text
    pattern = _IN_JSON if as_json else _IN_TEXT
    data = _blanked(data, _matches(pattern, small))
    if as_json:
        data = _blanked(data, _JSON_MEMBER.finditer(data.lower()))
    return data.decode("utf-8", "surrogatepass")


def _matches(pattern: re.Pattern[bytes], small: bytes) -> Iterator[re.Match[bytes]]:
    at = 0
    while (start := _STARTS.search(small, at)) is not None:
        match = pattern.match(small, start.start())
        if match is None:
            at = start.start() + 1
        else:
            yield match
            at = match.end()


def _blanked(data: bytes, matches: Iterable[re.Match[bytes]]) -> bytes:
    pieces = []
    end = 0
    for match in matches:
        group = match.lastindex or 0
        pieces += [data[end : match.start(group)], HIDDEN.encode()]
        end = match.end(group)
    return b"".join([*pieces, data[end:]])
