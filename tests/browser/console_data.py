"""A daemon with something of everything that the console shows."""

from __future__ import annotations

from typing import Any

import httpx

LONG = "telemetry.device-0000000000001.temperature.celsius.readings-with-a-rather-long-name:site-hamburg.hall-17.rack-4"


def fill(client: httpx.Client) -> None:
    """Make topics, queues, groups, consumers and routers."""

    def put(path: str, **body: Any) -> None:
        client.put(f"/v0/{path}", json=body).raise_for_status()

    def post(path: str, **body: Any) -> Any:
        answer = client.post(f"/v0/{path}", json=body)
        answer.raise_for_status()
        return answer.json()

    put("topics/orders", durability="fsync", ttl_ms=7 * 86_400_000)
    records = [
        {
            "data": {"order": 1000 + i, "total": i * 1.5, "customer": {"id": 9_876_543_210 + i, "name": "Ada"}},
            "tag": "eu:de" if i % 2 else "us:ny",
            "node": f"shop-{i % 3}",
            "meta": {"trace": f"{i:08x}"},
        }
        for i in range(150)
    ]
    post("topics/orders", records=records)
    put("topics/capped", cap_records=10)
    post("topics/capped", records=[{"data": i} for i in range(25)])
    post("topics/capped", records=[{"data": i} for i in range(25)])
    put(f"topics/{LONG}", durability="ephemeral")
    put("topics/mails", type="queue", max_deliveries=5, dead_letter="mails.dead", retry={"delay_ms": 3_600_000})
    post("topics/mails", records=[{"data": {"to": f"user-{i}@example.com"}, "tag": "welcome"} for i in range(20)])
    claimed = post("topics/mails/claim", node="worker-1", max=6, lease_ms=3_600_000)["claimed"]
    seqs = [job["$seq"] for job in claimed]
    post("topics/mails/nack", node="worker-1", seqs=seqs[:2], error="451 mailbox busy")
    post("topics/mails/nack", node="worker-1", seqs=seqs[2:4], dead=True, error="550 no such user")
    put("topics/orders/groups/billing")
    put("topics/orders/groups/shipping", **{"from": "earliest"})
    post("topics/orders/groups/shipping/claim", node="packer", max=3, lease_ms=3_600_000)
    put("topics/orders/consumers/warehouse", **{"from": "earliest"})
    post("topics/orders/consumers/warehouse/commit", seq=100)
    put("topics/archive")
    put("routers/orders>archive", source="orders", dest="archive", **{"from": "earliest"})
    put("topics/left")
    put("topics/right")
    put("routers/there", source="left", dest="right", allow_cycle=True)
    put("routers/back", source="right", dest="left", allow_cycle=True)
