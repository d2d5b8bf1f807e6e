"""What a running call needs its key for, so that it ends when the key is not good for that any more.

The gate opens a `Grant` for each call with a key, and each command of a socket; whoever finds more names in a body adds
them with `check_name`. `topics.http.access.key_access` withdraws the grants that a reload of the keys no longer allows,
and then every wait of the call ends (`topics.runtime.withdrawal`).
"""

from __future__ import annotations

from collections.abc import Iterable

from topics.auth.keys import Key, Scope
from topics.errors import ApiError
from topics.runtime.withdrawal import Withdrawal


class Grant:
    """The rights that one call uses; where there are no keys nothing is kept. Checks raise `403 forbidden`."""

    __slots__ = ("_names", "_scopes", "key", "withdrawal")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.withdrawal = Withdrawal()
        self._scopes = Scope(0)
        self._names: list[str] = []

    @property
    def shows(self) -> tuple[Scope, Iterable[str]]:
        """What its key has to be good for: scopes, and names."""
        return self._scopes, self._names

    def check_scope(self, needed: Scope) -> None:
        """The call needs this scope as well."""
        self.key.check_scope(needed)
        if self.key.digest:
            self._scopes |= needed

    def check_name(self, name: str, field: str = "topic") -> None:
        """The call is about this name as well."""
        self.key.check_name(name, field)
        if self.key.digest:
            self._names.append(name)

    def withdraw(self, reason: ApiError) -> None:
        """Its key is not good for it any more: what it waits for ends with `reason`."""
        self.withdrawal.end(reason)
