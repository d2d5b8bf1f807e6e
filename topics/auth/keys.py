"""API keys: what one may do, and how it is recognised (`docs/spec/api.md` section 12). Without I/O.

Of a key nothing but its SHA-256 digest is kept. A token is compared with all of them in constant time, and no error
says anything of an entry but where it stands. Which call needs what is in the table of routes.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Flag
from typing import Final

from topics.errors import ApiError

MAX_KEYS: Final = 1000
"""Each request is compared with every key, which takes about 0.1 us a key."""


class Scope(Flag):
    """What a key may do. None implies another."""

    READ = 1
    WRITE = 2
    DELETE = 4
    ADMIN = 8

    @property
    def words(self) -> list[str]:
        """As the contract writes them."""
        return [str(scope.name).lower() for scope in self]


ANY_KEY: Final = Scope(0)
"""What a call needs that every key may make."""

ALL: Final = Scope.READ | Scope.WRITE | Scope.DELETE | Scope.ADMIN

_WORDS: Final = {
    "read": Scope.READ,
    "r": Scope.READ,
    "write": Scope.WRITE,
    "w": Scope.WRITE,
    "rw": Scope.READ | Scope.WRITE,
    "delete": Scope.DELETE,
    "d": Scope.DELETE,
    "admin": Scope.ADMIN,
    "a": Scope.ADMIN,
}

# What an Authorization header carries without quoting.
_KEY: Final = re.compile(r"[!-+\--9;-~]+")
# How a topic or a router may begin.
_PREFIX: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}")


class MalformedKeys(ValueError):
    """A list of keys is refused; the message says where, and nothing of what stands there."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key, or whoever comes where there are none (`OPEN`)."""

    digest: bytes
    """SHA-256; empty for `OPEN`."""
    scopes: Scope
    prefixes: tuple[str, ...]
    """Of the names it is bound to, ascending, none a prefix of another; empty for any name."""

    @property
    def name(self) -> str:
        """How logs call it: a part of the digest, from which nothing follows."""
        return f"key-{self.digest.hex()[:8]}" if self.digest else "none"

    def covers(self, name: str) -> bool:
        """Whether it may have to do with this topic or router at all."""
        return not self.prefixes or name.startswith(self.prefixes)

    def covered(self, prefix: str) -> list[str]:
        """The prefixes of all names that start with `prefix` and that it covers: ascending and disjoint."""
        if not self.prefixes or prefix.startswith(self.prefixes):
            return [prefix]
        return [own for own in self.prefixes if own.startswith(prefix)]

    def check_scope(self, needed: Scope) -> None:
        """Raises `403 forbidden`, with what is missing as `detail.missing`."""
        missing = needed & ~self.scopes
        if missing:
            words = missing.words
            raise ApiError(
                "forbidden", f"the key has no scope for this: {' + '.join(words)}", detail={"missing": words}
            )

    def check_name(self, name: str, field: str = "topic") -> None:
        """Raises `403 forbidden`, with the name as `detail` under `field`."""
        if not self.covers(name):
            raise ApiError("forbidden", f"{field}: {name!r} has none of the key's prefixes", detail={field: name})


OPEN: Final = Key(b"", ALL, ())
"""Everybody, where there are no keys."""


class Keyring:
    """The keys that are valid now. An empty one means that there is no access control."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = tuple(keys)
        self._by_digest = {key.digest: key for key in self._keys}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def find(self, token: bytes) -> Key | None:
        """The key that a client shows. The time this takes does not depend on which one it is, or whether it is any."""
        digest = hashlib.sha256(token).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def current(self, key: Key) -> Key | None:
        """What has become of a key that was valid: it may have other rights by now, or none."""
        return self._by_digest.get(key.digest) if self._keys else OPEN


def parse_keys(text: str) -> tuple[Key, ...]:
    """The keys of `TOPICS_API_KEYS`. Raises MalformedKeys."""
    return _parse((f"entry {i}", entry) for i, entry in enumerate(text.split(","), 1))


def parse_key_file(text: str) -> tuple[Key, ...]:
    """The keys of a file: one entry a line, empty lines and those that start with `#` aside. Raises MalformedKeys."""
    lines = ((f"line {i}", line.strip()) for i, line in enumerate(text.splitlines(), 1))
    return _parse((where, line) for where, line in lines if line and not line.startswith("#"))


def merged(*lists: Iterable[Key]) -> tuple[Key, ...]:
    """The keys of several lists. Raises MalformedKeys for one that is in two of them, or for too many."""
    keys = tuple(key for keys in lists for key in keys)
    if len({key.digest for key in keys}) < len(keys):
        raise MalformedKeys("a key stands there twice")
    if len(keys) > MAX_KEYS:
        raise MalformedKeys(f"at most {MAX_KEYS} keys are allowed")
    return keys


def _parse(entries: Iterable[tuple[str, str]]) -> tuple[Key, ...]:
    return merged([_parse_entry(where, entry.strip()) for where, entry in entries])


def _parse_entry(where: str, entry: str) -> Key:
    token, _, rest = entry.partition(":")
    scope_words, _, prefixes = rest.partition(":")
    if not token:
        raise MalformedKeys(f"{where}: the key is empty")
    if _KEY.fullmatch(token) is None:
        raise MalformedKeys(f"{where}: a key is visible ASCII without commas and colons")
    scopes = Scope(0)
    for word in scope_words.split("+") if scope_words else ():
        scope = _WORDS.get(word)
        if scope is None:
            raise MalformedKeys(f"{where}: a scope is none of {', '.join(_WORDS)}")
        scopes |= scope
    names = prefixes.split("|") if prefixes else []
    if not all(_PREFIX.fullmatch(name) for name in names):
        raise MalformedKeys(f"{where}: a prefix is none that a topic or router can have")
    return Key(hashlib.sha256(token.encode()).digest(), scopes or ALL, _disjoint(names))


def _disjoint(prefixes: Iterable[str]) -> tuple[str, ...]:
    """Without those that others cover, ascending."""
    kept: list[str] = []
    for prefix in sorted(prefixes):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return tuple(kept)
