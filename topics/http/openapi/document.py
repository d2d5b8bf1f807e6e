"""The OpenAPI document of the daemon (`docs/spec/api.md` section 11): made from the table of routes, `description` and
the types.

What follows from the table stands in `_codes_of` and `_security_of`. The document is made once, when somebody first
asks for it, and does not depend on the settings: limits are named with their variables and defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

import msgspec
from msgspec.structs import fields

from topics import __version__
from topics.errors import STATUS_OF_CODE
from topics.http.answer_types import ErrorAnswer
from topics.http.openapi.description import GROUPS, JSON, LINES, OPERATIONS, Answer, Operation, Parameter
from topics.http.openapi.field_facts import DESCRIBED, ROUTER, TOPIC, default_on_creation, fact_of
from topics.http.routes import ROUTES, Route
from topics.model import TopicConfigPatch, WatchStart

Json = dict[str, Any]

_REF: Final = "#/components/schemas/{name}"

_ABOUT: Final = f"""\
A persistent, append-only log service on one node.

A topic is a log of records with contiguous seqs, or a queue whose records are jobs. Times are integer milliseconds \
since the Unix epoch, durations integer milliseconds. Bodies are JSON, `Content-Encoding: gzip` is honoured, and an \
answer is compressed for whoever accepts it. Unknown fields are ignored, but for those of a topic's configuration, a \
router and a watch session, which are refused.

Where the daemon has API keys, calls need `Authorization: Bearer KEY`, a key with the scopes that the call names, and \
names that begin with one of the key's prefixes. Without keys there is no access control.

Every failure is `{{"error": {{"code", "message", "detail"}}}}`. Calls that are refused with 429 or 503 say in \
`Retry-After` when to come again. `X-Request-Id` of a request comes back with its answer, and is in the log.

This is version {__version__}."""

_PATH_PARAMETERS: Final[Mapping[str, Json]] = {
    "topic": {
        "description": "Name of a topic.",
        "schema": {"type": "string", **TOPIC},
        "example": "jobs",
    },
    "router": {
        "description": "Name of a router.",
        "schema": {"type": "string", **ROUTER},
        "example": "jobs>archive",
    },
    "stage": {
        "description": "Name of a stage.",
        "schema": {"type": "string", **TOPIC},
        "example": "upload-1",
    },
    "wid": {
        "description": "Name of a watch session.",
        "schema": {"type": "string", "minLength": 1},
        "example": "wid_8Q2f",
    },
}

_HEADERS: Final[Json] = {
    "X-Request-Id": {
        "description": "What the request said, or else a name of its own.",
        "required": True,
        "schema": {"type": "string"},
    },
    "Retry-After": {
        "description": "Seconds until it is worth to try again.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
    "WWW-Authenticate": {"description": "`Bearer`.", "required": True, "schema": {"type": "string"}},
}

_MEANINGS: Final[Mapping[int, str]] = {
    400: "The request is not as it should be; `detail.field` says where.",
    401: "The daemon has keys, and this request has none of them.",
    403: "The key is not good for this.",
    404: "It does not exist.",
    406: "`Accept` excludes what there is.",
    409: "It does not go with what is there.",
    413: "The body is too large.",
    415: "The body has to be `application/json`, or what else the call takes, plain or gzip.",
    422: "The topic is full, and its `discard` is `reject`.",
    429: "A limit is reached (`detail.limit`, `detail.max`), or there is pressure (`detail.retry_after_ms`).",
    500: "This request failed; the daemon goes on.",
    503: "Not now.",
}


@cache
def document_bytes() -> bytes:
    """The document as JSON."""
    return msgspec.json.encode(document())


@cache
def document() -> Json:
    """The document. Shared: nobody changes it."""
    kinds = list(_types_of(OPERATIONS.values()))
    refs, schemas = msgspec.json.schema_components(kinds, ref_template=_REF)
    schema_of = dict(zip(kinds, refs, strict=True))
    responses: dict[str, Json] = {}
    paths: dict[str, Json] = {}
    for route in ROUTES:
        described = _Operation(route, OPERATIONS[route.name], schema_of)
        paths.setdefault(route.template, {})[route.method.lower()] = described.render(responses)
    return {
        "openapi": "3.1.0",
        "info": {"title": "topics", "version": __version__, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "tags": [{"name": group} for group in GROUPS],
        "paths": paths,
        "components": {
            "schemas": {name: _with_facts(name, schema) for name, schema in schemas.items()},
            "responses": dict(sorted(responses.items())),
            "headers": _HEADERS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key."},
                "token": {
                    "type": "apiKey",
                    "in": "query",
                    "name": "token",
                    "description": "An API key, for browsers, which cannot set a header on a stream or a WebSocket.",
                },
            },
        },
    }


def _types_of(operations: Iterable[Operation]) -> dict[Any, None]:
    """Every type that a body or an answer has, once."""
    found: dict[Any, None] = {ErrorAnswer: None, WatchStart: None}
    for operation in operations:
        if operation.body is not None:
            found[operation.body.type] = None
        for answer in operation.answers.values():
            found.update(dict.fromkeys(kind for kinds in answer.content.values() for kind in _each_of(kinds)))
    return found


def _each_of(kinds: Any) -> tuple[Any, ...]:
    """The types that a content may have."""
    return kinds if isinstance(kinds, tuple) else () if kinds is None else (kinds,)


def _with_facts(name: str, schema: Json) -> Json:
    """A schema of a type, with what its fields mean instead of what the code says of itself."""
    kind = DESCRIBED[name]
    known = schema.get("properties", {})
    properties = {}
    for field in fields(kind):
        fact = fact_of(kind, field.encode_name)
        assert fact is not None, f"{name}.{field.encode_name} is without a fact"
        text = fact.text
        if kind is TopicConfigPatch:
            default = msgspec.json.encode(default_on_creation(field.encode_name)).decode()
            text += f" Default on creation: `{default}`."
        properties[field.encode_name] = {**known[field.encode_name], **fact.schema, "description": text}
    rest = {key: value for key, value in schema.items() if key != "description" and value != []}
    return {**rest, "properties": properties}


class _Operation:
    """One operation of the document."""

    def __init__(self, route: Route, operation: Operation, schema_of: Mapping[Any, Json]) -> None:
        self._route = route
        self._operation = operation
        self._schema_of = schema_of

    def render(self, responses: dict[str, Json]) -> Json:
        """The operation object. Failures go into the shared `responses` and are referred to."""
        route, operation = self._route, self._operation
        rendered: Json = {
            "operationId": route.name,
            "tags": [operation.group],
            "summary": operation.summary,
            "description": operation.text,
            "security": _security_of(route),
        }
        if parameters := [*_path_parameters(route), *map(_parameter, operation.parameters)]:
            rendered["parameters"] = parameters
        if operation.body is not None:
            body = operation.body
            content = {JSON: {"schema": self._schema_of[body.type], "example": body.example}}
            if body.lines:
                content[LINES] = {"schema": {"type": "string"}, "example": body.lines}
            rendered["requestBody"] = {"required": body.required, "content": content}
        rendered["responses"] = {
            **{str(status): self._success(answer) for status, answer in operation.answers.items()},
            **{str(status): _failure(status, codes, responses) for status, codes in _failures_of(route, operation)},
        }
        return rendered

    @staticmethod
    def _schema(schemas: list[Json]) -> Json:
        if not schemas:
            return {"type": "string"}
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    def _success(self, answer: Answer) -> Json:
        content = {
            content_type: {"schema": self._schema([self._schema_of[kind] for kind in _each_of(kinds)])}
            for content_type, kinds in answer.content.items()
        }
        headers = {"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}}
        return {"description": answer.text, "headers": headers, **({"content": content} if content else {})}


def _path_parameters(route: Route) -> list[Json]:
    names = [part[1:-1] for part in route.template.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, **_PATH_PARAMETERS[name]} for name in names]


def _parameter(parameter: Parameter) -> Json:
    rendered: Json = {"name": parameter.name, "in": parameter.place, "description": parameter.text}
    if parameter.required:
        rendered["required"] = True
    if parameter.example is not None:
        rendered["example"] = parameter.example
    return {**rendered, "schema": dict(parameter.schema)}


def _security_of(route: Route) -> list[Json]:
    """Any of these will do. For a call without needs the first is nothing at all."""
    if route.needs is None:
        return [{}, {"bearer": []}]
    words = route.needs.words
    return [{"bearer": words}, *([{"token": words}] if route.token_in_query else [])]


def _codes_of(route: Route, operation: Operation) -> set[str]:
    """Every failure that a call may have: its own, and those that it shares with its like."""
    codes = {*operation.codes, "unauthorized", "payload_too_large", "throttled", "internal"}
    if route.needs:
        codes.add("forbidden")
    if "{" in route.template or operation.parameters:
        codes.add("invalid_request")
    if operation.body is not None:
        codes |= {"invalid_request", "unsupported_media_type"}
    if not route.always_open:
        codes |= {"not_ready", "shutting_down"}
    return codes


def _failures_of(route: Route, operation: Operation) -> list[tuple[int, list[str]]]:
    """The codes of a call by their status."""
    codes = _codes_of(route, operation)
    statuses = sorted({STATUS_OF_CODE[code] for code in codes})
    # In the order in which the contract lists them.
    return [(s, [code for code, of in STATUS_OF_CODE.items() if of == s and code in codes]) for s in statuses]


def _failure(status: int, codes: list[str], responses: dict[str, Json]) -> Json:
    name = f"{status}.{'.'.join(codes)}"
    if name not in responses:
        names = ["X-Request-Id"]
        if status in (429, 503):
            names.append("Retry-After")
        if status == 401:
            names.append("WWW-Authenticate")
        narrowed = {"properties": {"error": {"properties": {"code": {"enum": codes}}}}}
        responses[name] = {
            "description": f"{_MEANINGS[status]} {', '.join(f'`{code}`' for code in codes)}",
            "headers": {header: {"$ref": f"#/components/headers/{header}"} for header in names},
            "content": {JSON: {"schema": {"allOf": [{"$ref": _REF.format(name=ErrorAnswer.__name__)}, narrowed]}}},
        }
    return {"$ref": f"#/components/responses/{name}"}
