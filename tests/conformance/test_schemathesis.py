"""schemathesis over the OpenAPI document, against live daemons: no failure of the server, and no status, content type,
header or body that the document does not know.

Requests are made from the document: its examples, values at the edges of every schema and beyond them, and others at
random, the same in every run. Streams never end and are left out; `test_openapi` is about them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conformance.client import Client, body_of, running
from topics.http.openapi.document import document

HERE = Path(__file__).parent


def fuzz(client: Client, *options: str) -> None:
    """One run of the command line, which must find nothing."""
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml"), "run"]
    for name in sorted(streams_of(client)):
        command += ["--exclude-operation-id", name]
    run = subprocess.run(
        [*command, f"{client.daemon.url}/v0/openapi.json", *options],
        cwd=HERE.parents[1],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-20_000:]


def operations_of(client: Client) -> dict[str, Any]:
    """The operations of the document, by the label that they have in the metrics."""
    paths = body_of(client.get("/v0/openapi.json"))["paths"]
    return {f"{method.upper()} {path}": said for path, calls in paths.items() for method, said in calls.items()}


def streams_of(client: Client) -> set[str]:
    """Operations that are answered by a stream."""
    return {
        said["operationId"]
        for said in operations_of(client).values()
        if any(kind.startswith("text/event-stream") for kind in said["responses"].get("200", {}).get("content", ()))
    }


def answered(client: Client) -> dict[str, set[str]]:
    """The statuses that each operation was answered with so far."""
    metrics = body_of(client.get("/v0/metrics", headers={"accept": "application/json"}))
    statuses: dict[str, set[str]] = {}
    for sample in metrics["topics_requests_total"]:
        statuses.setdefault(sample["labels"]["route"], set()).add(sample["labels"]["status"])
    return statuses


def prepare(client: Client) -> None:
    """Topics with which calls come to something: a log with a stage that was published and a consumer that moves, one
    whose records stay, one that is full, and a queue with jobs that are leased."""
    client.append("log", *range(10))
    client.append("kept", 1, 2)
    body_of(client.post("/v0/topics/log", params={"stage": "whole"}, json={"records": [{"data": 1}]}))
    body_of(client.post("/v0/topics/log/commit", json={"stages": ["whole"], "idempotency_key": "published"}))
    consumer = "/v0/topics/log/consumers/reader"
    body_of(client.put(consumer, json={"from": "earliest"}), 201)
    held = body_of(client.post(f"{consumer}/acquire", json={"owner": "one", "lease_ms": 5000}))
    for call, body in (("commit", {"seq": 2}), ("seek", {"seq": 1}), ("release", {})):
        body_of(client.post(f"{consumer}/{call}", json={**body, "generation": held["generation"]}))
    client.put_topic("full", cap_records=1, discard="reject")
    client.append("full", 1)
    client.put_topic("proven", durability="fsync", evidence=True)
    client.append("proven", *range(100))
    body_of(client.get("/v0/topics/proven/evidence", headers={"accept": "application/json"}))
    client.put_topic("jobs", type="queue")
    client.append("jobs", *range(100))
    body_of(client.post("/v0/topics/jobs/claim", json={"node": "worker-1", "max": 50}))


def test_the_document_is_valid_openapi() -> None:
    import schemathesis  # noqa: PLC0415 - takes longer than to collect all other tests

    schema = schemathesis.openapi.from_dict(document())
    schema.validate()
    assert schema.specification.version.startswith("3.1")


def test_nothing_undocumented_comes_of_whatever_the_document_allows_and_forbids(tmp_path: Path) -> None:
    with running(tmp_path, max_body_bytes=1 << 20, max_record_bytes=256 << 10) as client:
        prepare(client)
        fuzz(client, "--phases", "examples,coverage,fuzzing", "--max-examples", "10")

        statuses, operations, streams = answered(client), operations_of(client), streams_of(client)
        for label, said in operations.items():
            if said["operationId"] in streams:
                continue
            assert statuses[label] <= set(said["responses"]), label
            # A WebSocket is what no fuzz opens.
            assert said["operationId"] == "ws" or statuses[label] & {"200", "201", "202"}, label
        assert not any("500" in met for met in statuses.values())


def test_nothing_undocumented_comes_of_a_key_that_may_not_do_everything(tmp_path: Path) -> None:
    with running(tmp_path, max_body_bytes=1 << 20, api_keys="secret,narrow:read+write:lo") as client:
        client.headers["authorization"] = "Bearer secret"
        prepare(client)
        options = ("--phases", "examples,fuzzing", "--max-examples", "4")
        fuzz(client, *options, "--header", "Authorization: Bearer narrow")

        statuses = answered(client)
        for label, said in operations_of(client).items():
            if "403" in said["responses"] and said["operationId"] not in streams_of(client):
                assert statuses[label] <= set(said["responses"]), label
        assert "200" in statuses["GET /v0/topics/{topic}/diff"]
        assert {"403"} <= statuses["GET /v0/topics/{topic}/diff"] & statuses["PUT /v0/topics/{topic}"]
        assert not any("500" in met for met in statuses.values())
