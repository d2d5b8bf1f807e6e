"""The calls about the daemon itself (`docs/spec/api.md` section 11), in the form of `topics.client.calls`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from topics.client import daemon_results, results
from topics.client.calls import ClientCall, target


def health() -> ClientCall[results.Health]:
    """The daemon's version and uptime. Answered also while the daemon is starting. Never repeated: raises
    ConnectionFailed at once where no daemon answers."""
    return ClientCall(method="GET", target="/v0/health", answer=results.Health, repeatable=True, probe=True)


def ready() -> ClientCall[results.Ready]:
    """Wait until the daemon serves. Raises Unavailable if it still does not when the client gives up repeating the
    call (`Retry.give_up_after`)."""
    return ClientCall(method="GET", target="/v0/ready", answer=results.Ready, repeatable=True)


OWNER_READY: Final = replace(ready(), reads=False)
"""As `ready`, of the daemon that takes changes."""


def metrics() -> ClientCall[dict[str, results.Metric]]:
    """All metrics of the daemon by their names (`docs/spec/api.md` section 11)."""
    return ClientCall(method="GET", target="/v0/metrics", answer=dict[str, results.Metric], repeatable=True)


def metrics_text() -> ClientCall[str]:
    """All metrics of the daemon in the text format of Prometheus."""
    return ClientCall(method="GET", target="/v0/metrics", answer=str, accept="text/plain", repeatable=True)


def openapi() -> ClientCall[dict[str, Any]]:
    """The OpenAPI document of the daemon's interface."""
    return ClientCall(method="GET", target="/v0/openapi.json", answer=dict[str, Any], repeatable=True)


def checkpoint(*, hold_ms: int = 0) -> ClientCall[results.Checkpoint]:
    """Take a checkpoint now, and list its files. The daemon removes none of them for `hold_ms`, so that they can be
    copied (`docs/spec/api.md` section 11)."""
    where = target("/v0/admin/checkpoint", hold_ms=hold_ms)
    return ClientCall(method="POST", target=where, answer=results.Checkpoint, repeatable=True, waits=300.0)


def key() -> ClientCall[daemon_results.KeyRights]:
    """The rights of this client's key; without keys everybody may do everything."""
    return ClientCall(method="GET", target="/v0/key", answer=daemon_results.KeyRights, repeatable=True)


def figures() -> ClientCall[daemon_results.Load]:
    """Rates and latencies of the last ten seconds, pressure, memory, disk and connections."""
    return ClientCall(method="GET", target="/v0/figures", answer=daemon_results.Load, repeatable=True)


def storage() -> ClientCall[daemon_results.Storage]:
    """The log by shard, the segments by tier, checkpoints, reclaiming, and the bucket."""
    return ClientCall(method="GET", target="/v0/storage", answer=daemon_results.Storage, repeatable=True)


def connections(*, page_size: int = 100, cursor: str | None = None) -> ClientCall[daemon_results.ConnectionPage]:
    """One page of the open streams, sockets and exports, in the order in which they were opened, and how much of its
    limits each key uses. For keys of the scope admin without prefixes."""
    where = target("/v0/connections", page_size=page_size, cursor=cursor)
    return ClientCall(method="GET", target=where, answer=daemon_results.ConnectionPage, repeatable=True)


def parse_filter(text: str) -> ClientCall[daemon_results.ParsedFilter]:
    """The filter that is written as text, such as `tag ~ "eu:*" and data./total >= 10`, as other calls take it. Raises
    BadRequest, which says at which character a mistake is."""
    where = target("/v0/filter", text=text)
    return ClientCall(method="GET", target=where, answer=daemon_results.ParsedFilter, repeatable=True)


def consumers_of_all(
    *, prefix: str = "", page_size: int = 100, cursor: str | None = None
) -> ClientCall[results.ConsumerPage]:
    """One page of the consumers of all topics whose names begin with `prefix`, in the order of topics and consumers."""
    where = target("/v0/consumers", prefix=prefix or None, page_size=page_size, cursor=cursor)
    return ClientCall(method="GET", target=where, answer=results.ConsumerPage, repeatable=True)


def groups_of_all(
    *, prefix: str = "", page_size: int = 100, cursor: str | None = None
) -> ClientCall[results.GroupPage]:
    """One page of the groups of all logs whose names begin with `prefix`, in the order of topics and groups."""
    where = target("/v0/groups", prefix=prefix or None, page_size=page_size, cursor=cursor)
    return ClientCall(method="GET", target=where, answer=results.GroupPage, repeatable=True)
