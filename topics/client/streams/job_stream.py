"""The state of a stream of jobs: the jobs that have come and were not taken, and the next call after a break.

A job of the stream is leased to the connection (`docs/spec/api.md` section 9). When the connection breaks, the daemon
gives all of its jobs to other nodes at once, also those that a caller is working on: the ack of such a job is skipped.
Nothing is resumed, so there is nothing to remember: the next connection gets the jobs that are ready then.

Pure, and driven in the same way as `topics.client.streams.follower`.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import msgspec

from topics.client import calls
from topics.client.calls import ClientCall
from topics.client.errors import TopicsError
from topics.client.results import Job
from topics.client.streams.reconnection import OnBreak, OnResume, Reconnection, decoded, ended, error_event, silence_s
from topics.client.streams.sse import EventDecoder

_job: Final = msgspec.json.Decoder(Job)


def work(
    topic: str,
    node: str,
    *,
    max: int = 1,
    lease_ms: int | None = None,
    group: str | None = None,
    give_up_after: float | None = None,
    on_break: OnBreak | None = None,
    on_resume: OnResume | None = None,
) -> JobStream:
    """The jobs of a queue as they become ready, without end; at most `max` are leased at a time.

    They are leased to the connection. When it is closed or breaks, the daemon gives them to other nodes at once; so it
    does with a job whose lease ends (`lease_ms`; None: as the topic says). When a job is done, call
    `ack(topic, node, [job.seq], lease_ids=[job.lease_id])`, which makes room for the next one. If the result has its
    seq in `skipped`, another node may have the job. With `group` (also of the ack) the jobs are the records of a log,
    for a group of it.

    The iterator survives restarts of the daemon and broken connections, with `give_up_after`, `on_break` and
    `on_resume` as in `watch`. Raises NotFound where the topic does not exist or was deleted, Conflict for a topic that
    is no queue, and Unauthorized, Forbidden and BadRequest. A `Worker` extends leases, repeats acks and can be stopped;
    this iterator does not.
    """
    reconnection = Reconnection(give_up_after=give_up_after, on_break=on_break, on_resume=on_resume)
    return JobStream(calls.open_work(topic, node, max=max, lease_ms=lease_ms, group=group), reconnection)


class JobStream:
    """The state machine of a stream of jobs, driven as `Follower`. It never ends by itself."""

    ended: Final = False

    def __init__(self, call: ClientCall[bytes], reconnection: Reconnection | None = None) -> None:
        self.begun = False
        """The daemon has opened the stream once, so there is such a queue."""
        self.silence_s = silence_s(None)
        """How long a stream may bring no byte before it counts as broken, in seconds."""
        self.over = False
        """The open stream is of no more use: close it and call `finished`."""
        self._call = call
        self._reconnection = reconnection or Reconnection()
        self._jobs: deque[Job] = deque()
        """The jobs that have come and were not taken: at most `max` of the call."""
        self._final: TopicsError | None = None
        self._events = EventDecoder()

    def take(self) -> Job | None:
        """Return the next job; None if no job has come that was not taken."""
        return self._jobs.popleft() if self._jobs else None

    def next_call(self) -> ClientCall[Any]:
        """The call that opens the stream."""
        self._events = EventDecoder()
        self._final = None
        self.over = False
        return self._call

    def answered(self, answer: object) -> None:
        """Never called, since `next_call` always asks for a stream."""
        raise AssertionError(answer)

    def opened(self, now: float) -> None:
        """Note that the stream is open, at `now` (seconds of any clock that does not jump)."""
        self.begun = True
        self._reconnection.opened(now)

    def feed(self, piece: bytes, now: float) -> None:
        """Take a piece of the stream. Raises ProtocolError for bytes that no daemon sends."""
        events = False
        for event in self._events.feed(piece):
            events = True
            if event.name == "job":
                self._jobs.append(decoded(_job, event))
            elif event.name == "error":
                self._final = error_event(event)
                self.over = self._final is not None
        self._reconnection.heard(now, events=events)

    def finished(self, now: float) -> float:
        """Note that the stream has ended, or was closed because it is `over`. Returns and raises as `failed`."""
        return self.failed(self._final or ended(), now)

    def failed(self, error: TopicsError, now: float) -> float:
        """Note that the call or the stream has failed. Returns how long to wait before the next call, in seconds.
        Raises the error if another call cannot help, or if it is time to give up."""
        return self._reconnection.after(error, now)

    def forget(self) -> None:
        """Forget the jobs that are not taken, for when the shell was interrupted while it handed in a piece: the daemon
        gives them to other nodes when the connection closes."""
        self._jobs.clear()
