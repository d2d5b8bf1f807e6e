"""The calls of a queue, and of a group of a log, over HTTP (`docs/spec/api.md` section 9): claim, ack, nack, extend,
and the `/work` stream."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import trio

from topics.auth.keys import Scope
from topics.engine.delivery.feed import ConnectionEnd
from topics.engine.engine import Engine
from topics.engine.queues.queue_calls import STREAM_BYTES, JobSubscription
from topics.errors import ApiError
from topics.http.answer_types import GroupPauseAnswer, PauseAnswer
from topics.http.answers.sse import EVENTS, accepts_events, job_event
from topics.http.calls import Call, ConnectionSight, Response, encode, json_response
from topics.http.connections.exchange import ClientGone
from topics.http.handlers.streams import OpenStream
from topics.http.handlers.transports import event_transport
from topics.http.requests.queue_requests import (
    decode_ack,
    decode_claim,
    decode_extend,
    decode_nack,
    decode_pause,
    decode_work,
)
from topics.http.requests.watch_requests import DEFAULT_HEARTBEAT_MS
from topics.job_model import ClaimResult, HeldResult, Job
from topics.model import QueueState

RETRY_S: Final = 1.0
"""Pause of a `/work` stream after a read has failed, or while nothing can be claimed, seconds."""


class Queues:
    """The handlers of the calls about jobs. Those of a group have its name in their path."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def claim(self, call: Call) -> Response:
        """`POST /v0/topics/{topic}/claim`."""
        engine, topic, group = self._engine, call.params["topic"], call.params.get("group")
        request = decode_claim(call.body, engine.settings)
        waits_ms = request.wait_ms + engine.queues.window_ms(topic, group)
        if waits_ms:
            call.allow(waits_ms)
            # While the claim waits, the client may leave; then it must not be given jobs.
            try:
                result = await call.while_connected(lambda: engine.queues.claim(topic, request, call.perf, group))
            except ClientGone:
                if not call.may_be_answered():
                    raise
                result = engine.queues.nothing_claimed(topic, group)
        else:
            result = await engine.queues.claim(topic, request, call.perf, group)
        answer = b'{"topic":"%b",%b"claimed":[%b],"count":%d,"ready":%d,%b%b"performance":%b}' % (
            topic.encode(),
            b"" if group is None else b'"group":"%b",%b' % (group.encode(), _behind(result)),
            b",".join([b"{%b" % entry(job) for job in result.jobs]),
            len(result.jobs),
            result.ready,
            b'"paused":true,' if result.paused else b"",
            b'"wants_results":true,' if result.wants_results else b"",
            encode(call.performance(engine.clock.perf_ns())),
        )
        leased = [job._replace(record=b"") for job in result.jobs]  # the records are in the answer
        return Response(200, answer, undelivered=partial(engine.queues.give_back, topic, leased, group))

    async def ack(self, call: Call) -> Response:
        """`POST /v0/topics/{topic}/ack`."""
        request = decode_ack(call.body, self._engine.settings)
        result = await self._engine.queues.ack(call.params["topic"], request, call.perf, call.params.get("group"))
        return self._answer(call, "acked", result)

    async def nack(self, call: Call) -> Response:
        """`POST /v0/topics/{topic}/nack`."""
        request, nack = decode_nack(call.body, self._engine.settings)
        topic, group = call.params["topic"], call.params.get("group")
        result = await self._engine.queues.nack(topic, request, nack, call.perf, group)
        return self._answer(call, "nacked", result)

    async def pause(self, call: Call) -> Response:
        """`POST /v0/topics/{topic}/pause`."""
        topic, group = call.params["topic"], call.params.get("group")
        until = decode_pause(call.body)
        return self._state(call, await self._engine.queues.pause(topic, until, call.perf, group))

    async def resume(self, call: Call) -> Response:
        """`POST /v0/topics/{topic}/resume`."""
        topic, group = call.params["topic"], call.params.get("group")
        return self._state(call, await self._engine.queues.resume(topic, call.perf, group))

    def _state(self, call: Call, state: QueueState) -> Response:
        performance = call.performance(self._engine.clock.perf_ns())
        if "group" in call.params:
            return json_response(GroupPauseAnswer(**call.params, queue=state, performance=performance))
        return json_response(PauseAnswer(topic=call.params["topic"], queue=state, performance=performance))

    async def extend(self, call: Call) -> Response:
        """`POST /v0/topics/{topic}/extend`."""
        request, lease_ms = decode_extend(call.body, self._engine.settings)
        topic, group = call.params["topic"], call.params.get("group")
        result = await self._engine.queues.extend(topic, request, lease_ms, call.perf, group)
        answer = {
            **place_of(call),
            "extended": len(result.done),
            "skipped": result.skipped,
            "deadlines": result.deadlines,
        }
        return self._with_performance(call, answer)

    def _answer(self, call: Call, what: str, result: HeldResult) -> Response:
        answer = {
            **place_of(call),
            what: len(result.done),
            "skipped": result.skipped,
            "ready": result.ready,
            "in_flight": result.in_flight,
        }
        return self._with_performance(call, answer)

    def _with_performance(self, call: Call, answer: dict[str, Any]) -> Response:
        answer["performance"] = call.performance(self._engine.clock.perf_ns())
        return Response(200, encode(answer))

    async def work(self, call: Call) -> WorkStream:
        """`GET /v0/topics/{topic}/work`."""
        engine, topic, group = self._engine, call.params["topic"], call.params.get("group")
        request = decode_work(call.query, engine.settings)
        work = await engine.queues.open_work(topic, request.node, request.most, request.lease_ms, group)
        if not accepts_events(call.headers.get(b"accept")):
            raise ApiError("not_acceptable", "this is a stream of text/event-stream")
        return WorkStream(engine, call, work)


class WorkStream(OpenStream):
    """A stream of jobs. When it ends, its leases end."""

    def __init__(self, engine: Engine, call: Call, work: JobSubscription) -> None:
        super().__init__(engine, call)
        self._work = work
        transport = event_transport(call.exchange, self.scope)
        self.outbox = engine.watch_sessions.open_socket(EVENTS, transport)

    @property
    def shows(self) -> tuple[Scope, Iterable[str]]:
        """The scopes READ and WRITE, and the topic."""
        return Scope.READ | Scope.WRITE, (self._work.topic.name,)

    @property
    def sight(self) -> ConnectionSight:
        """Return the figures that operators see of the stream. Its lag is the number of jobs without a holder."""
        work, outbox = self._work, self.outbox
        return ConnectionSight(
            "work", self.peer, (work.topic.name,), work.queue.ready(work.topic.log), outbox.waiting_bytes
        )

    def close(self) -> None:
        """Close the stream and end its leases."""
        super().close()
        self._engine.watch_sessions.close_socket(self.outbox)
        self._engine.queues.close_work(self._work)

    async def send(self) -> None:
        """Claim jobs and send them until the outbox is finished."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pump)
            await self.outbox.send_all(DEFAULT_HEARTBEAT_MS / 1000, self.heartbeat)
            nursery.cancel_scope.cancel()

    async def _pump(self) -> None:
        """Claim jobs whenever the connection has room, and put them into the outbox."""
        name, group = self._work.topic.name.encode(), self._work.queue.group
        if group is not None:
            name += b'","group":"' + group.encode()
        held_up = False
        while await self.outbox.room(STREAM_BYTES):
            try:
                jobs = await self._engine.queues.next_jobs(self._work)
            except ApiError as error:
                if error.code in ("not_ready", "read_only"):
                    if not held_up and self.outbox.has_room():
                        held_up = True
                        wait_ms = int(RETRY_S * 1000)
                        self.outbox.put(EVENTS.held_up([self._work.topic.name], error.message, wait_ms))
                    await trio.sleep(RETRY_S)
                    continue
                self.outbox.finish(ConnectionEnd(error.status, error.code, error.message))
                return
            held_up = False
            self.outbox.put(b"".join([job_event(job.seq, b'{"topic":"%b",%b' % (name, entry(job))) for job in jobs]))


def _behind(result: ClaimResult) -> bytes:
    """How far a group is behind, and which records it has missed, as members of a JSON object."""
    return b'"lag":%d,"missed":%d,' % (result.lag or 0, result.missed or 0)


def place_of(call: Call) -> dict[str, Any]:
    """The topic of a call, and its group if it has one."""
    return {name: call.params[name] for name in ("topic", "group") if name in call.params}


def entry(job: Job) -> bytes:
    """The JSON of a job, as claims and streams show it, without the opening brace."""
    return b'"lease_id":"lease_%016x","deadline":%d,"deliveries":%d,%b' % job[1:]
