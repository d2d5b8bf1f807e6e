"""The state of a program that consumes a topic under a name: its unfinished records, its position, its lease.

Pure: no I/O, no clock. The clients drive it: they `take` values until there is none to be had, make `next_call`, and
pass the outcome to `answered` or `failed`. At the end they make the `closing_calls`.

A value counts as finished when the next one is taken. The next read commits the finished values; if there is none for
`COMMIT_S` after the last commit, a commit of its own does. The program owns its consumer by a lease that it renews
between values; when it has lost the consumer to another owner, it drops its unfinished values, waits until it has the
consumer again, and goes on where that is then. So every record is handled at least once, and no two programs commit
under one name.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from topics.client import calls, consumer_calls, results
from topics.client.calls import ClientCall, Filter
from topics.client.consumer_calls import Place
from topics.client.errors import ApiError, TopicsError
from topics.client.results import Record, Tombstone

COMMIT_S: Final = 1.0
"""How long a finished value stays uncommitted while there are more in hand, in seconds."""

LONGEST_WAIT_MS: Final = 20_000
"""How long one read waits for a record."""

LONGEST_POLL_S: Final = 1.0
"""How long to wait before asking again for a consumer that somebody else owns, in seconds."""


def consume(
    topic: str,
    consumer: str,
    *,
    from_: Place = "tail",
    limit: int = 256,
    lease_ms: int = 30_000,
    owner: str | None = None,
    filter: Filter | None = None,
) -> Consumption:
    """The records of a topic, one after the other and without end, from where the named consumer is. A consumer that
    does not exist is created and begins at `from_`.

    A record is finished when the next one is asked for, and is not given out again once that is committed, at once or a
    second later. A program that ends the iteration before the commit gets the record again the next time. Where records
    are gone that nobody has deleted, a Tombstone stands in their place. Iterators of one consumer take turns: only one
    gets records at a time, the others wait until it ends, or until its lease of `lease_ms` runs out because it is gone.
    A record should be handled well within that time. `owner` names this program; the default is a name that nobody else
    has.

    With `filter` only records come that match; the daemon keeps the filter with the consumer. Without it, the filter
    that the consumer has applies; `"null"` takes that away. Records that do not match count as finished.

    A restart of the daemon is survived for as long as `retry` allows. Raises NotFound where there is no such topic, or
    when the consumer is deleted meanwhile. A topic that is made again is read from its beginning.
    """
    return Consumption(topic, consumer, from_, limit, lease_ms, owner or default_owner(), filter)


def default_owner() -> str:
    """A name for this program that nobody else has."""
    return f"{socket.gethostname()[:64]}/{os.getpid()}/{uuid.uuid4().hex[:8]}"


class Consumption:
    """See the module. Times are seconds of a clock that does not jump."""

    def __init__(
        self,
        topic: str,
        consumer: str,
        from_: Place,
        limit: int,
        lease_ms: int,
        owner: str,
        filter: Filter | None = None,
    ) -> None:
        self._topic = topic
        self._consumer = consumer
        self._from: Place = from_
        self._limit = limit
        self._lease_ms = lease_ms
        self._owner = owner
        self._filter = filter
        self._epoch: int | None = None
        """Of the topic; None until the consumer is known to exist."""
        self._generation: int | None = None
        """Under which it is owned; None if it is not, as far as is known."""
        self._renew_at = 0.0
        self._commit_at = 0.0
        self._values: deque[tuple[int, Record | Tombstone]] = deque()
        """Values that were read and not yet taken, each with the seq that is finished with it."""
        self._taken = 0
        """Finished with the value that was taken last; 0 if none was."""
        self._done: int | None = None
        """Finished, but not committed as far as is known."""
        self._asked = ""
        """The kind of the last call."""
        self._began = 0.0
        """When it began."""

    def take(self, now: float) -> Record | Tombstone | None:
        """Return the next value; the one before is finished. None: make `next_call` first."""
        if self._taken:
            self._done, self._taken = self._taken, 0
        if self._generation is None or now >= self._renew_at or not self._values:
            return None
        if self._done is not None and now >= self._commit_at:
            return None
        self._taken, value = self._values.popleft()
        return value

    def next_call(self, now: float) -> ClientCall[Any]:
        """Return the call that has to be made before there is another value."""
        topic, consumer = self._topic, self._consumer
        self._began = now
        if self._epoch is None:
            self._asked = "put"
            return consumer_calls.create_consumer(topic, consumer, from_=self._from, filter=self._filter)
        if self._generation is None or now >= self._renew_at:
            self._asked = "acquire"
            return consumer_calls.acquire_consumer(topic, consumer, self._owner, lease_ms=self._lease_ms)
        if self._values:
            self._asked = "commit"
            return self._commit()
        self._asked = "read"
        return consumer_calls.read_consumer(
            topic,
            consumer,
            commit_seq=self._done if self._done is not None else 0,
            generation=self._generation,
            epoch=self._epoch,
            limit=self._limit,
            wait_ms=min(LONGEST_WAIT_MS, self._lease_ms // 3),
        )

    def _commit(self) -> ClientCall[results.ConsumerMoved]:
        assert self._done is not None
        return consumer_calls.commit_consumer(
            self._topic, self._consumer, self._done, generation=self._generation, epoch=self._epoch
        )

    def answered(self, answer: Any) -> None:
        """Take the answer to the last call."""
        if self._asked == "put":
            self._epoch = answer.epoch
            self._from = "earliest"  # of a topic that is made again nothing is missed
        elif self._asked == "acquire":
            if answer.generation != self._generation:
                self._drop()  # somebody else may have moved it since
            self._generation = answer.generation
            self._renew_at = self._began + self._lease_ms / 3000
        else:
            self._done = None
            self._commit_at = self._began + COMMIT_S
            if self._asked == "read":
                self._fill(answer)

    def _fill(self, page: results.Page) -> None:
        for value in calls.values_of(page):
            self._values.append((value.gap_to if isinstance(value, Tombstone) else value.seq, value))
        if self._values:
            last, value = self._values.pop()
            self._values.append((max(last, page.next_from_seq), value))
        else:
            self._done = page.next_from_seq  # what was there is deleted

    def failed(self, error: TopicsError) -> float:
        """Take the failure of the last call. Return how long to wait before the next one, in seconds. Raises the error
        if there is nothing more to come."""
        if not isinstance(error, ApiError) or error.code not in {"fenced", "consumer_owned"}:
            raise error
        self._drop()
        self._generation = None
        if error.code == "consumer_owned":
            return min(LONGEST_POLL_S, self._lease_ms / 3000)
        if "epoch" in error.detail:
            self._epoch = None
        return 0.0

    def _drop(self) -> None:
        self._values.clear()
        self._taken, self._done = 0, None

    def closing_calls(self) -> Iterator[ClientCall[Any]]:
        """Yield the calls that commit what is finished, and let others go on at once. The value that was taken last is
        not finished."""
        if self._generation is not None:
            if self._done is not None:
                yield self._commit()
            yield consumer_calls.release_consumer(self._topic, self._consumer, self._generation)
