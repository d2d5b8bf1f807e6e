"""The names that clients choose: topics, consumers, stages, routers, nodes (`docs/spec/api.md` section 1, "Names").

A bad name is 400 wherever it appears. Code that takes a name from a client checks it here and passes the field for the
message.
"""

from __future__ import annotations

import re
from typing import Final

from topics.errors import invalid

TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
ROUTER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}")


def check_topic_name(name: str, field: str = "topic") -> str:
    """Return `name` if it may name a topic; else raise `400 invalid_request` about `field`."""
    return _checked(name, field, "topic")


def check_consumer_name(name: str, field: str = "consumer") -> str:
    """Return `name` if it may name a consumer; else raise `400 invalid_request` about `field`."""
    return _checked(name, field, "consumer")


def check_stage_name(name: str, field: str = "stage") -> str:
    """Return `name` if it may name a stage; else raise `400 invalid_request` about `field`."""
    return _checked(name, field, "stage")


def check_group_name(name: str, field: str = "group") -> str:
    """Return `name` if it may name a group; else raise `400 invalid_request` about `field`."""
    return _checked(name, field, "group")


def check_schedule_name(name: str, field: str = "schedule") -> str:
    """Return `name` if it may name a schedule; else raise `400 invalid_request` about `field`."""
    return _checked(name, field, "schedule")


def _checked(name: str, field: str, kind: str) -> str:
    # fullmatch, because `$` would let a trailing newline through.
    if not isinstance(name, str) or TOPIC_NAME.fullmatch(name) is None:
        raise invalid(field, f"a {kind} name is 1 to 255 of A-Z a-z 0-9 . _ : - and starts with a letter or digit")
    return name


def check_router_name(name: str, field: str = "router") -> str:
    """Return `name` if it may name a router (a topic name that may also contain `>`); else raise 400 about `field`."""
    if not isinstance(name, str) or ROUTER_NAME.fullmatch(name) is None:
        raise invalid(field, "a router name is 1 to 255 of A-Z a-z 0-9 . _ : > - and starts with a letter or digit")
    return name


def check_node(node: str, max_bytes: int, field: str = "node") -> str:
    """Return `node` if it is at most `max_bytes` of UTF-8 (`TOPICS_MAX_NODE_BYTES`); else raise 400 about `field`."""
    if not isinstance(node, str):
        raise invalid(field, "must be a string")
    try:
        size = len(node.encode())
    except UnicodeEncodeError:
        raise invalid(field, "is not valid Unicode") from None
    if size > max_bytes:
        raise invalid(field, f"is {size} bytes long, at most {max_bytes} are allowed", max=max_bytes)
    return node
