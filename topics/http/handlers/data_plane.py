"""The calls that are made most often or last longest: append, stages, diff, queues, streams and states. They do not
go through Quart, which takes 0.3 ms a request, as much as all the rest of such a call (`docs/spec/runtime.md` section
3).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from topics.auth.keys import Scope
from topics.engine.engine import Engine
from topics.engine.operations.backward_reads import BackwardRead, BackwardResult
from topics.errors import ApiError, invalid
from topics.http.answer_types import FenceDeletedAnswer, TransactionAnswer, TransactionMember
from topics.http.calls import (
    Call,
    OpenAnswer,
    Response,
    append_answer,
    encode,
    idempotency_header,
    json_response,
)
from topics.http.connections.exchange import ClientGone
from topics.http.grants import Grant
from topics.http.handlers.consumers import ConsumerHandlers
from topics.http.handlers.evidence import EvidenceHandlers
from topics.http.handlers.groups import GroupHandlers
from topics.http.handlers.jobs import JobHandlers
from topics.http.handlers.latest import LatestHandlers
from topics.http.handlers.queues import Queues
from topics.http.handlers.raw_bytes import RawBytes
from topics.http.handlers.redrives import RedriveHandlers
from topics.http.handlers.schedules import ScheduleHandlers
from topics.http.handlers.stages import Stages
from topics.http.handlers.states import States
from topics.http.handlers.streams import Streams
from topics.http.openapi.strict_names import check_keys, explained, is_strict, names_of
from topics.http.requests import append_requests, read_requests, transaction_requests
from topics.http.requests.body_reader import raw_type
from topics.model import Performance, ReadRequest, ReadResult, TopicConfigPatch
from topics.runtime.turns import BULK_BYTES

Handler = Callable[[Call], Awaitable[Response | OpenAnswer]]


LARGE_ANSWER: Final = 512 << 10
"""Bytes of records from which on making the answer of a diff takes a turn: they are copied twice."""

_TRANSACTION_KEYS: Final = names_of(transaction_requests.TransactionBody)


class DataPlane:
    """The handlers of the data plane, by the names of the route table. `refusal` returns the error with which the gate
    refuses requests in the present phase of the daemon."""

    def __init__(self, engine: Engine, refusal: Callable[[], ApiError | None]) -> None:
        self._engine = engine
        states = States(engine, refusal)
        streams = Streams(engine)
        queues = Queues(engine)
        jobs = JobHandlers(engine)
        consumers = ConsumerHandlers(engine)
        schedules = ScheduleHandlers(engine)
        groups = GroupHandlers(engine)
        redrives = RedriveHandlers(engine)
        evidence = EvidenceHandlers(engine)
        self._stages = Stages(engine)
        self._raw_bytes = RawBytes(engine, self._stages)
        self.handlers: Mapping[str, Handler] = {
            "append": self.append,
            "transaction": self.transaction,
            "commit": self._stages.commit,
            "delete_stage": self._stages.delete_stage,
            "delete_fence": self.delete_fence,
            "diff_post": self.diff_post,
            "diff_get": self.diff_get,
            "get_record": self.get_record,
            "latest": LatestHandlers(engine).get,
            "open_watch": streams.open_watch,
            "watch": streams.watch,
            "stream": streams.stream,
            "ws": self.ws,
            "claim": queues.claim,
            "ack": queues.ack,
            "nack": queues.nack,
            "pause": queues.pause,
            "resume": queues.resume,
            "extend": queues.extend,
            "redrive": redrives.start,
            "get_redrive": redrives.get,
            "stop_redrive": redrives.stop,
            "work": queues.work,
            "list_jobs": jobs.page,
            "retry_jobs": jobs.retry,
            "cancel_jobs": jobs.cancel,
            "list_group_jobs": jobs.page,
            "retry_group_jobs": jobs.retry,
            "cancel_group_jobs": jobs.cancel,
            "put_consumer": consumers.put,
            "get_consumer": consumers.get,
            "list_consumers": consumers.page,
            "delete_consumer": consumers.delete,
            "commit_consumer": consumers.commit,
            "seek_consumer": consumers.seek,
            "acquire_consumer": consumers.acquire,
            "release_consumer": consumers.release,
            "put_schedule": schedules.put,
            "get_schedule": schedules.get,
            "list_schedules": schedules.page,
            "delete_schedule": schedules.delete,
            "run_schedule": schedules.run,
            "pause_schedule": schedules.pause,
            "resume_schedule": schedules.resume,
            "put_group": groups.put,
            "get_group": groups.get,
            "all_groups": groups.all,
            "all_consumers": consumers.all,
            "list_groups": groups.page,
            "delete_group": groups.delete,
            "group_claim": queues.claim,
            "group_ack": queues.ack,
            "group_nack": queues.nack,
            "group_extend": queues.extend,
            "group_pause": queues.pause,
            "group_resume": queues.resume,
            "group_work": queues.work,
            "evidence": evidence.checkpoint,
            "inclusion": evidence.inclusion,
            "consistency": evidence.consistency,
            "evidence_key": evidence.key,
            "get_topic": states.get_topic,
            "health": states.health,
            "healthz": states.health,
            "ready": states.ready,
            "readyz": states.ready,
        }

    async def append(self, call: Call) -> Response:
        """`POST /v0/topics/{topic}` (`docs/spec/api.md` section 4)."""
        if (content_type := raw_type(call)) is not None:
            return await self._raw_bytes.append(call, content_type)
        engine = self._engine
        topic = call.params["topic"]
        query = append_requests.decode_append_query(call.query)
        if not call.body:
            raise invalid("records", "is required")
        strict = is_strict(call.headers)
        try:
            key = idempotency_header(call)
            if len(call.body) < append_requests.LARGE_APPEND:
                if len(call.body) >= BULK_BYTES:
                    await engine.turns.take(len(call.body))
                request = append_requests.decode_append(call.body, engine.settings, key, strict=strict)
            else:
                request = await engine.turns.each(
                    append_requests.decode_append_in_steps(call.body, engine.settings, key, strict=strict)
                )
        except ApiError as error:
            raise (explained(error) if strict else error) from None
        if request.config is not None:
            call.audited = True
            append_requests.check_inline_config(topic, request.config)
            check_config_access(call.grant, request.config)
        call.waits = request.disable_backpressure
        if query.stage is not None:
            return await self._stages.append(call, query.stage, request)
        result = await engine.appends.append(topic, request, call.perf)
        answer = append_answer(result, call.performance(engine.clock.perf_ns()), return_seqs=query.return_seqs)
        return Response(201 if result.created else 200, answer)

    async def transaction(self, call: Call) -> Response:
        """`POST /v0/transactions` (`docs/spec/consumers.md` section 1)."""
        engine = self._engine
        if len(call.body) >= BULK_BYTES:
            await engine.turns.take(len(call.body))
        strict = is_strict(call.headers)
        steps = transaction_requests.decode_transaction(
            call.body,
            engine.settings,
            idempotency_header(call),
            explained=partial(explained, also=("topic",)) if strict else None,
            check_keys=partial(check_keys, known=_TRANSACTION_KEYS) if strict else None,
        )
        request = await engine.turns.each(steps)
        for i, (name, append) in enumerate(zip(request.topics, request.appends, strict=True)):
            call.grant.check_name(name)
            if append.config is not None:
                call.audited = True
                try:
                    append_requests.check_inline_config(name, append.config)
                except ApiError as error:
                    raise transaction_requests.of_member(error, i, name) from None
                check_config_access(call.grant, append.config)
        result = await engine.transactions.append(request, call.perf)
        answer = TransactionAnswer(
            appends=[
                TransactionMember(
                    topic=one.topic,
                    first_seq=one.first_seq,
                    last_seq=one.last_seq,
                    seqs=list(range(one.first_seq, one.last_seq + 1)),
                    count=one.count,
                    created=one.created,
                )
                for one in result.appends
            ],
            deduped=result.deduped,
            performance=call.performance(engine.clock.perf_ns()),
        )
        return Response(200, encode(answer))

    async def delete_fence(self, call: Call) -> Response:
        """`DELETE /v0/topics/{topic}/fences/{fence}` (`docs/spec/consumers.md` section 1)."""
        topic, fence = call.params["topic"], call.params["fence"]
        deleted = await self._engine.fence_removals.remove(topic, fence, call.perf)
        performance = call.performance(self._engine.clock.perf_ns())
        return json_response(FenceDeletedAnswer(topic=topic, fence=fence, deleted=deleted, performance=performance))

    async def diff_post(self, call: Call) -> Response:
        """`POST /v0/topics/{topic}/diff` (`docs/spec/api.md` section 5)."""
        return await self._diff(call, read_requests.decode_read(call.body, self._engine.settings))

    async def diff_get(self, call: Call) -> Response:
        """`GET /v0/topics/{topic}/diff`: the same read, described by query parameters."""
        return await self._diff(call, read_requests.decode_read_query(call.query, self._engine.settings))

    async def get_record(self, call: Call) -> Response:
        """`GET /v0/topics/{topic}/records/{seq}`: one record (`docs/spec/consumers.md` section 7)."""
        record = await self._engine.reads.record(call.params["topic"], int(call.params["seq"]), call.perf)
        call.gathered(len(record))
        return await self._raw_bytes.answer(call, record)

    async def ws(self, call: Call) -> Response:
        """`GET /v0/ws` without an upgrade to WebSocket: refused. The gate opens WebSockets."""
        raise invalid("Upgrade", "must be websocket")

    async def _diff(self, call: Call, request: ReadRequest | BackwardRead) -> Response:
        topic = call.params["topic"]
        if isinstance(request, BackwardRead):
            found = await self._engine.backward_reads.read(topic, request, call.perf)
            size = sum(map(len, found.records))
            call.gathered(size)
            if size >= LARGE_ANSWER:
                await self._engine.turns.take(size)
            return Response(200, _backward_answer(found, call.performance(self._engine.clock.perf_ns())))
        request.gathered = call.gathered
        read = self._engine.reads.read
        if request.consumer is not None:
            read = self._engine.consumer_reads.read
            if request.consumer.commits:
                call.changes = True
                call.grant.check_scope(Scope.WRITE)
        if request.wait_ms:
            call.allow(request.wait_ms)
            # While the read waits, the client may leave; then the wait ends.
            try:
                result = await call.while_connected(lambda: read(topic, request, call.perf))
            except ClientGone:
                if not call.may_be_answered():
                    raise
                request.wait_ms = 0
                result = await read(topic, request, call.perf)
        else:
            result = await read(topic, request, call.perf)
        if (size := len(result.records)) >= LARGE_ANSWER:
            await self._engine.turns.take(size)
        return Response(200, _diff_answer(result, call.performance(self._engine.clock.perf_ns())))


def check_config_access(grant: Grant, patch: TopicConfigPatch) -> None:
    """Check that the key of a call allows a config in an append. Raises `403 forbidden`."""
    grant.check_scope(Scope.ADMIN)
    grant.check_targets(patch)


def _backward_answer(found: BackwardResult, performance: Performance) -> bytes:
    return (
        b'{"topic":"%b","epoch":%d,"records":[%b],"next_from_seq":%d,"next_before_seq":%d,"head_seq":%d,'
        b'"earliest_seq":%d,"caught_up":%b,"tombstone":%b,"lag":%d,"performance":%b}'
    ) % (
        found.topic.encode(),
        found.epoch,
        b",".join(map(bytes, found.records)),
        found.next_from_seq,
        found.next_before_seq,
        found.head_seq,
        found.earliest_seq,
        b"true" if found.is_over else b"false",
        b"null" if found.tombstone is None else encode(found.tombstone),
        max(found.head_seq - found.next_from_seq, 0),
        encode(performance),
    )


def _diff_answer(result: ReadResult, performance: Performance) -> bytes:
    # Formatted from bytes: the records were encoded when they were committed, and are not decoded again.
    return (
        b'{"topic":"%b","epoch":%d,"records":[%b],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,'
        b'"caught_up":%b,"tombstone":%b,"lag":%d,"performance":%b}'
    ) % (
        result.topic.encode(),
        result.epoch,
        result.records,
        result.next_from_seq,
        result.head_seq,
        result.earliest_seq,
        b"true" if result.caught_up else b"false",
        b"null" if result.tombstone is None else encode(result.tombstone),
        result.lag,
        encode(performance),
    )
