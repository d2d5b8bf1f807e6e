"""The parts of the description of a call: its parameters, its body, its answers, and the groups of calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Struct, json
from msgspec.structs import fields

from topics.http.answers.sse import CONTENT_TYPE as EVENTS
from topics.http.openapi.field_facts import fact_of
from topics.http.requests import (
    topic_requests,
)
from topics.http.requests.body_reader import LINES_TYPE

JSON: Final = "application/json"
LINES: Final = LINES_TYPE.decode()
ARROW: Final = "application/vnd.apache.arrow.stream"
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"

# Groups of calls, in the order of the page.
TOPICS: Final = "Topics"
RECORDS: Final = "Records"
LIVE: Final = "Live delivery"
CONSUMERS: Final = "Consumers"
QUEUES: Final = "Queues"
SCHEDULES: Final = "Schedules"
LOG_GROUPS: Final = "Groups"
ROUTERS: Final = "Routers"
DAEMON: Final = "The daemon"
GROUPS: Final = (TOPICS, RECORDS, LIVE, CONSUMERS, QUEUES, LOG_GROUPS, SCHEDULES, ROUTERS, DAEMON)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query, the headers or the path. `schema` is JSON Schema."""

    name: str
    text: str
    schema: Mapping[str, Any]
    place: str = "query"
    required: bool = False
    example: str | int | None = None


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A JSON body. If it is not `required`, all of its fields are optional, and no body means `{}`. `lines` is an
    example of NDJSON, if the call accepts that too. `raw_types` are the types of raw bytes that it accepts."""

    type: Any
    example: Any
    required: bool = True
    lines: str = ""
    raw_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A success: its meaning, and its content by content type (a type, a tuple of possible types, or None for
    text)."""

    text: str
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """One call."""

    group: str
    summary: str
    text: str
    answers: Mapping[int, Answer]
    parameters: tuple[Parameter, ...] = ()
    body: JsonBody | None = None
    codes: tuple[str, ...] = ()
    """The error codes that do not follow from the table of routes."""


# --- parameters ------------------------------------------------------------------------------------------------------


def query_of(kind: type[Struct], *names: str, example: Mapping[str, str] = {}) -> tuple[Parameter, ...]:
    """Fields of a body as query parameters, for calls that have them in the query."""
    properties = json.schema_components([kind])[1][kind.__name__]["properties"]
    found = []
    for field in fields(kind):
        name = field.encode_name
        if names and name not in names:
            continue
        fact = fact_of(kind, name)
        assert fact is not None
        schema = _plain(properties[name]) | dict(fact.schema)
        text = fact.text
        if name == "filter":
            text, schema = f"{text} As JSON.", {"type": "string", "minLength": 1}
        found.append(Parameter(name, text, schema, required=field.required, example=example.get(name)))
    return tuple(found)


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a field as that of a query parameter: without null, and always an array if the field may be one,
    because the parameter can be repeated."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    plain = {name: value for name, value in schema.items() if name != "anyOf" and (name, value) != ("default", None)}
    if choices:
        plain |= next((choice for choice in choices if choice.get("type") == "array"), choices[0])
    return plain


def boolean(name: str, default: bool, text: str) -> Parameter:
    return Parameter(name, f"{text} `1`, `0`, `true` or `false`.", {"type": "boolean", "default": default})


PREFIX: Final = Parameter("prefix", "Only names that begin with this.", {"type": "string", "default": ""})
PAGE: Final = (
    Parameter(
        "page_size",
        f"Most entries, clamped to 1..{topic_requests.MAX_PAGE}.",
        {"type": "integer", "default": topic_requests.DEFAULT_PAGE},
    ),
    Parameter("cursor", "`next_cursor` of the previous page.", {"type": "string", "default": ""}),
)
LAST_EVENT_ID: Final = Parameter(
    "Last-Event-ID", "The `id` of the last event received; the stream continues after it.", {"type": "string"}, "header"
)


def ok(kind: Any, text: str = "Done.") -> dict[int, Answer]:
    return {200: Answer(text, {JSON: kind})}


def events(text: str) -> dict[int, Answer]:
    return {200: Answer(text, {EVENTS.decode(): None})}


WRITES: Final = ("throttled", "read_only", "not_owner")
"""The codes of calls that write to the log."""
