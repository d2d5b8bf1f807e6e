"""Credentials in texts: found by what stands in front of them, and blanked.

For whatever is about to be written down, in a log or elsewhere. Nobody should put a credential into it in the first
place; here is looked once more, at the finished text, which covers bytes, representations and tracebacks too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

SECRET_KEYS: Final = frozenset({"token", "authorization", "api_key", "api_keys", "password", "secret"})
"""Names of fields whose values are never shown."""

HIDDEN: Final = "(hidden)"


def _spelled(word: str) -> str:
    """A word of which any letter may be percent-encoded, as it may be in the query of a URL."""
    return "".join(f"(?:{letter}|%{ord(letter):02x}|%{ord(letter.upper()):02x})" for letter in word)


def _within_json(end: str) -> str:
    """A value that ends at white space, also escaped, and at the end of the string. Other escapes stay whole."""
    return rf"(?:\\[^nrt]|[^\s{end}\"\\])+"


def _within_text(end: str) -> str:
    return rf"[^\s{end}]+"


def _pattern(quote: str, within: Callable[[str], str]) -> re.Pattern[bytes]:
    """What is hidden in a text in small letters: what follows `token=` in its many spellings, or `bearer`.

    `quote` is what quotation marks look like in this text. In JSON they have a backslash, or three, seven, ... where
    JSON lies within JSON; one after an even number ends the string, and nothing of a match lies beyond it, so that the
    line is valid JSON afterwards.
    """
    equals = r"(?:%(?:25)?3d|=)"
    colon = r"(?:%(?:25)?3a|:)"
    gap = r"\s{0,8}"
    blanks = r"(?:\s|\\t|\+|%(?:25)?20){1,8}"
    name = rf"(?:{_spelled('token')}|password|secret)"
    keys = r"api[_-]?keys?"
    before = (
        rf"{name}{gap}(?:{equals}|{colon}){gap}",
        # What is wrong with the setting TOPICS_API_KEYS is told after its name and a colon.
        rf"{keys}{gap}{equals}{gap}",
        rf"(?:{name}|{keys}){quote}{gap}[:,=]{gap}",
    )
    # There are schemes of more words than one.
    header = rf"authorization{quote}?{gap}(?:{equals}|[:,]){gap}({within('')}(?:{blanks}{within('')}){{0,64}})"
    opening = rf"(?:b?{quote})?(?:(?:bearer|basic){blanks})?"
    return re.compile(rf"{header}|(?:{'|'.join(before)}){opening}({within('&')})|bearer{blanks}({within('')})".encode())


_IN_JSON: Final = _pattern(r"(?:(?:\\\\)*\\\"|\\*')", _within_json)
_IN_TEXT: Final = _pattern(r"\\*[\"']", _within_text)
_JSON_MEMBER: Final = re.compile(rb'"(?:token|authorization|api_keys?|password|secret)"\s*:\s*"((?:\\.|[^"\\])*)')
# Patterns are matched where they may begin: to search for them takes a hundred times as long.
_STARTS: Final = re.compile(rb"token|t(?:o|ok|oke)?%|%[57]4|authorization|password|secret|api|bearer")
_WORDS: Final = (b"token", b"authorization", b"password", b"secret", b"api", b"bearer", b"%")


def hide_credentials(text: str, *, as_json: bool = True) -> str:
    """The text with what looks like a credential blanked. What is valid JSON (on one line) stays so; with `as_json`
    false it is taken for a text in which quotation marks mean nothing."""
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
