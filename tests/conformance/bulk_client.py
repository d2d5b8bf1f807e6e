"""Exports and uploads of NDJSON as a client sees them, and how much memory the daemon takes meanwhile."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

from tests.conformance.client import Client

LINES_TYPE = "application/x-ndjson"
ARROW_TYPE = "application/vnd.apache.arrow.stream"
ARROW_SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("node", pa.string()),
        ("tag", pa.string()),
        ("meta", pa.map_(pa.string(), pa.string())),
        ("data", pa.string()),
    ]
)
END_FIELDS = {"next_from_seq", "head_seq", "earliest_seq", "epoch"}


@dataclass
class Exported:
    """What has come of an export; `end` is None if it was cut off."""

    records: list[Any] = field(default_factory=list)
    tombstones: list[Any] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    """A letter for each line: r, t or e."""
    end: Any = None

    def add(self, line: bytes) -> None:
        assert self.end is None, "nothing comes after the end"
        value = json.loads(line)
        if "$tombstone" in value:
            assert set(value) == {"$tombstone"}
            self.tombstones.append(value["$tombstone"])
            self.order.append("t")
        elif "$end" in value:
            assert set(value) == {"$end"}
            assert set(value["$end"]) == END_FIELDS
            self.end = value["$end"]
            self.order.append("e")
        else:
            self.records.append(value)
            self.order.append("r")

    @property
    def seqs(self) -> list[int]:
        return [record["$seq"] for record in self.records]

    @property
    def data(self) -> list[Any]:
        return [record["data"] for record in self.records]

    @property
    def gaps(self) -> list[tuple[int, int, str]]:
        return [(gap["gap_from"], gap["gap_to"], gap["reason"]) for gap in self.tombstones]


def export_path(topic: str) -> str:
    return f"/v0/topics/{topic}/records"


def exported(response: httpx.Response) -> Exported:
    """A whole export, after everything that holds for each of them was checked."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == LINES_TYPE
    assert response.content.endswith(b"\n")
    found = Exported()
    for line in response.content.split(b"\n")[:-1]:
        found.add(line)
    assert found.order[-1] == "e", "it is whole"
    assert found.seqs == sorted(set(found.seqs))
    return found


def export(client: Client, topic: str, **query: Any) -> Exported:
    return exported(client.get(export_path(topic), params=query))


def exported_arrow(response: httpx.Response) -> Exported:
    """A whole export as an Arrow stream, and what its lines would have been."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == ARROW_TYPE
    reader = pa.ipc.open_stream(response.content)
    assert reader.schema == ARROW_SCHEMA
    found = Exported()
    for batch, metadata in reader.iter_batches_with_custom_metadata():
        assert batch.num_rows <= 10_000
        said = {name.decode(): json.loads(value) for name, value in (metadata or {}).items()}
        assert not (said and batch.num_rows)
        if said:
            found.add(json.dumps(said).encode())
        for row in batch.to_pylist():
            found.add(json.dumps(_record_of(row)).encode())
    assert found.order[-1] == "e", "it is whole"
    assert found.seqs == sorted(set(found.seqs))
    return found


def _record_of(row: dict[str, Any]) -> dict[str, Any]:
    """A row as a line shows it."""
    ts = row["ts"]
    assert ts.microsecond % 1000 == 0
    shown = {"$seq": row["seq"], "$ts": int(ts.timestamp()) * 1000 + ts.microsecond // 1000}
    for name, key in (("node", "$node"), ("tag", "$tag")):
        if row[name] is not None:
            shown[key] = row[name]
    if row["data"] is not None:
        shown["data"] = json.loads(row["data"])
    if row["meta"] is not None:
        shown["meta"] = dict(row["meta"])
    return shown


def export_arrow(client: Client, topic: str, **query: Any) -> Exported:
    return exported_arrow(client.get(export_path(topic), params=query, headers={"accept": ARROW_TYPE}))


def lines_of(records: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def upload(
    client: Client, topic: str, content: bytes | Iterator[bytes], key: str | None = None, **query: Any
) -> httpx.Response:
    """Send lines; `content` that is an iterator goes in chunks."""
    headers = {"content-type": LINES_TYPE} | ({} if key is None else {"idempotency-key": key})
    return client.post(f"/v0/topics/{topic}", params=query, content=content, headers=headers)


def pid_of(client: Client) -> int:
    process = client.daemon._process
    assert process is not None
    return process.pid


def forget_peak(pid: int) -> int:
    """From here on the peak is counted anew; MiB that are resident now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _mebibytes(pid, "VmRSS")


def peak_of(pid: int) -> int:
    """MiB that were resident at most."""
    return _mebibytes(pid, "VmHWM")


def _mebibytes(pid: int, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None, os.uname()
    return int(found[1]) >> 10
