"""What each call of the clients sends, and what it expects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from topics.client import (
    calls,
    consumer_calls,
    daemon_calls,
    evidence_calls,
    group_calls,
    job_calls,
    latest_calls,
    redrive_calls,
    schedule_calls,
)
from topics.client.calls import ClientCall
from topics.client.results import NewAppend, NewRecord

Query = list[tuple[str, str]]


class Said(NamedTuple):
    """A call, and what it has to be on the wire."""

    call: ClientCall[Any]
    line: str
    """Method and path."""
    query: Query
    body: Any
    """None: there is none."""
    repeatable: bool


def said(
    call: ClientCall[Any], line: str, query: Iterable[tuple[str, str]] = (), *, body: Any = None, repeatable: bool
) -> Said:
    return Said(call, line, list(query), body, repeatable)


WATCHED: dict[str, dict[str, object]] = {"a": {"from_seq": 7}, "b": {"tail": True}}
RECORDS = [{"data": 1}]
CASES = {
    "health": said(daemon_calls.health(), "GET /v0/health", repeatable=True),
    "ready": said(daemon_calls.ready(), "GET /v0/ready", repeatable=True),
    "metrics": said(daemon_calls.metrics(), "GET /v0/metrics", repeatable=True),
    "metrics_text": said(daemon_calls.metrics_text(), "GET /v0/metrics", repeatable=True),
    "openapi": said(daemon_calls.openapi(), "GET /v0/openapi.json", repeatable=True),
    "checkpoint": said(daemon_calls.checkpoint(), "POST /v0/admin/checkpoint", [("hold_ms", "0")], repeatable=True),
    "checkpoint, held": said(
        daemon_calls.checkpoint(hold_ms=9), "POST /v0/admin/checkpoint", [("hold_ms", "9")], repeatable=True
    ),
    "key": said(daemon_calls.key(), "GET /v0/key", repeatable=True),
    "figures": said(daemon_calls.figures(), "GET /v0/figures", repeatable=True),
    "storage": said(daemon_calls.storage(), "GET /v0/storage", repeatable=True),
    "connections": said(daemon_calls.connections(), "GET /v0/connections", [("page_size", "100")], repeatable=True),
    "connections, more": said(
        daemon_calls.connections(page_size=9, cursor="bjo1"),
        "GET /v0/connections",
        [("page_size", "9"), ("cursor", "bjo1")],
        repeatable=True,
    ),
    "parse_filter": said(
        daemon_calls.parse_filter('tag = "a"'), "GET /v0/filter", [("text", 'tag = "a"')], repeatable=True
    ),
    "consumers_of_all": said(
        daemon_calls.consumers_of_all(), "GET /v0/consumers", [("page_size", "100")], repeatable=True
    ),
    "consumers_of_all, more": said(
        daemon_calls.consumers_of_all(prefix="a", page_size=9, cursor="QzphL2I"),
        "GET /v0/consumers",
        [("prefix", "a"), ("page_size", "9"), ("cursor", "QzphL2I")],
        repeatable=True,
    ),
    "groups_of_all": said(daemon_calls.groups_of_all(), "GET /v0/groups", [("page_size", "100")], repeatable=True),
    "groups_of_all, more": said(
        daemon_calls.groups_of_all(prefix="a", page_size=9, cursor="RzphL2I"),
        "GET /v0/groups",
        [("prefix", "a"), ("page_size", "9"), ("cursor", "RzphL2I")],
        repeatable=True,
    ),
    "create": said(calls.create("a"), "PUT /v0/topics/a", body={}, repeatable=True),
    "update": said(
        calls.update("a", ttl_ms=1), "PUT /v0/topics/a", [("create", "false")], body={"ttl_ms": 1}, repeatable=True
    ),
    "create, every setting": said(
        calls.create(
            "a",
            type="queue",
            ttl_ms=1,
            cap_records=2,
            cap_bytes=3,
            discard="reject",
            durability="fsync",
            durable=True,
            priority=None,
            auto_priority=False,
            auto_create=False,
            idempotency_window_ms=4,
            dedupe_node=False,
            lease_ms=100,
            claim_jitter_ms=5,
            max_deliveries=6,
            dead_letter="b",
            leases_durable=True,
            schema={"type": "string"},
            retention="limits",
            segment_max_events=7,
            segment_max_bytes=1024,
            segment_max_age_ms=None,
            compression="zstd",
        ),
        "PUT /v0/topics/a",
        body={
            "type": "queue",
            "ttl_ms": 1,
            "cap_records": 2,
            "cap_bytes": 3,
            "discard": "reject",
            "durability": "fsync",
            "durable": True,
            "priority": None,
            "auto_priority": False,
            "auto_create": False,
            "idempotency_window_ms": 4,
            "dedupe_node": False,
            "lease_ms": 100,
            "claim_jitter_ms": 5,
            "max_deliveries": 6,
            "dead_letter": "b",
            "leases_durable": True,
            "schema": {"type": "string"},
            "retention": "limits",
            "segment_max_events": 7,
            "segment_max_bytes": 1024,
            "segment_max_age_ms": None,
            "compression": "zstd",
        },
        repeatable=True,
    ),
    "state": said(calls.state("a:b.c-d_e"), "GET /v0/topics/a:b.c-d_e", repeatable=True),
    "state, not touched": said(
        calls.state("a", touch=False), "GET /v0/topics/a", [("touch", "false")], repeatable=True
    ),
    "topic_page": said(calls.topic_page(), "GET /v0/topics", [("page_size", "100")], repeatable=True),
    "topic_page, of many": said(
        calls.topic_page(prefix="a&b=", page_size=7, cursor="YQ"),
        "GET /v0/topics",
        [("prefix", "a&b="), ("page_size", "7"), ("cursor", "YQ")],
        repeatable=True,
    ),
    "topic_page, the largest queues": said(
        calls.topic_page(type="queue", sort="bytes"),
        "GET /v0/topics",
        [("page_size", "100"), ("type", "queue"), ("sort", "bytes")],
        repeatable=True,
    ),
    "delete_topic": said(calls.delete_topic("a"), "DELETE /v0/topics/a", repeatable=False),
    "delete_topic, if empty": said(
        calls.delete_topic("a", if_empty=True), "DELETE /v0/topics/a", [("if_empty", "true")], repeatable=False
    ),
    "append": said(
        calls.append("a", [1, "x", None, {"k": [True]}], idempotency_key="k"),
        "POST /v0/topics/a",
        body={
            "records": [{"data": 1}, {"data": "x"}, {"data": None}, {"data": {"k": [True]}}],
            "idempotency_key": "k",
        },
        repeatable=True,
    ),
    "append, without a key": said(
        calls.append("a", [1], idempotency_key=None), "POST /v0/topics/a", body={"records": RECORDS}, repeatable=False
    ),
    "append, conditions": said(
        calls.append(
            "a",
            [1],
            idempotency_key="k",
            expected_head_seq=0,
            expected_tag_seqs={"t": 0},
            fence=("f", 7),
        ),
        "POST /v0/topics/a",
        body={
            "records": RECORDS,
            "idempotency_key": "k",
            "expected_head_seq": 0,
            "expected_tag_seqs": {"t": 0},
            "fence": {"name": "f", "token": 7},
        },
        repeatable=True,
    ),
    "append, everything": said(
        calls.append(
            "a",
            [NewRecord({"n": 1}, "t", "n1", {"k": "v"}), NewRecord(None, tag=None, node=None, meta={})],
            node="n2",
            idempotency_key="k",
            create=False,
            config={"type": "queue", "priority": None},
            disable_backpressure=True,
            return_seqs=False,
        ),
        "POST /v0/topics/a",
        [("return_seqs", "false")],
        body={
            "records": [
                {"data": {"n": 1}, "tag": "t", "node": "n1", "meta": {"k": "v"}},
                {"data": None},
            ],
            "node": "n2",
            "idempotency_key": "k",
            "create": False,
            "config": {"type": "queue", "priority": None},
            "disable_backpressure": True,
        },
        repeatable=True,
    ),
    "append_bytes": said(
        calls.append_bytes("a", b"\0\xff", idempotency_key="k"),
        "POST /v0/topics/a",
        [("idempotency_key", "k")],
        body=b"\0\xff",
        repeatable=True,
    ),
    "append_bytes, without a key": said(
        calls.append_bytes("a", bytearray(), "image/png", idempotency_key=None, meta={}),
        "POST /v0/topics/a",
        body=b"",
        repeatable=False,
    ),
    "append_bytes, everything": said(
        calls.append_bytes(
            "a",
            memoryview(b"x"),
            "application/cbor",
            tag="t&ä",
            node="n",
            meta={"k": 'v"'},
            idempotency_key="k",
            create=False,
            disable_backpressure=True,
            expected_head_seq=0,
            expected_tag_seqs={"t&ä": 0},
            fence=("f", 7),
        ),
        "POST /v0/topics/a",
        [
            ("tag", "t&ä"),
            ("node", "n"),
            ("idempotency_key", "k"),
            ("create", "false"),
            ("disable_backpressure", "true"),
            ("meta", '{"k":"v\\""}'),
            ("expected_head_seq", "0"),
            ("expected_tag_seqs", '{"t&ä":0}'),
            ("fence", '{"name":"f","token":7}'),
        ],
        body=b"x",
        repeatable=True,
    ),
    "encoded_append": said(
        calls.encoded_append("a", [b'{"data":1}'], {"idempotency_key": "k", "node": None}, return_seqs=True),
        "POST /v0/topics/a",
        body={"records": RECORDS, "idempotency_key": "k"},
        repeatable=True,
    ),
    "diff": said(
        calls.diff("a"),
        "GET /v0/topics/a/diff",
        [("from_seq", "0"), ("limit", "256"), ("include_tags", "true")],
        repeatable=True,
    ),
    "diff, everything": said(
        calls.diff(
            "a",
            7,
            epoch=3,
            limit=5,
            node=["n 1", "n&2"],
            include_tags=False,
            include_meta=False,
            wait_ms=1500,
            max_batch_bytes=99,
        ),
        "GET /v0/topics/a/diff",
        [
            ("from_seq", "7"),
            ("epoch", "3"),
            ("limit", "5"),
            ("node", "n 1"),
            ("node", "n&2"),
            ("include_tags", "false"),
            ("include_meta", "false"),
            ("wait_ms", "1500"),
            ("max_batch_bytes", "99"),
        ],
        repeatable=True,
    ),
    "diff, backwards": said(
        calls.diff("a", before_seq=9, touch=False),
        "GET /v0/topics/a/diff",
        [("from_seq", "0"), ("limit", "256"), ("include_tags", "true"), ("before_seq", "9"), ("touch", "false")],
        repeatable=True,
    ),
    "diff, one node": said(
        calls.diff("a", node="näh"),
        "GET /v0/topics/a/diff",
        [("from_seq", "0"), ("limit", "256"), ("node", "näh"), ("include_tags", "true")],
        repeatable=True,
    ),
    "delete_records": said(
        calls.delete_records("a", before_seq=9, match=["tag", "Glob", "x*"]),
        "POST /v0/topics/a/delete",
        body={"before_seq": 9, "match": ["tag", "Glob", "x*"]},
        repeatable=False,
    ),
    "delete_records, counted": said(
        calls.delete_records("a", before_seq=9, dry_run=True),
        "POST /v0/topics/a/delete",
        body={"before_seq": 9, "dry_run": True},
        repeatable=True,
    ),
    "delete_records, a range": said(
        calls.delete_records("a", after_seq=0, before_seq=9, before_ts=7),
        "POST /v0/topics/a/delete",
        body={"after_seq": 0, "before_seq": 9, "before_ts": 7},
        repeatable=False,
    ),
    "delete_records, by a bare tag": said(
        calls.delete_records("a", match="x*"), "POST /v0/topics/a/delete", body={"match": "x*"}, repeatable=False
    ),
    "update_router": said(
        calls.update_router("a>b", preserve_tag=False),
        "PUT /v0/routers/a>b",
        [("create", "false")],
        body={"preserve_tag": False},
        repeatable=True,
    ),
    "update_router, ends": said(
        calls.update_router("a>b", "a", "b", from_="tail"),
        "PUT /v0/routers/a>b",
        [("create", "false")],
        body={"source": "a", "dest": "b", "from": "tail"},
        repeatable=True,
    ),
    "create_router": said(
        calls.create_router("a>b", "a", "b"),
        "PUT /v0/routers/a>b",
        body={"source": "a", "dest": "b"},
        repeatable=True,
    ),
    "create_router, everything": said(
        calls.create_router(
            "r",
            "a",
            "b",
            preserve_node=False,
            preserve_tag=False,
            create_dest=False,
            filter=None,
            allow_cycle=True,
            guarantee="exactly_once",
            from_="earliest",
        ),
        "PUT /v0/routers/r",
        body={
            "source": "a",
            "dest": "b",
            "preserve_node": False,
            "preserve_tag": False,
            "create_dest": False,
            "filter": None,
            "allow_cycle": True,
            "guarantee": "exactly_once",
            "from": "earliest",
        },
        repeatable=True,
    ),
    "router": said(calls.router("a>b"), "GET /v0/routers/a>b", repeatable=True),
    "router_page": said(calls.router_page(), "GET /v0/routers", [("page_size", "100")], repeatable=True),
    "router_page, of some": said(
        calls.router_page(prefix="p", source="a", dest="b", page_size=2, cursor="YQ"),
        "GET /v0/routers",
        [("prefix", "p"), ("source", "a"), ("dest", "b"), ("page_size", "2"), ("cursor", "YQ")],
        repeatable=True,
    ),
    "delete_router": said(calls.delete_router("r"), "DELETE /v0/routers/r", repeatable=False),
    "create_group": said(
        group_calls.create_group("a", "g"), "PUT /v0/topics/a/groups/g", body={"from": "tail"}, repeatable=True
    ),
    "create_group, everything": said(
        group_calls.create_group(
            "a",
            "g",
            from_="earliest",
            filter=["tag", "Eq", "x"],
            lease_ms=1000,
            claim_jitter_ms=2,
            max_deliveries=3,
            dead_letter="",
            leases_durable=True,
            max_unfinished=4,
        ),
        "PUT /v0/topics/a/groups/g",
        body={
            "from": "earliest",
            "filter": ["tag", "Eq", "x"],
            "lease_ms": 1000,
            "claim_jitter_ms": 2,
            "max_deliveries": 3,
            "dead_letter": None,
            "leases_durable": True,
            "max_unfinished": 4,
        },
        repeatable=True,
    ),
    "group": said(group_calls.group("a", "g"), "GET /v0/topics/a/groups/g", repeatable=True),
    "group_page": said(group_calls.group_page("a"), "GET /v0/topics/a/groups", [("page_size", "100")], repeatable=True),
    "pause": said(job_calls.pause("q"), "POST /v0/topics/q/pause", body={}, repeatable=True),
    "pause, group": said(
        job_calls.pause("a", until=5, group="g"),
        "POST /v0/topics/a/groups/g/pause",
        body={"until": 5},
        repeatable=True,
    ),
    "redrive": said(redrive_calls.redrive("d"), "POST /v0/topics/d/redrive", body={}, repeatable=True),
    "redrive, some": said(
        redrive_calls.redrive("d", to="q", filter=["tag", "Eq", "x"], max=5, rate={"jobs": 1, "per_ms": 2}),
        "POST /v0/topics/d/redrive",
        body={"to": "q", "filter": ["tag", "Eq", "x"], "max": 5, "rate": {"jobs": 1, "per_ms": 2}},
        repeatable=True,
    ),
    "redrive_state": said(redrive_calls.redrive_state("d"), "GET /v0/topics/d/redrive", repeatable=True),
    "stop_redrive": said(redrive_calls.stop_redrive("d"), "DELETE /v0/topics/d/redrive", repeatable=True),
    "resume": said(job_calls.resume("q"), "POST /v0/topics/q/resume", repeatable=True),
    "resume, group": said(job_calls.resume("a", group="g"), "POST /v0/topics/a/groups/g/resume", repeatable=True),
    "job_page": said(job_calls.job_page("q"), "GET /v0/topics/q/jobs", [("page_size", "100")], repeatable=True),
    "job_page, everything": said(
        job_calls.job_page("a", state="dead", filter=["tag", "Eq", "x"], page_size=5, cursor="ajoz", group="g"),
        "GET /v0/topics/a/groups/g/jobs",
        [("state", "dead"), ("filter", '["tag","Eq","x"]'), ("page_size", "5"), ("cursor", "ajoz")],
        repeatable=True,
    ),
    "retry_jobs": said(
        job_calls.retry_jobs("q", [1, 2]), "POST /v0/topics/q/jobs/retry", body={"seqs": [1, 2]}, repeatable=False
    ),
    "retry_jobs, group": said(
        job_calls.retry_jobs("a", filter=["tag", "Eq", "x"], state="delayed", group="g"),
        "POST /v0/topics/a/groups/g/jobs/retry",
        body={"filter": ["tag", "Eq", "x"], "state": "delayed"},
        repeatable=False,
    ),
    "cancel_jobs": said(
        job_calls.cancel_jobs("q", [1, 2]), "POST /v0/topics/q/jobs/cancel", body={"seqs": [1, 2]}, repeatable=False
    ),
    "cancel_jobs, group": said(
        job_calls.cancel_jobs("a", filter='["tag","Eq","x"]', state="ready", group="g"),
        "POST /v0/topics/a/groups/g/jobs/cancel",
        body={"filter": ["tag", "Eq", "x"], "state": "ready"},
        repeatable=False,
    ),
    "delete_group": said(group_calls.delete_group("a", "g"), "DELETE /v0/topics/a/groups/g", repeatable=False),
    "claim, group": said(
        calls.claim("a", "n", group="g"),
        "POST /v0/topics/a/groups/g/claim",
        body={"node": "n", "max": 1, "wait_ms": 0},
        repeatable=False,
    ),
    "ack, group": said(
        calls.ack("a", "n", [1], group="g"),
        "POST /v0/topics/a/groups/g/ack",
        body={"node": "n", "seqs": [1]},
        repeatable=False,
    ),
    "nack, group": said(
        calls.nack("a", "n", [1], group="g"),
        "POST /v0/topics/a/groups/g/nack",
        body={"node": "n", "seqs": [1]},
        repeatable=False,
    ),
    "extend, group": said(
        calls.extend("a", "n", [1], lease_ms=500, group="g"),
        "POST /v0/topics/a/groups/g/extend",
        body={"node": "n", "seqs": [1], "lease_ms": 500},
        repeatable=False,
    ),
    "open_work, group": said(
        calls.open_work("a", "n", group="g"),
        "GET /v0/topics/a/groups/g/work",
        [("node", "n"), ("max", "1")],
        repeatable=False,
    ),
    "create_consumer": said(
        consumer_calls.create_consumer("a", "c"), "PUT /v0/topics/a/consumers/c", body={"from": "tail"}, repeatable=True
    ),
    "create_consumer, everything": said(
        consumer_calls.create_consumer("a", "c", from_={"seq": 3}, ttl_ms=9),
        "PUT /v0/topics/a/consumers/c",
        body={"from": {"seq": 3}, "ttl_ms": 9},
        repeatable=True,
    ),
    "consumer": said(consumer_calls.consumer("a", "c"), "GET /v0/topics/a/consumers/c", repeatable=True),
    "consumer_page": said(
        consumer_calls.consumer_page("a"), "GET /v0/topics/a/consumers", [("page_size", "100")], repeatable=True
    ),
    "delete_consumer": said(
        consumer_calls.delete_consumer("a", "c"), "DELETE /v0/topics/a/consumers/c", repeatable=False
    ),
    "commit_consumer": said(
        consumer_calls.commit_consumer("a", "c", 5, generation=2, epoch=7),
        "POST /v0/topics/a/consumers/c/commit",
        body={"seq": 5, "generation": 2, "epoch": 7},
        repeatable=True,
    ),
    "seek_consumer": said(
        consumer_calls.seek_consumer("a", "c", "earliest"),
        "POST /v0/topics/a/consumers/c/seek",
        body={"to": "earliest"},
        repeatable=True,
    ),
    "acquire_consumer": said(
        consumer_calls.acquire_consumer("a", "c", "me", lease_ms=500),
        "POST /v0/topics/a/consumers/c/acquire",
        body={"owner": "me", "lease_ms": 500},
        repeatable=True,
    ),
    "release_consumer": said(
        consumer_calls.release_consumer("a", "c", 2),
        "POST /v0/topics/a/consumers/c/release",
        body={"generation": 2},
        repeatable=True,
    ),
    "read_consumer": said(
        consumer_calls.read_consumer("a", "c", ack="before", limit=3),
        "GET /v0/topics/a/diff",
        [("consumer", "c"), ("ack", "before"), ("limit", "3"), ("include_tags", "true")],
        repeatable=False,
    ),
    "create_schedule": said(
        schedule_calls.create_schedule("s", "a", {"b": 1}, every_ms=500),
        "PUT /v0/schedules/s",
        body={"topic": "a", "record": {"data": {"b": 1}}, "every_ms": 500, "time_zone": "UTC", "catch_up": "none"},
        repeatable=True,
    ),
    "create_schedule, everything": said(
        schedule_calls.create_schedule(
            "s",
            "a",
            1,
            cron="0 3 * * *",
            time_zone="Europe/Berlin",
            catch_up="all",
            paused=True,
            tag="x",
            node="n",
            meta={"k": "v"},
        ),
        "PUT /v0/schedules/s",
        body={
            "topic": "a",
            "record": {"data": 1, "tag": "x", "node": "n", "meta": {"k": "v"}},
            "cron": "0 3 * * *",
            "time_zone": "Europe/Berlin",
            "catch_up": "all",
            "paused": True,
        },
        repeatable=True,
    ),
    "schedule": said(schedule_calls.schedule("s"), "GET /v0/schedules/s", repeatable=True),
    "schedule_page": said(
        schedule_calls.schedule_page(prefix="p", cursor="YQ"),
        "GET /v0/schedules",
        [("prefix", "p"), ("page_size", "100"), ("cursor", "YQ")],
        repeatable=True,
    ),
    "delete_schedule": said(schedule_calls.delete_schedule("s"), "DELETE /v0/schedules/s", repeatable=False),
    "run_schedule": said(schedule_calls.run_schedule("s"), "POST /v0/schedules/s/run", repeatable=False),
    "pause_schedule": said(schedule_calls.pause_schedule("s"), "POST /v0/schedules/s/pause", repeatable=True),
    "resume_schedule": said(schedule_calls.resume_schedule("s"), "POST /v0/schedules/s/resume", repeatable=True),
    "claim": said(
        calls.claim("q", "n"), "POST /v0/topics/q/claim", body={"node": "n", "max": 1, "wait_ms": 0}, repeatable=False
    ),
    "claim, everything": said(
        calls.claim("q", "n", max=5, lease_ms=700, wait_ms=2500),
        "POST /v0/topics/q/claim",
        body={"node": "n", "max": 5, "lease_ms": 700, "wait_ms": 2500},
        repeatable=False,
    ),
    "ack": said(
        calls.ack("q", "n", [1, 2]), "POST /v0/topics/q/ack", body={"node": "n", "seqs": [1, 2]}, repeatable=False
    ),
    "ack, fenced": said(
        calls.ack("q", "n", [1], lease_ids=["lease_1"]),
        "POST /v0/topics/q/ack",
        body={"node": "n", "seqs": [1], "lease_ids": ["lease_1"]},
        repeatable=True,
    ),
    "nack": said(
        calls.nack("q", "n", [1], delay_ms=40),
        "POST /v0/topics/q/nack",
        body={"node": "n", "seqs": [1], "delay_ms": 40},
        repeatable=False,
    ),
    "nack, fenced": said(
        calls.nack("q", "n", [1], lease_ids=["lease_1"]),
        "POST /v0/topics/q/nack",
        body={"node": "n", "seqs": [1], "lease_ids": ["lease_1"]},
        repeatable=True,
    ),
    "extend": said(
        calls.extend("q", "n", [1], lease_ms=500),
        "POST /v0/topics/q/extend",
        body={"node": "n", "seqs": [1], "lease_ms": 500},
        repeatable=False,
    ),
    "extend, fenced": said(
        calls.extend("q", "n", [1], lease_ms=500, lease_ids=["lease_1"]),
        "POST /v0/topics/q/extend",
        body={"node": "n", "seqs": [1], "lease_ms": 500, "lease_ids": ["lease_1"]},
        repeatable=True,
    ),
    "open_work": said(
        calls.open_work("q", "n", max=3, lease_ms=100),
        "GET /v0/topics/q/work",
        [("node", "n"), ("max", "3"), ("lease_ms", "100")],
        repeatable=False,
    ),
    "transaction": said(
        calls.transaction(
            [NewAppend("a", [1, NewRecord(2, tag="t")]), NewAppend("b", [3], "n", create=False, config={"ttl_ms": 5})],
            idempotency_key="k",
        ),
        "POST /v0/transactions",
        body={
            "appends": [
                {"topic": "a", "records": [{"data": 1}, {"data": 2, "tag": "t"}]},
                {"topic": "b", "records": [{"data": 3}], "node": "n", "create": False, "config": {"ttl_ms": 5}},
            ],
            "idempotency_key": "k",
        },
        repeatable=True,
    ),
    "transaction, without a key": said(
        calls.transaction([NewAppend("a", [1]), NewAppend("b", [2])], idempotency_key=None),
        "POST /v0/transactions",
        body={"appends": [{"topic": "a", "records": RECORDS}, {"topic": "b", "records": [{"data": 2}]}]},
        repeatable=False,
    ),
    "commit": said(
        calls.commit("a", ["s", "t:1"], "k"),
        "POST /v0/topics/a/commit",
        body={"stages": ["s", "t:1"], "idempotency_key": "k"},
        repeatable=True,
    ),
    "latest": said(
        latest_calls.latest("a", "x y", include_meta=False),
        "GET /v0/topics/a/latest",
        [("tag", "x y"), ("include_meta", "false")],
        repeatable=True,
    ),
    "latest_page": said(
        latest_calls.latest_page("a"),
        "GET /v0/topics/a/latest",
        [("prefix", ""), ("page_size", "100")],
        repeatable=True,
    ),
    "latest_page, of a prefix": said(
        latest_calls.latest_page("a", "x", page_size=7, cursor="c", include_tags=False, max_batch_bytes=5),
        "GET /v0/topics/a/latest",
        [("prefix", "x"), ("page_size", "7"), ("cursor", "c"), ("include_tags", "false"), ("max_batch_bytes", "5")],
        repeatable=True,
    ),
    "latest, only looking": said(
        latest_calls.latest("a", "x", touch=False),
        "GET /v0/topics/a/latest",
        [("tag", "x"), ("touch", "false")],
        repeatable=True,
    ),
    "latest_page, only looking": said(
        latest_calls.latest_page("a", touch=False),
        "GET /v0/topics/a/latest",
        [("prefix", ""), ("page_size", "100"), ("touch", "false")],
        repeatable=True,
    ),
    "record": said(calls.record("a", 7), "GET /v0/topics/a/records/7", repeatable=True),
    "commit, conditions": said(
        calls.commit("a", ["s"], "k", expected_head_seq=3, expected_tag_seqs={}, fence=("f", 0)),
        "POST /v0/topics/a/commit",
        body={
            "stages": ["s"],
            "idempotency_key": "k",
            "expected_head_seq": 3,
            "expected_tag_seqs": {},
            "fence": {"name": "f", "token": 0},
        },
        repeatable=True,
    ),
    "delete_fence": said(calls.delete_fence("a", "b/c d"), "DELETE /v0/topics/a/fences/b/c d", repeatable=False),
    "seal": said(calls.seal("a"), "POST /v0/topics/a/seal", repeatable=True),
    "evidence": said(evidence_calls.evidence("a"), "GET /v0/topics/a/evidence", repeatable=True),
    "inclusion": said(
        evidence_calls.inclusion("a", 7, size=9),
        "GET /v0/topics/a/evidence/inclusion",
        [("seq", "7"), ("size", "9")],
        repeatable=True,
    ),
    "consistency": said(
        evidence_calls.consistency("a", 7), "GET /v0/topics/a/evidence/consistency", [("from", "7")], repeatable=True
    ),
    "evidence_key": said(evidence_calls.evidence_key(), "GET /v0/evidence/key", repeatable=True),
    "delete_stage": said(calls.delete_stage("a", "s:1"), "DELETE /v0/topics/a/stages/s:1", repeatable=False),
    "create_watch": said(
        calls.create_watch(WATCHED),
        "POST /v0/watch",
        body={
            "topics": WATCHED,
            "include_data": True,
            "include_meta": True,
            "include_tags": True,
            "consistency": "eventual",
        },
        repeatable=True,
    ),
    "create_watch, everything": said(
        calls.create_watch(
            WATCHED,
            lenient=True,
            node="n",
            limit=3,
            max_batch_bytes=4,
            heartbeat_ms=5000,
            include_data=False,
            include_meta=False,
            include_tags=False,
            consistency="strong",
            touch=False,
        ),
        "POST /v0/watch",
        [("lenient", "true")],
        body={
            "topics": WATCHED,
            "node": ["n"],
            "limit": 3,
            "max_batch_bytes": 4,
            "heartbeat_ms": 5000,
            "include_data": False,
            "include_meta": False,
            "include_tags": False,
            "consistency": "strong",
            "touch": False,
        },
        repeatable=True,
    ),
    "open_watch": said(calls.open_watch("/v0/watch/wid_x"), "GET /v0/watch/wid_x", repeatable=True),
    "open_watch, resumed": said(calls.open_watch("/v0/watch/wid_x", "YQ"), "GET /v0/watch/wid_x", repeatable=True),
}
