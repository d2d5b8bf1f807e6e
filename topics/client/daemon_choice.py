"""`DaemonChoice`: which of several daemons gets the next call (`docs/design/clients.md`).

Theory of operation. One of the daemons owns the data and takes changes; others may follow it and answer reads
(standbys), or wait. A client does not know which is which, and that changes. So it has a *row*: the daemons in the
order in which they were given, the one that gets the next call, and those that have failed since the last answer.

    an answer        the daemon stays, and all failures of the row are forgotten
    a failure after  the next daemon that has not failed gets the call, at once. If the daemon that has failed has named
    which another    the owner (`detail.owner` of `503 not_owner`), and this is one of the given daemons that has not
    may do           failed, it is the next. When all have failed, the error says so for each of them, the failures are
                     forgotten, and the call waits as `Retry` says, if it is repeated at all
    another failure  says nothing about who the owner is (400, 404, 429, 500, 503 `read_only`)

There are two rows with `any`: reads have their own, which begins at random, so that readers spread over the daemons.
Without it all calls go to the owner, and what a standby answers counts as `503 not_owner`.

An owner that a daemon names is asked only if it is one of the given ones: the API key must not go to another host.

No I/O and no waiting. Threads of one client share it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from topics.client.errors import ApiError, ConnectionFailed, ServerError, TopicsError, Unavailable

if TYPE_CHECKING:
    from topics.client.calls import ClientCall

ROLE: Final = "Topics-Role"
"""The header with which a daemon says that it does not own the data: `standby`, or `former`."""

ELSEWHERE: Final = frozenset({"not_owner", "behind", "not_ready", "shutting_down", "server_error"})
"""The codes of failures of a server after which another daemon may answer. `server_error` is that of a proxy."""


SILENCE_S: Final = 1.0
"""A daemon that has not answered for so long, when its caller gives up, counts as failed (s)."""


class _DaemonRow:
    """The daemons as one kind of call sees them."""

    __slots__ = ("at", "failed")

    def __init__(self, at: int) -> None:
        self.at = at
        """The daemon that gets the next call."""
        self.failed: dict[int, str] = {}
        """The daemons that have failed since the last answer, and how."""


class DaemonChoice:
    """The choice of one client among its daemons."""

    def __init__(self, urls: Sequence[str], *, any: bool, rng: Random) -> None:
        """`urls` are the daemons: one or more. With `any` reads may go to each of them."""
        self.urls = tuple(urls)
        self._any = any
        self._lock = threading.Lock()
        self._owner = _DaemonRow(0)
        self._reads = _DaemonRow(rng.randrange(len(self.urls))) if any else self._owner

    @property
    def url(self) -> str:
        """The daemon that gets the next change."""
        return self.urls[self._owner.at]

    def pick(self, call: ClientCall[Any]) -> DaemonAttempt:
        """Choose the daemon for one attempt at a call."""
        row = self._reads if call.only_reads else self._owner
        return DaemonAttempt(self, row, row.at, call)

    def not_counted(
        self, call: ClientCall[Any], at: int, headers: Mapping[str, str], found: TopicsError | None
    ) -> TopicsError | None:
        """Return the error that stands for an answer of a daemon that is not the owner and does not count; None if the
        answer counts. `found` is the error that the answer stands for by itself."""
        role = headers.get(ROLE)
        if len(self.urls) == 1 or call.probe or role is None:
            return None
        who = f"{self.urls[at]} is {'a standby' if role == 'standby' else 'not the owner any more'}"
        if isinstance(found, Unavailable):
            return None  # has said what it is, or is behind
        if self._any and call.only_reads:
            if not isinstance(found, ApiError) or not _may_come(found.code):
                return None
            missing = f"{who}, and does not have this, or not yet: {found.message}"
            return Unavailable(503, "behind", missing, found.detail)
        return Unavailable(503, "not_owner", who, {"owner": None, "refused": False})

    def answered(self, row: _DaemonRow) -> None:
        """Note that the daemon of a row has answered."""
        if row.failed:
            with self._lock:
                row.failed.clear()

    def failed(self, row: _DaemonRow, at: int, error: TopicsError) -> None:
        """Note that a call to a daemon has failed. Sets `elsewhere` of the error if another daemon is to be asked at
        once, or has its message tell of all daemons if all have failed."""
        count = len(self.urls)
        if count == 1 or not _may_be_elsewhere(error):
            return
        with self._lock:
            row.failed[at] = error.message
            following = [(at + step) % count for step in range(1, count)]
            left = [other for other in following if other not in row.failed]
            named = error.detail.get("owner") if error.code == "not_owner" else None
            owner = self.urls.index(named) if named in self.urls else None
            goal = owner if owner is not None and owner in (left or following) else (left or following)[0]
            if row.at == at:
                row.at = goal
            if left:
                error.elsewhere = True
                return
            told = "; ".join(_told(self.urls[one], text) for one, text in sorted(row.failed.items()))
            error.message = f"no daemon answers{'' if self._any and row is self._reads else ' as the owner'}: {told}"
            error.args = (error.message,)
            row.failed.clear()


class DaemonAttempt:
    """One attempt at a call, at the daemon that was chosen for it."""

    __slots__ = ("_at", "_call", "_choice", "_row")

    def __init__(self, choice: DaemonChoice, row: _DaemonRow, at: int, call: ClientCall[Any]) -> None:
        self._choice = choice
        self._row = row
        self._at = at
        self._call = call

    @property
    def url(self) -> str:
        """The daemon."""
        return self._choice.urls[self._at]

    def judge(self, headers: Mapping[str, str], error: TopicsError | None = None) -> None:
        """Take the answer of the daemon: its headers, and the error that it stands for. Raises `error`, or what it
        means among several daemons."""
        error = self._choice.not_counted(self._call, self._at, headers, error) or error
        if error is not None and _may_be_elsewhere(error):
            raise self.failure(error)
        self._choice.answered(self._row)
        if error is not None:
            raise error

    def given_up(self, seconds: float) -> None:
        """Note that the caller has waited for so long, and does not any more. If that is longer than the daemon may
        wait on purpose, it may be paused: the next call goes to another one, which costs a hop if it was not."""
        if seconds > self._call.waits + SILENCE_S:
            self.failure(ConnectionFailed(f"{self.url}: no answer within {seconds:.1f} s", outcome_unknown=True))

    def failure(self, error: TopicsError) -> TopicsError:
        """Note that there is no answer, or none that counts. Returns the error."""
        self._choice.failed(self._row, self._at, error)
        return error


def _may_be_elsewhere(error: TopicsError) -> bool:
    """Return True if another daemon may do what this one has not."""
    return isinstance(error, ConnectionFailed) or (isinstance(error, ServerError) and error.code in ELSEWHERE)


def _may_come(code: str) -> bool:
    """Return True if an error of a standby says that it does not have what the owner may have by now."""
    return code.endswith("_not_found") or code == "no_evidence"


def _told(url: str, text: str) -> str:
    return text if text.startswith(url) else f"{url}: {text}"
