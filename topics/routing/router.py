"""A router's configuration: how a patch changes it, and its form in snapshots and the WAL (`docs/spec/api.md` section
7).

Rules that concern other routers are in `router_graph`; rules that concern topics (whether a dest may be created) in the
engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET

from topics.errors import ApiError, invalid
from topics.filters.filter_error import FilterError
from topics.filters.record_filter import Filter, parse_filter
from topics.log.names import check_topic_name
from topics.log.tag_match import TagMatch, parse_match
from topics.model import Guarantee, RouterPatch, RouterStart

# Keyed by the field names here; clients call `start` `from`.
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "guarantee": ("at_least_once", "exactly_once"),
    "start": ("tail", "earliest"),
}
_WIRE_NAMES: Final[Mapping[str, str]] = {"start": "from"}
_TOPICS: Final = ("source", "dest")


class RouterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a router: its source, its dest, and which records it copies and how. The defaults are those
    of the API.

    `start` says where it began; it has no effect once the router has a cursor. The filter of the wire is `filter` if it
    is a match, as it always could be, and `record_filter` otherwise.
    """

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    filter: TagMatch | None = None
    record_filter: Filter | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"
    start: RouterStart = msgspec.field(default="tail", name="from")


def resolve_router(current: RouterConfig | None, patch: RouterPatch, *, router: str) -> RouterConfig:
    """Return the configuration of `router` after `patch`: merged over `current`, or over the defaults on creation
    (None).

    `400 invalid_request` naming the field: a creation without `source` or `dest`, a bad name, filter or choice, or a
    source that is also the dest. `409 topic_exists_incompatible`: an update to another `source` or `dest`. The `from`
    of an update must be valid and changes nothing. Values that are bad in themselves are refused before those that do
    not fit `current`.
    """
    present: dict[str, Any] = {
        name: value for name in patch.__struct_fields__ if (value := getattr(patch, name)) is not UNSET
    }
    for name in _TOPICS:
        if name in present:
            check_topic_name(present[name], name)
        elif current is None:
            raise invalid(name, "is required to create a router")
    for name, choices in _CHOICES.items():
        if name in present and present[name] not in choices:
            raise invalid(_WIRE_NAMES.get(name, name), f"must be one of {', '.join(choices)}")
    if "filter" in present:
        present["filter"], present["record_filter"] = _filters_of(present["filter"])
    if current is None:
        config = RouterConfig(**present)
    else:
        config = msgspec.structs.replace(current, **{**present, "start": current.start})
    if config.source == config.dest:
        raise invalid("dest", "must differ from the source")
    if current is not None:
        _refuse_other_topics(current, config, router)
    return config


def router_to_wire(config: RouterConfig) -> dict[str, Any]:
    """Return all fields by the names that clients know, as CBOR and JSON take them. A new dict that the caller may
    keep."""
    fields = msgspec.structs.asdict(config)
    fields["filter"] = None if config.filter is None else config.filter.to_wire()
    if config.record_filter is None:
        del fields["record_filter"]
    else:
        fields["record_filter"] = config.record_filter.text
    return {_WIRE_NAMES.get(name, name): value for name, value in fields.items()}


def router_from_wire(value: Mapping[str, Any]) -> RouterConfig:
    """Return a configuration read from a snapshot or the WAL. A missing key has its default, an unknown one is ignored.

    Names are not checked again, nor fields against each other: they were when they were written. Raises ValueError on
    wrong types, and without a source or a dest.
    """
    if not isinstance(value, Mapping):
        raise ValueError("not a router config: not a map")
    fields = dict(value)
    filter_value, filter_text = fields.pop("filter", None), fields.pop("record_filter", None)
    try:
        config = msgspec.convert(fields, RouterConfig)
        if filter_text is not None:
            config = msgspec.structs.replace(config, record_filter=parse_filter(msgspec.convert(filter_text, str)))
        if filter_value is None:
            return config
        return msgspec.structs.replace(config, filter=parse_match(filter_value, "filter"))
    except (msgspec.ValidationError, ApiError, FilterError) as error:
        raise ValueError(f"not a router config: {error}") from error


def match_of(value: object) -> TagMatch | None:
    """Return the match that a decoded JSON value means; None for a list that is none, which may be a filter. Raises 400
    for anything else."""
    try:
        return parse_match(value, "filter")
    except ApiError:
        if not isinstance(value, list):
            raise
        return None


def _filters_of(value: object) -> tuple[TagMatch | None, Filter | None]:
    """Return the filter of a patch, as a match or as a filter. Raises 400."""
    if value is None:
        return None, None
    if isinstance(value, Filter):
        return None, value
    match = match_of(value)
    if match is not None:
        return match, None
    try:
        return None, parse_filter(msgspec.json.encode(value))
    except FilterError as error:
        raise invalid(f"filter{error.place}", error.message) from None


def _refuse_other_topics(current: RouterConfig, config: RouterConfig, router: str) -> None:
    for name in _TOPICS:
        stays = getattr(current, name)
        if getattr(config, name) != stays:
            raise ApiError(
                "topic_exists_incompatible",
                f"{name}: router {router!r} has {stays!r} and keeps it",
                detail={"field": name, "router": router, name: stays},
            )
