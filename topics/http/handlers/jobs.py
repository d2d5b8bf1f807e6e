"""Looking at the jobs of a queue, or of a group of a log, retrying and cancelling them, over HTTP
(`docs/spec/consumers.md` section 5)."""

from __future__ import annotations

from typing import Final

from topics.engine.engine import Engine
from topics.errors import ApiError
from topics.http.calls import Call, Response, encode
from topics.http.handlers.queues import place_of
from topics.http.requests.job_requests import (
    JOB_CURSORS,
    LETTER_CURSORS,
    decode_cancel,
    decode_job_list,
    decode_retry,
)
from topics.job_model import JobsChanged, ShownJob
from topics.runtime.turns import BULK_BYTES

_OPTIONAL: Final = ("node", "deadline", "not_before", "last_error")


class JobHandlers:
    """The handlers of the calls about many jobs. Those of a group have its name in their path."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def page(self, call: Call) -> Response:
        """`GET /v0/topics/{topic}/jobs`."""
        engine, topic, group = self._engine, call.params["topic"], call.params.get("group")
        query = decode_job_list(call.query)
        if query.dead:
            dead = self._dead_letter(call, "state")
            page = await engine.job_lists.letters(topic, dead, query.request, call.perf, group)
        else:
            page = await engine.job_lists.page(topic, query.request, call.perf, group)
        size = sum([len(job.record) for job in page.jobs])
        call.gathered(2 * size)
        if size >= BULK_BYTES:
            await engine.turns.take(size)
        cursor = b""
        if page.next_after is not None:
            cursors = LETTER_CURSORS if query.dead else JOB_CURSORS
            cursor = b'"next_cursor":"%b",' % cursors.encode(str(page.next_after)).encode()
        answer = b'{"topic":"%b",%b"jobs":[%b],%b"performance":%b}' % (
            topic.encode(),
            b"" if group is None else b'"group":"%b",' % group.encode(),
            b",".join([_listed(job) for job in page.jobs]),
            cursor,
            encode(call.performance(engine.clock.perf_ns())),
        )
        return Response(200, answer)

    def _dead_letter(self, call: Call, field: str) -> str:
        """Return the topic of the dead letters, which the key must cover. Raises 400, 403, 404 and 409; the 403 does
        not tell the name."""
        topic, group = call.params["topic"], call.params.get("group")
        dead = self._engine.job_lists.dead_letter_of(topic, group, field)
        try:
            call.grant.check_name(dead, field)
        except ApiError:
            message = f"{field}: the name of the dead-letter topic has none of the key's prefixes"
            raise ApiError("forbidden", message, detail={field: "dead"}) from None
        return dead

    async def retry(self, call: Call) -> Response:
        """`POST /v0/topics/{topic}/jobs/retry`."""
        engine, topic, group = self._engine, call.params["topic"], call.params.get("group")
        selection, state = decode_retry(call.body, engine.settings)
        if state is None and selection.seqs is not None:
            state = "delayed"  # the seqs of letters are others
        changed = JobsChanged(0, 0, 0)
        dead: str | None = None
        if state == "dead" or (state is None and engine.job_lists.has_dead_letter(topic, group)):
            dead = self._dead_letter(call, "state")
        if state != "dead":
            changed = await engine.job_changes.retry(topic, selection, call.perf, group)
        if dead is not None:
            more = await engine.dead_jobs.retry(topic, dead, selection, call.perf, group, call.key.covers)
            changed = JobsChanged(*(a + b for a, b in zip(changed, more, strict=True)))
        return self._changed(call, changed)

    async def cancel(self, call: Call) -> Response:
        """`POST /v0/topics/{topic}/jobs/cancel`."""
        selection = decode_cancel(call.body, self._engine.settings)
        topic, group = call.params["topic"], call.params.get("group")
        return self._changed(call, await self._engine.job_changes.cancel(topic, selection, call.perf, group))

    def _changed(self, call: Call, changed: JobsChanged) -> Response:
        performance = call.performance(self._engine.clock.perf_ns())
        answer = {**place_of(call), **changed._asdict(), "performance": performance}
        return Response(200, encode(answer))


def _listed(job: ShownJob) -> bytes:
    """The JSON of a job in a list."""
    facts = {"state": job.state, "deliveries": job.deliveries, "priority": job.priority}
    facts |= {name: value for name in _OPTIONAL if (value := getattr(job, name)) is not None}
    return b"%b,%b" % (encode(facts)[:-1], job.record)
