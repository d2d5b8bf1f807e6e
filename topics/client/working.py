"""What a stream of jobs knows: the jobs that have come and were not taken, and how it goes on after a break.

A job of the stream is leased to its connection (`docs/spec/api.md` section 9). When that breaks, the daemon gives all
of its jobs to others at once, those included that somebody is at work on: the ack of such a job is skipped. Nothing is
resumed, so there is nothing to remember: the next connection is given what is ready then.

Pure, like `topics.client.following`, and driven in the same way.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import msgspec

from topics.client import calls
from topics.client.calls import Call
from topics.client.errors import TopicsError
from topics.client.reconnecting import OnBreak, OnResume, Reconnects, decoded, ended, error_event, silence_s
from topics.client.results import Job
from topics.client.sse import EventDecoder

_job: Final = msgspec.json.Decoder(Job)


def work(
    topic: str,
    node: str,
    *,
    max: int = 1,
    lease_ms: int | None = None,
    give_up_after: float | None = None,
    on_break: OnBreak | None = None,
    on_resume: OnResume | None = None,
) -> Working:
    """The jobs of a queue as they become ready, at most `max` at a time, for ever.

    They are leased to the connection, and go to others as soon as that is closed or breaks, or their lease (`lease_ms`,
    or the topic's) is over. A job is done with `ack(topic, node, [job.seq], lease_ids=[job.lease_id])`, which makes
    room for the next one; if its seq is among the answer's `skipped`, the job is not this node's any more.

    It survives restarts of the daemon and broken connections, as `watch` does, with the same `give_up_after`,
    `on_break` and `on_resume`. Raises NotFound when there is no such topic (any more), Conflict for one that is no
    queue, Unauthorized, Forbidden and BadRequest. For work that has to be extended, repeated and stopped there is
    `topics.client.Worker`.
    """
    reconnects = Reconnects(give_up_after=give_up_after, on_break=on_break, on_resume=on_resume)
    return Working(calls.open_work(topic, node, max=max, lease_ms=lease_ms), reconnects)


class Working:
    """See the module. It never ends by itself."""

    ended: Final = False

    def __init__(self, call: Call[bytes], reconnects: Reconnects | None = None) -> None:
        self.begun = False
        """There is such a queue."""
        self.silence_s = silence_s(None)
        """Seconds without a byte after which a stream is broken."""
        self.over = False
        """The stream that is open is of no more use: `finished` it."""
        self._call = call
        self._reconnects = reconnects or Reconnects()
        self._jobs: deque[Job] = deque()
        """At most as many as may be leased at once."""
        self._final: TopicsError | None = None
        self._events = EventDecoder()

    def take(self) -> Job | None:
        """The next job; None if there is none without asking the daemon."""
        return self._jobs.popleft() if self._jobs else None

    def next_call(self) -> Call[Any]:
        """The call for the stream."""
        self._events = EventDecoder()
        self._final = None
        self.over = False
        return self._call

    def answered(self, answer: object) -> None:
        """Never: all it asks for is a stream."""
        raise AssertionError(answer)

    def opened(self, now: float) -> None:
        """The stream is open."""
        self.begun = True
        self._reconnects.opened(now)

    def feed(self, piece: bytes, now: float) -> None:
        """Bytes of the stream. Raises ProtocolError for what is not of the contract."""
        events = False
        for event in self._events.feed(piece):
            events = True
            if event.name == "job":
                self._jobs.append(decoded(_job, event))
            elif event.name == "error":
                self._final = error_event(event)
                self.over = self._final is not None
        self._reconnects.heard(now, events=events)

    def finished(self, now: float) -> float:
        """The stream has ended, or is `over`. As `failed`."""
        return self.failed(self._final or ended(), now)

    def failed(self, error: TopicsError, now: float) -> float:
        """The call, or the stream, has failed. Returns how long to wait before the next call, in seconds; raises what
        cannot be survived."""
        return self._reconnects.after(error, now)

    def forget(self) -> None:
        """Something was interrupted halfway: what has come and was not taken goes to others with the connection."""
        self._jobs.clear()
