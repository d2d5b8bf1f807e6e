"""The scopes and names for which a running call needs its key, so that the call ends when the key loses one of them.

The gate makes a `Grant` for each call with a key, and the WebSocket handler one for each command. Handlers that find
more names in a body add them with `check_name`. When the keys are reloaded, `topics.http.access.key_access` withdraws
the grants that the new keys do not allow; then every wait of such a call ends (`topics.runtime.withdrawal`).
"""

from __future__ import annotations

from collections.abc import Iterable

from topics.auth.keys import Key, Scope
from topics.auth.served_names import EVERY_NAME, ServedNames
from topics.errors import ApiError
from topics.log.names import check_topic_name
from topics.log.topic_config import TARGETS
from topics.model import TopicConfigPatch
from topics.runtime.withdrawal import Withdrawal


class Grant:
    """The rights that one call uses. Without keys nothing is recorded."""

    __slots__ = ("_names", "_scopes", "_served", "key", "withdrawal")

    def __init__(self, key: Key, served: ServedNames = EVERY_NAME) -> None:
        self.key = key
        self._served = served
        self.withdrawal = Withdrawal()
        self._scopes = Scope(0)
        self._names: list[str] = []

    @property
    def shows(self) -> tuple[Scope, Iterable[str]]:
        """The scopes that the call needs, and the names of the topics and routers that it is about."""
        return self._scopes, self._names

    def check_scope(self, needed: Scope) -> None:
        """Check that the key has a scope that the call needs, and record it. Raises `403 forbidden`."""
        self.key.check_scope(needed)
        if self.key.digest:
            self._scopes |= needed

    def check_name(self, name: str, field: str = "topic") -> None:
        """Check that this daemon serves a name that the call is about and that the key covers it, and record it. Raises
        `421 not_here`, `403 forbidden`; `field` is the field of the request that has the name."""
        self._served.check(name, field)
        self._check_covered(name, field)

    def check_prefix(self, prefix: str) -> None:
        """As `check_name`, for all names that begin so. Raises `421 not_here` only if none of them is served here."""
        self._served.check_prefix(prefix)
        self._check_covered(prefix, "topic")

    def _check_covered(self, name: str, field: str) -> None:
        self.key.check_name(name, field)
        if self.key.digest:
            self._names.append(name)

    def check_targets(self, patch: TopicConfigPatch) -> None:
        """Check that the key covers the topics to which a config has jobs and results go, and record them. Raises
        `403 forbidden`."""
        for field in TARGETS:
            name = getattr(patch, field)
            if isinstance(name, str):
                self.check_name(check_topic_name(name, field), field)

    def withdraw(self, reason: ApiError) -> None:
        """End the waits of the call with `reason`, because its key no longer allows it."""
        self.withdrawal.end(reason)
