"""What a daemon was asked for while a block ran, by its own metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.conformance.client import Client


@dataclass
class Asked:
    """Of exports in all formats."""

    exports_with_data: int = 0
    exports_without_data: int = 0
    seqs: int = 0
    records: int = 0
    bytes: int = 0


@contextmanager
def asked(http: Client) -> Iterator[Asked]:
    """Filled in when the block has ended."""
    before = _figures(http)
    found = Asked()
    yield found
    after = _figures(http)
    for name in vars(found):
        setattr(found, name, getattr(after, name) - getattr(before, name))


def _figures(http: Client) -> Asked:
    metrics = http.get("/v0/metrics", headers={"accept": "application/json"}).json()
    exports: list[Any] = metrics["topics_exports_total"]
    by_data = {
        flag: sum(round(line["value"]) for line in exports if line["labels"]["data"] == flag)
        for flag in ("true", "false")
    }
    sums = {
        name: sum(round(line["value"]) for line in metrics[f"topics_export_{name}_total"])
        for name in ("seqs", "records", "bytes")
    }
    return Asked(by_data["true"], by_data["false"], **sums)
