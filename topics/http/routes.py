"""The table of routes. The gate finds the route of a request in it.

A new route is one line in the table and one handler of that name in its plane. The answers 404 and 405 (with `Allow`),
readiness, access, content types, auditing and the `route` label of the metrics follow from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from topics.auth.keys import ANY_KEY, Scope
from topics.conditions.fences import check_fence_name
from topics.errors import ApiError, invalid
from topics.log.names import (
    check_consumer_name,
    check_group_name,
    check_router_name,
    check_schedule_name,
    check_stage_name,
    check_topic_name,
)
from topics.model import MAX_U64

MAX_SEGMENT: Final = 4096
"""Bytes of a path segment that are decoded. The longest name has 255 characters, which are 765 bytes when all are
percent-encoded. A longer segment is no valid name, cut or not."""
MAX_LOGGED: Final = 300
"""Characters of an unchecked parameter that are logged. A valid name has at most 255."""
SHORT_PATH: Final = 128
REMEMBERED: Final = 1024
"""The length of a path (bytes) up to which its route is remembered, and how many are: about 1 MiB."""


class Plane(Enum):
    """Which code answers: ASGI handlers (`data_plane`) or the Quart-Trio application (`control_plane`); see
    `docs/spec/runtime.md` section 3."""

    DATA = "data"
    CONTROL = "control"


class BodyKind(Enum):
    """The kinds of bodies that a call accepts."""

    NONE = "none"
    JSON = "json"
    """JSON of at most `TOPICS_MAX_CALL_BYTES`."""
    RESULTS = "results"
    """JSON of at most `TOPICS_MAX_CALL_BYTES` beside a value as long as a record (`TOPICS_MAX_RECORD_BYTES`)."""
    NAMES = "names"
    """JSON that may be longer, because it lists names."""
    RECORDS = "records"
    """JSON of at most `TOPICS_MAX_BODY_BYTES`."""
    APPEND = "json, lines or bytes"
    """JSON of at most `TOPICS_MAX_BODY_BYTES`, NDJSON of any length, which the handler reads piece by piece, or the raw
    bytes of one record (`topics.raw_bytes`)."""


@dataclass(frozen=True, slots=True)
class Route:
    """One call: a method on a path template such as `/v0/topics/{topic}`."""

    name: str
    method: str
    template: str
    plane: Plane
    needs: Scope | None
    """The scopes that a key must have. None: no key is needed, unless `TOPICS_PROBE_AUTH` is set."""
    body: BodyKind = BodyKind.NONE
    always_open: bool = False
    """The call is answered in every phase of the daemon, also before it is ready and while it drains."""
    token_in_query: bool = False
    """The key may be in `?token=` instead of a header: browsers cannot set a header on a stream or a socket."""
    audited: bool = False
    """The audit log has a line of each call."""
    is_about_all: bool = False
    """The call concerns all topics, so that keys with prefixes may not make it."""
    is_unhurried: bool = False
    """The call takes as long as its work: `TOPICS_REQUEST_TIMEOUT_MS` does not end it."""
    only_looks: bool = False
    """The call changes nothing, although it needs more than the scope READ."""
    is_page: bool = False
    """The answer is a page for people, who may come by a link from any other page."""
    is_public: bool = False
    """The call needs no key, also with `TOPICS_PROBE_AUTH`."""
    label: str = field(init=False)
    """The `route` label of the metrics."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", f"{self.method} {self.template}")

    @property
    def changes(self) -> bool:
        """Return True if the call may change something."""
        return bool((self.needs or READ) & ~READ) and not self.only_looks


READ, WRITE, DELETE, ADMIN = Scope.READ, Scope.WRITE, Scope.DELETE, Scope.ADMIN
_DATA, _CONTROL, _JSON = Plane.DATA, Plane.CONTROL, BodyKind.JSON
_CONSUMER: Final = "/v0/topics/{topic}/consumers/{consumer}"
_SCHEDULE: Final = "/v0/schedules/{schedule}"
_REDRIVE: Final = "/v0/topics/{topic}/redrive"
_GROUP: Final = "/v0/topics/{topic}/groups/{group}"
_JOBS: Final = "/v0/topics/{topic}/jobs"
_GROUP_JOBS: Final = f"{_GROUP}/jobs"

ROUTES: Final[tuple[Route, ...]] = (
    Route("append", "POST", "/v0/topics/{topic}", _DATA, WRITE, BodyKind.APPEND),
    Route("transaction", "POST", "/v0/transactions", _DATA, WRITE, BodyKind.RECORDS),
    Route("commit", "POST", "/v0/topics/{topic}/commit", _DATA, WRITE, BodyKind.NAMES),
    Route("delete_stage", "DELETE", "/v0/topics/{topic}/stages/{stage}", _DATA, DELETE, audited=True),
    Route("delete_fence", "DELETE", "/v0/topics/{topic}/fences/{fence}", _DATA, ADMIN, audited=True),
    Route("diff_post", "POST", "/v0/topics/{topic}/diff", _DATA, READ, _JSON),
    Route("diff_get", "GET", "/v0/topics/{topic}/diff", _DATA, READ),
    Route("export", "GET", "/v0/topics/{topic}/records", _DATA, READ),
    Route("get_record", "GET", "/v0/topics/{topic}/records/{seq}", _DATA, READ),
    Route("latest", "GET", "/v0/topics/{topic}/latest", _DATA, READ),
    Route("stream", "GET", "/v0/topics/{topic}/stream", _DATA, READ, token_in_query=True),
    Route("claim", "POST", "/v0/topics/{topic}/claim", _DATA, READ | WRITE, _JSON),
    Route("ack", "POST", "/v0/topics/{topic}/ack", _DATA, WRITE, BodyKind.RESULTS),
    Route("nack", "POST", "/v0/topics/{topic}/nack", _DATA, WRITE, _JSON),
    Route("extend", "POST", "/v0/topics/{topic}/extend", _DATA, WRITE, _JSON),
    Route("pause", "POST", "/v0/topics/{topic}/pause", _DATA, ADMIN, _JSON, audited=True),
    Route("resume", "POST", "/v0/topics/{topic}/resume", _DATA, ADMIN, audited=True),
    Route("redrive", "POST", _REDRIVE, _DATA, READ | WRITE | DELETE, _JSON, audited=True),
    Route("get_redrive", "GET", _REDRIVE, _DATA, READ),
    Route("stop_redrive", "DELETE", _REDRIVE, _DATA, READ | WRITE | DELETE, audited=True),
    Route("work", "GET", "/v0/topics/{topic}/work", _DATA, READ | WRITE, token_in_query=True),
    Route("list_jobs", "GET", _JOBS, _DATA, READ),
    Route("retry_jobs", "POST", f"{_JOBS}/retry", _DATA, READ | WRITE | DELETE, _JSON, audited=True),
    Route("cancel_jobs", "POST", f"{_JOBS}/cancel", _DATA, DELETE, _JSON, audited=True),
    Route("list_consumers", "GET", "/v0/topics/{topic}/consumers", _DATA, READ),
    Route("put_consumer", "PUT", _CONSUMER, _DATA, WRITE, _JSON),
    Route("get_consumer", "GET", _CONSUMER, _DATA, READ),
    Route("delete_consumer", "DELETE", _CONSUMER, _DATA, DELETE, audited=True),
    Route("commit_consumer", "POST", f"{_CONSUMER}/commit", _DATA, WRITE, _JSON),
    Route("seek_consumer", "POST", f"{_CONSUMER}/seek", _DATA, WRITE, _JSON, audited=True),
    Route("acquire_consumer", "POST", f"{_CONSUMER}/acquire", _DATA, WRITE, _JSON),
    Route("release_consumer", "POST", f"{_CONSUMER}/release", _DATA, WRITE, _JSON),
    Route("list_schedules", "GET", "/v0/schedules", _DATA, READ),
    Route("put_schedule", "PUT", _SCHEDULE, _DATA, ADMIN, _JSON, audited=True),
    Route("get_schedule", "GET", _SCHEDULE, _DATA, READ),
    Route("delete_schedule", "DELETE", _SCHEDULE, _DATA, DELETE, audited=True),
    Route("run_schedule", "POST", f"{_SCHEDULE}/run", _DATA, ADMIN, audited=True),
    Route("pause_schedule", "POST", f"{_SCHEDULE}/pause", _DATA, ADMIN, audited=True),
    Route("resume_schedule", "POST", f"{_SCHEDULE}/resume", _DATA, ADMIN, audited=True),
    Route("all_groups", "GET", "/v0/groups", _DATA, READ),
    Route("all_consumers", "GET", "/v0/consumers", _DATA, READ),
    Route("list_groups", "GET", "/v0/topics/{topic}/groups", _DATA, READ),
    Route("put_group", "PUT", _GROUP, _DATA, ADMIN, _JSON, audited=True),
    Route("get_group", "GET", _GROUP, _DATA, READ),
    Route("delete_group", "DELETE", _GROUP, _DATA, DELETE, audited=True),
    Route("group_claim", "POST", f"{_GROUP}/claim", _DATA, READ | WRITE, _JSON),
    Route("group_ack", "POST", f"{_GROUP}/ack", _DATA, WRITE, BodyKind.RESULTS),
    Route("group_nack", "POST", f"{_GROUP}/nack", _DATA, WRITE, _JSON),
    Route("group_extend", "POST", f"{_GROUP}/extend", _DATA, WRITE, _JSON),
    Route("group_pause", "POST", f"{_GROUP}/pause", _DATA, ADMIN, _JSON, audited=True),
    Route("group_resume", "POST", f"{_GROUP}/resume", _DATA, ADMIN, audited=True),
    Route("group_work", "GET", f"{_GROUP}/work", _DATA, READ | WRITE, token_in_query=True),
    Route("list_group_jobs", "GET", _GROUP_JOBS, _DATA, READ),
    Route("retry_group_jobs", "POST", f"{_GROUP_JOBS}/retry", _DATA, READ | WRITE | DELETE, _JSON, audited=True),
    Route("cancel_group_jobs", "POST", f"{_GROUP_JOBS}/cancel", _DATA, DELETE, _JSON, audited=True),
    Route("open_watch", "POST", "/v0/watch", _DATA, READ, _JSON),
    Route("watch", "GET", "/v0/watch/{wid}", _DATA, READ, token_in_query=True),
    Route("ws", "GET", "/v0/ws", _DATA, ANY_KEY, token_in_query=True),
    Route("list_topics", "GET", "/v0/topics", _CONTROL, READ),
    Route("put_topic", "PUT", "/v0/topics/{topic}", _CONTROL, ADMIN, _JSON, audited=True),
    Route("get_topic", "GET", "/v0/topics/{topic}", _DATA, READ),
    Route("delete_topic", "DELETE", "/v0/topics/{topic}", _CONTROL, DELETE, audited=True),
    Route("delete_records", "POST", "/v0/topics/{topic}/delete", _CONTROL, DELETE, _JSON, audited=True),
    Route("seal", "POST", "/v0/topics/{topic}/seal", _CONTROL, ADMIN, audited=True, is_unhurried=True),
    Route("evidence", "GET", "/v0/topics/{topic}/evidence", _DATA, READ),
    Route("inclusion", "GET", "/v0/topics/{topic}/evidence/inclusion", _DATA, READ),
    Route("consistency", "GET", "/v0/topics/{topic}/evidence/consistency", _DATA, READ),
    Route("evidence_key", "GET", "/v0/evidence/key", _DATA, READ),
    Route("list_routers", "GET", "/v0/routers", _CONTROL, READ),
    Route("put_router", "PUT", "/v0/routers/{router}", _CONTROL, ADMIN, _JSON, audited=True),
    Route("get_router", "GET", "/v0/routers/{router}", _CONTROL, READ),
    Route("delete_router", "DELETE", "/v0/routers/{router}", _CONTROL, DELETE, audited=True),
    Route(
        "checkpoint",
        "POST",
        "/v0/admin/checkpoint",
        _CONTROL,
        ADMIN,
        audited=True,
        is_about_all=True,
        is_unhurried=True,
    ),
    Route("root", "GET", "/", _CONTROL, None, always_open=True, is_page=True),
    Route("console", "GET", "/console", _DATA, None, always_open=True, is_page=True, is_public=True),
    Route("console_asset", "GET", "/console/{asset}", _DATA, None, always_open=True, is_public=True),
    Route("console_folder", "GET", "/console/{folder}/{asset}", _DATA, None, always_open=True, is_public=True),
    Route("key", "GET", "/v0/key", _DATA, ANY_KEY),
    Route("figures", "GET", "/v0/figures", _DATA, READ, always_open=True),
    Route("storage", "GET", "/v0/storage", _DATA, READ),
    Route("connections", "GET", "/v0/connections", _DATA, ADMIN, is_about_all=True, only_looks=True),
    Route("filter", "GET", "/v0/filter", _DATA, ANY_KEY),
    Route("health", "GET", "/v0/health", _DATA, None, always_open=True),
    Route("healthz", "GET", "/healthz", _DATA, None, always_open=True),
    Route("ready", "GET", "/v0/ready", _DATA, None, always_open=True),
    Route("readyz", "GET", "/readyz", _DATA, None, always_open=True),
    Route("metrics", "GET", "/v0/metrics", _CONTROL, READ, always_open=True),
    Route("openapi", "GET", "/v0/openapi.json", _CONTROL, ANY_KEY),
    Route("docs", "GET", "/v0/docs", _CONTROL, ANY_KEY, is_page=True),
)

MAX_SEQ_DIGITS: Final = 20
"""Digits of the highest seq, 2^64 - 1."""


def check_seq(text: str) -> str:
    """Check a seq in a path, 1 to 2^64 - 1 in decimal digits. Raises `400 invalid_request`."""
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_SEQ_DIGITS and 1 <= int(text) <= MAX_U64):
        raise invalid("seq", "must be an integer from 1 to 2^64 - 1")
    return text


# The check for each kind of path parameter. A bad name is answered with 400 on every route.
_CHECKS: Final[Mapping[str, Callable[[str], str]]] = {
    "topic": check_topic_name,
    "router": check_router_name,
    "stage": check_stage_name,
    "seq": check_seq,
    "fence": check_fence_name,
    "consumer": check_consumer_name,
    "schedule": check_schedule_name,
    "group": check_group_name,
    "wid": str,
    "asset": str,
    "folder": str,
}


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """The route of a request, and the values of the parameters in its path."""

    route: Route
    _segments: list[bytes]
    _names: dict[str, bytes]

    def params(self) -> dict[str, str]:
        """The parameters, checked. Raises `400 invalid_request` with the name of the wrong one."""
        return {name: _CHECKS[name](_text(value, name)) for name, value in self._names.items()}

    def unchecked(self) -> dict[str, str]:
        """The parameters without a check, cut to a length that can be logged."""
        return {name: value[:MAX_LOGGED].decode("utf-8", "replace") for name, value in self._names.items()}

    def plain_path(self) -> str:
        """The decoded path, for Quart. Call it after `params`, which has checked that it is valid UTF-8."""
        return "/" + "/".join(segment.decode() for segment in self._segments)


@dataclass(frozen=True, slots=True)
class _Shape:
    segments: tuple[bytes | None, ...]
    names: tuple[str, ...]
    methods: dict[str, Route]

    def fits(self, segments: list[bytes]) -> bool:
        for own, segment in zip(self.segments, segments, strict=True):
            if segment != own and (own is not None or not segment):
                return False
        return True


class RouteTable:
    """Finds the route of a request."""

    def __init__(self, routes: tuple[Route, ...] = ROUTES) -> None:
        shapes: dict[str, _Shape] = {}
        for route in routes:
            parts = route.template.strip("/").split("/")
            names = tuple(part[1:-1] for part in parts if part.startswith("{"))
            segments = tuple(None if part.startswith("{") else part.encode() for part in parts)
            shape = shapes.setdefault(route.template, _Shape(segments, names, {}))
            assert route.method not in shape.methods, "one route per method and template"
            shape.methods[route.method] = route
        self._longest = max(len(shape.segments) for shape in shapes.values())
        self._by_length: dict[int, list[_Shape]] = {}
        # Shapes with fewer parameters are tried first; the order of the table does not matter.
        for shape in sorted(shapes.values(), key=lambda shape: shape.segments.count(None)):
            self._by_length.setdefault(len(shape.segments), []).append(shape)
        self._remembered = lru_cache(maxsize=REMEMBERED)(self._find)

    def find(self, method: str, raw_path: bytes) -> RouteMatch:
        """The route for a method and a raw (still percent-encoded) path. Short paths that were found are remembered.

        Raises `404 not_found`, or `405 method_not_allowed` with an `Allow` header.
        """
        return self._remembered(method, raw_path) if len(raw_path) <= SHORT_PATH else self._find(method, raw_path)

    def _find(self, method: str, raw_path: bytes) -> RouteMatch:
        if not raw_path.startswith(b"/"):
            raw_path = _origin_form(raw_path)
        # A path with more segments than the longest route is not split any further.
        segments = raw_path[1:].split(b"/", self._longest)
        if b"%" in raw_path and len(segments) <= self._longest:
            # Decoded after the split: an encoded slash is no separator but part of a name, which makes the name bad.
            segments = [unquote_to_bytes(segment[:MAX_SEGMENT]) for segment in segments]
        for shape in self._by_length.get(len(segments), ()):
            if not shape.fits(segments):
                continue
            route = shape.methods.get(method)
            if route is None:
                allow = ", ".join(sorted(shape.methods))
                raise ApiError(
                    "method_not_allowed", f"{method} is not allowed here, only {allow}", headers={"allow": allow}
                )
            values = [value for own, value in zip(shape.segments, segments, strict=True) if own is None]
            return RouteMatch(route, segments, dict(zip(shape.names, values, strict=True)))
        raise ApiError("not_found", "there is no such route")

    def methods(self, raw_path: bytes) -> list[str]:
        """The methods that are allowed on a path; empty if there is no such route."""
        try:
            self.find("", raw_path)
        except ApiError as error:
            return error.headers.get("allow", "").split(", ") if error.code == "method_not_allowed" else []
        raise AssertionError("no route is without a method")


def _origin_form(target: bytes) -> bytes:
    """The path of an absolute-form target (`GET http://host/path`), which a server must accept (RFC 9112, 3.2.2)."""
    scheme, separator, rest = target.partition(b"://")
    if separator and scheme.isalpha():
        return b"/" + rest.partition(b"/")[2]
    return b"/" + target


def _text(value: bytes, name: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise invalid(name, "is not valid UTF-8") from None
