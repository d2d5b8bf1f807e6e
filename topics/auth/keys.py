"""API keys: what a key may do, and how a token is compared with the keys (`docs/spec/api.md` section 12). Without I/O.

Of a key only its SHA-256 digest is kept. The time of a comparison does not depend on the token, and an error about an
entry of a list says where the entry is and nothing of its content. Which scope a call needs is said in
`topics.http.routes`.
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
"""The token of each request is compared with every key, which takes about 0.1 us a key."""


class Scope(Flag):
    """The rights of a key. No scope implies another."""

    READ = 1
    WRITE = 2
    DELETE = 4
    ADMIN = 8

    @property
    def words(self) -> list[str]:
        """The names of the scopes in this set, as API keys are configured with them."""
        return [str(scope.name).lower() for scope in self]


ANY_KEY: Final = Scope(0)
"""The scope that a call needs which every key may make."""

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

# The characters that an Authorization header may hold without quoting.
_KEY: Final = re.compile(r"[!-+\--9;-~]+")
# What the name of a topic or a router may begin with.
_PREFIX: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}")


class MalformedKeys(ValueError):
    """A list of keys is refused. The message says which entry is wrong, and contains nothing of it."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key; or `OPEN`, which stands for every client of a daemon without keys."""

    digest: bytes
    """The SHA-256 of the token; empty for `OPEN`."""
    scopes: Scope
    prefixes: tuple[str, ...]
    """The key is only for topics and routers whose names begin with one of these. Ascending, and none is a prefix of
    another; empty for any name."""

    @property
    def name(self) -> str:
        """The name of the key in logs: a part of the digest, which does not reveal the token."""
        return f"key-{self.digest.hex()[:8]}" if self.digest else "none"

    def covers(self, name: str) -> bool:
        """Return True if the prefixes of the key allow this topic or router."""
        return not self.prefixes or name.startswith(self.prefixes)

    def covered(self, prefix: str) -> list[str]:
        """The prefixes of the names that begin with `prefix` and that the key covers: ascending, none a prefix of
        another."""
        if not self.prefixes or prefix.startswith(self.prefixes):
            return [prefix]
        return [own for own in self.prefixes if own.startswith(prefix)]

    def check_scope(self, needed: Scope) -> None:
        """Raise `403 forbidden` if the key lacks one of the `needed` scopes; `detail.missing` names them."""
        missing = needed & ~self.scopes
        if missing:
            words = missing.words
            raise ApiError(
                "forbidden", f"the key has no scope for this: {' + '.join(words)}", detail={"missing": words}
            )

    def check_name(self, name: str, field: str = "topic") -> None:
        """Raise `403 forbidden` if the key does not cover `name`. `field` is "topic" or "router", and the field of
        `detail` that has the name."""
        if not self.covers(name):
            raise ApiError("forbidden", f"{field}: {name!r} has none of the key's prefixes", detail={field: name})


OPEN: Final = Key(b"", ALL, ())
"""The key of every client of a daemon without keys: it may do everything."""


class Keyring:
    """The keys that are valid now. An empty keyring means that there is no access control."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = tuple(keys)
        self._by_digest = {key.digest: key for key in self._keys}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def find(self, token: bytes) -> Key | None:
        """The key of a token; None if no key has it. The time that this takes depends neither on the token nor on the
        result."""
        digest = hashlib.sha256(token).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def current(self, key: Key) -> Key | None:
        """The key with the digest of `key`, which may have other scopes and prefixes now; None if it has been
        withdrawn. `OPEN` if the keyring is empty."""
        return self._by_digest.get(key.digest) if self._keys else OPEN


def parse_keys(text: str) -> tuple[Key, ...]:
    """Parse the value of `TOPICS_API_KEYS`: entries separated by commas. Raises MalformedKeys."""
    return _parse((f"entry {i}", entry) for i, entry in enumerate(text.split(","), 1))


def parse_key_file(text: str) -> tuple[Key, ...]:
    """Parse a file of keys: one entry a line, without empty lines and lines that begin with `#`. Raises
    MalformedKeys."""
    lines = ((f"line {i}", line.strip()) for i, line in enumerate(text.splitlines(), 1))
    return _parse((where, line) for where, line in lines if line and not line.startswith("#"))


def merged(*lists: Iterable[Key]) -> tuple[Key, ...]:
    """The keys of several lists as one. Raises MalformedKeys if a key is there twice, and for more than `MAX_KEYS`."""
    keys = tuple(key for keys in lists for key in keys)
    if len({key.digest for key in keys}) < len(keys):
        raise MalformedKeys("the same key is listed twice")
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
        raise MalformedKeys(f"{where}: a key must be visible ASCII characters without commas and colons")
    scopes = Scope(0)
    for word in scope_words.split("+") if scope_words else ():
        scope = _WORDS.get(word)
        if scope is None:
            raise MalformedKeys(f"{where}: a scope is not one of {', '.join(_WORDS)}")
        scopes |= scope
    names = prefixes.split("|") if prefixes else []
    if not all(_PREFIX.fullmatch(name) for name in names):
        raise MalformedKeys(f"{where}: no name of a topic or router can begin with one of the prefixes")
    return Key(hashlib.sha256(token.encode()).digest(), scopes or ALL, _disjoint(names))


def _disjoint(prefixes: Iterable[str]) -> tuple[str, ...]:
    """The prefixes in ascending order, without those that begin with another one."""
    kept: list[str] = []
    for prefix in sorted(prefixes):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return tuple(kept)
