"""Evidence over HTTP (`docs/spec/evidence.md` section 1)."""

from __future__ import annotations

from typing import Final

from topics.engine.engine import Engine
from topics.http.accept import qualities
from topics.http.calls import JSON, Call, Response, json_response
from topics.http.handlers.raw_bytes import VARY
from topics.http.requests.evidence_requests import decode_consistency, decode_inclusion

TEXT: Final = b"text/plain; charset=utf-8"


class EvidenceHandlers:
    """The handlers of the calls about evidence."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def checkpoint(self, call: Call) -> Response:
        """`GET /v0/topics/{topic}/evidence`: a signed note, or JSON if `Accept` names it."""
        result = await self._engine.evidence.checkpoint(call.params["topic"])
        if qualities(call.headers.get(b"accept", b"")).get(JSON, 0.0) > 0:
            answer = json_response(result)
            answer.headers.append(VARY)
            return answer
        return Response(200, result.note.encode(), TEXT, [VARY])

    async def inclusion(self, call: Call) -> Response:
        """`GET /v0/topics/{topic}/evidence/inclusion`."""
        seq, size = decode_inclusion(call.query)
        return json_response(await self._engine.evidence.inclusion(call.params["topic"], seq, size))

    async def consistency(self, call: Call) -> Response:
        """`GET /v0/topics/{topic}/evidence/consistency`."""
        first, second = decode_consistency(call.query)
        return json_response(await self._engine.evidence.consistency(call.params["topic"], first, second))

    async def key(self, _: Call) -> Response:
        """`GET /v0/evidence/key`: the public key as a verifier key of signed notes."""
        return Response(200, f"{await self._engine.evidence.key()}\n".encode(), TEXT)
