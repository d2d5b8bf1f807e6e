"""Making the OpenAPI document of the daemon (`docs/spec/api.md` section 11) from the table of routes, from
`description` and from the types of requests and answers.

`_codes_of` and `_security_of` derive error codes and security from the table of routes. The document is made once, when
a client first asks for it. It does not depend on the settings: limits are given with their variables and defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

import msgspec
from msgspec.structs import fields

from topics import __version__
from topics.conditions.fences import MAX_NAME_BYTES
from topics.errors import STATUS_OF_CODE
from topics.http.answer_types import ErrorAnswer
from topics.http.openapi.description import OPERATIONS
from topics.http.openapi.fact import ROUTER, TOPIC
from topics.http.openapi.field_facts import DESCRIBED, default_on_creation, fact_of
from topics.http.openapi.operation import GROUPS, JSON, LINES, Answer, Operation, Parameter
from topics.http.routes import ROUTES, Route
from topics.model import MAX_U64, TopicConfigPatch, WatchStart

Json = dict[str, Any]

_BYTES: Final[Json] = {"type": "string", "format": "binary"}

_REF: Final = "#/components/schemas/{name}"

_ABOUT: Final = f"""\
A persistent, append-only log service on one node.

A topic is a log of records with contiguous seqs, or a queue whose records are jobs. Times are integer milliseconds \
since the Unix epoch, durations integer milliseconds. Bodies are JSON and may have `Content-Encoding: gzip`. An answer \
is compressed if the client accepts that. Unknown fields are ignored, except in the configuration of a topic, in a \
router and in a watch session, where they are refused.

If the daemon has API keys, a call needs `Authorization: Bearer KEY`. The key must have the scopes that the call \
needs, and one of its prefixes must be the beginning of each topic and router that the call names. Without keys there \
is no access control.

Every failure is `{{"error": {{"code", "message", "detail"}}}}`. A call that is refused with 429 or 503 says in \
`Retry-After` when to try again. The `X-Request-Id` of a request is in its answer and in the log.

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
    "seq": {
        "description": "Seq of a record.",
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_U64},
        "example": 1,
    },
    "fence": {
        "description": "Name of a fence.",
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_NAME_BYTES},
        "example": "leader",
    },
    "consumer": {
        "description": "Name of a consumer.",
        "schema": {"type": "string", **TOPIC},
        "example": "billing",
    },
    "schedule": {
        "description": "Name of a schedule.",
        "schema": {"type": "string", **TOPIC},
        "example": "nightly",
    },
    "group": {
        "description": "Name of a group.",
        "schema": {"type": "string", **TOPIC},
        "example": "mailer",
    },
    "folder": {
        "description": "Folder of the console's files.",
        "schema": {"type": "string", "minLength": 1},
        "example": "views",
    },
    "asset": {
        "description": "Name of a file of the console.",
        "schema": {"type": "string", "minLength": 1},
        "example": "style.css",
    },
    "wid": {
        "description": "Name of a watch session.",
        "schema": {"type": "string", "minLength": 1},
        "example": "wid_8Q2f",
    },
}

_HEADERS: Final[Json] = {
    "X-Request-Id": {
        "description": "The id of the request: the one that it had, or a new one.",
        "required": True,
        "schema": {"type": "string"},
    },
    "Retry-After": {
        "description": "After how many seconds to try again.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
    "WWW-Authenticate": {"description": "`Bearer`.", "required": True, "schema": {"type": "string"}},
}

_MEANINGS: Final[Mapping[int, str]] = {
    400: "The request is not valid; `detail.field` says where.",
    401: "The daemon has keys, and this request has no valid one.",
    403: "The key does not allow this.",
    404: "It does not exist.",
    406: "`Accept` allows none of the possible content types.",
    409: "The request conflicts with the present state.",
    413: "The body is too large.",
    415: "The body must be `application/json`, or another type that the call accepts, plain or gzip.",
    421: "Another daemon serves this name.",
    422: "The topic is full, and its `discard` is `reject`.",
    429: "A limit is reached (`detail.limit`, `detail.max`), or there is pressure (`detail.retry_after_ms`).",
    500: "This request failed; the daemon goes on.",
    503: "The daemon cannot do this now.",
}


@cache
def document_bytes() -> bytes:
    """The document as JSON."""
    return msgspec.json.encode(document())


@cache
def document() -> Json:
    """The document. It is shared, so callers must not change it."""
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
    """Every type of a body or an answer, once."""
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
    """The schema of a type, with the meaning of its fields, and without the docstring of the type."""
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
        """The operation object. Its failures are added to the shared `responses` and referred to."""
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
            content |= {kind: {"schema": _BYTES, "example": "bytes"} for kind in body.raw_types}
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
    """The alternative securities of a call. For a call that needs no key the first one is empty."""
    if route.needs is None:
        return [{}, {"bearer": []}]
    words = route.needs.words
    return [{"bearer": words}, *([{"token": words}] if route.token_in_query else [])]


def _codes_of(route: Route, operation: Operation) -> set[str]:
    """The error codes of a call: those in its description, and those that follow from the table of routes."""
    codes = {*operation.codes, "unauthorized", "payload_too_large", "throttled", "internal"}
    if route.needs:
        codes.add("forbidden")
    if "{" in route.template or operation.parameters:
        codes.add("invalid_request")
    if any(f"{{{kind}}}" in route.template for kind in ("topic", "router", "schedule")):
        codes.add("not_here")
    if operation.body is not None:
        codes.add("invalid_request")
    if operation.body is not None or route.method in ("POST", "PUT"):
        codes.add("unsupported_media_type")
    if not route.always_open:
        codes |= {"not_ready", "shutting_down"}
    return codes


def _failures_of(route: Route, operation: Operation) -> list[tuple[int, list[str]]]:
    """The error codes of a call, by status."""
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
