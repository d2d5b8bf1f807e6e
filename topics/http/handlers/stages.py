"""Stages over HTTP (`docs/spec/pipeline.md` section 1): appending to a stage, committing stages, deleting one.

`topics.engine.operations.stage_lifecycle` makes the stages and the atomic commits. `bulk` handles uploads of NDJSON to
a stage.
"""

from __future__ import annotations

from topics.engine.engine import Engine
from topics.http.answer_types import CommitAnswer, StageAnswer, StageDeletedAnswer
from topics.http.calls import Call, Response, encode, json_response
from topics.http.requests import topic_requests
from topics.http.requests.condition_requests import conditions_of, refuse_with_stage
from topics.model import CheckedAppend, Performance


class Stages:
    """The handlers of the calls about stages."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def append(self, call: Call, stage: str, request: CheckedAppend) -> Response:
        """`POST /v0/topics/{topic}?stage=NAME` with JSON; `request` is its body, checked."""
        refuse_with_stage(request.conditions)
        result = await self._engine.stages.append(call.params["topic"], stage, request, call.perf)
        return stage_response(result.topic, stage, result.count, self._performance(call), created=result.created)

    async def commit(self, call: Call) -> Response:
        """`POST /v0/topics/{topic}/commit`."""
        body = topic_requests.decode_commit(call.body)
        conditions = conditions_of(body, self._engine.settings)
        result = await self._engine.stage_commits.commit(
            call.params["topic"], body.stages, body.idempotency_key, call.perf, conditions=conditions
        )
        answer = CommitAnswer(
            topic=result.topic,
            first_seq=result.first_seq,
            last_seq=result.last_seq,
            count=result.count,
            deduped=result.deduped,
            performance=self._performance(call),
        )
        return json_response(answer)

    async def delete_stage(self, call: Call) -> Response:
        """`DELETE /v0/topics/{topic}/stages/{stage}`."""
        topic, stage = call.params["topic"], call.params["stage"]
        deleted = await self._engine.stages.delete(topic, stage)
        answer = StageDeletedAnswer(topic=topic, stage=stage, deleted=deleted, performance=self._performance(call))
        return json_response(answer)

    def _performance(self, call: Call) -> Performance:
        return call.performance(self._engine.clock.perf_ns())


def stage_response(topic: str, stage: str, count: int, performance: Performance, *, created: bool) -> Response:
    """The answer to an append to a stage. `created`: the append has created the topic."""
    answer = StageAnswer(topic=topic, stage=stage, count=count, performance=performance)
    return Response(201 if created else 200, encode(answer))
