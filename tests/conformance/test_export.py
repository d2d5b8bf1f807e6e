"""Section 10 and pipeline 1: an export is everything of a range, in order, and says so at its end."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.bulk_client import (
    ARROW_TYPE,
    LINES_TYPE,
    Exported,
    export,
    export_arrow,
    export_path,
    exported,
    exported_arrow,
    forget_peak,
    lines_of,
    peak_of,
    pid_of,
    upload,
)
from tests.conformance.client import (
    JSON_TYPE,
    Client,
    RawConnection,
    body_of,
    error_of,
    fresh_name,
    invalid,
    running,
    seqs_of,
    until,
)
from tests.conformance.keys import callers_of
from tests.conformance.test_hostile_values import TEXTS

MIB = 1 << 20


# --- what is in it ---------------------------------------------------------------------------------------------------


def test_every_record_comes_as_a_diff_shows_it_and_then_the_end(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    records = [{"data": 1}, {"data": {"a": [None]}, "tag": "t", "node": "n", "meta": {"k": "v"}}, {"data": "x"}]
    client.append(topic, records=records)
    found = export(client, topic)
    assert found.records == client.read(topic, include_tags=True)["records"]
    state = client.state(topic)
    assert found.end == {"next_from_seq": 3, "head_seq": 3, "earliest_seq": 1, "epoch": state["epoch"]}
    without = export(client, topic, include_tags="false", include_meta="0")
    assert [set(record) for record in without.records] == [
        {"$seq", "$ts", "data"}, {"$seq", "$ts", "$node", "data"}, {"$seq", "$ts", "data"},
    ]  # fmt: skip


def test_data_comes_byte_for_byte_and_a_record_is_one_line(client: Client, topic: str) -> None:
    for data in (b'{ "a" :\n1.0e5 ,\r"b":"},{\\"$seq\\":1"}', b'[{"$seq":1},{"$seq":2}]', b'"\xc3\xa9\\u2028"'):
        body_of(client.append_raw(topic, data), 200, 201)
    lines = client.get(export_path(topic)).content.split(b"\n")
    assert [line.partition(b'"data":')[2] for line in lines[:3]] == [
        b'{ "a" : 1.0e5 , "b":"},{\\"$seq\\":1"}}', b'[{"$seq":1},{"$seq":2}]}', b'"\xc3\xa9\\u2028"}',
    ]  # fmt: skip
    assert len(lines) == 5


def test_an_empty_topic_has_an_end_alone_and_a_missing_one_is_404(client: Client, topic: str) -> None:
    error_of(client.get(export_path(topic)), 404, "topic_not_found")
    client.put_topic(topic)
    found = export(client, topic)
    assert (found.order, found.end["next_from_seq"], found.end["earliest_seq"]) == (["e"], 0, 1)


def test_a_range_begins_after_its_first_seq_and_ends_with_its_last(client: Client, topic: str) -> None:
    client.append(topic, *range(10))
    for first, last in itertools.product((0, 1, 5, 9, 10), (None, 0, 1, 5, 9, 10, 99)):
        found = export(client, topic, from_seq=first, **({} if last is None else {"to_seq": last}))
        end = min(10 if last is None else last, 10)
        assert found.seqs == list(range(first + 1, end + 1)), (first, last)
        assert (found.end["next_from_seq"], found.gaps) == (max(first, end), [])


def test_ranges_that_follow_each_other_are_the_whole(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=3000)
    for start in range(0, 5000, 1000):
        client.append(topic, *range(start, start + 1000), return_seqs=False)
    client.delete_records(topic, before_seq=2500)
    whole = export(client, topic)
    parts = [export(client, topic, from_seq=at, to_seq=at + 700) for at in range(0, 5000, 700)]
    assert [record for part in parts for record in part.records] == whole.records
    assert whole.seqs == list(range(2500, 5001))
    missing = [seq for part in parts for a, b, _ in part.gaps for seq in range(a, b + 1)]
    assert missing == list(range(1, len(missing) + 1)), "no seq is announced twice"
    assert whole.gaps[0][1] >= len(missing) >= 2000, "what the cap took, perhaps with what was deleted after it"


def test_times_bound_a_range_at_both_ends_inclusively(client: Client, topic: str) -> None:
    for _ in range(4):
        client.append(topic, 1, 2)
        time.sleep(0.003)
    records = client.read(topic)["records"]
    times = sorted({record["$ts"] for record in records})
    for first, last in itertools.combinations_with_replacement([0, *times, times[-1] + 1, 2**62], 2):
        expected = [record["$seq"] for record in records if first <= record["$ts"] <= last]
        found = export(client, topic, from_ts=first, to_ts=last)
        assert found.seqs == expected, (first, last)
        assert found.gaps == []
        for from_seq, to_seq in ((3, 6), (0, 2), (7, 8)):
            both = export(client, topic, from_ts=first, to_ts=last, from_seq=from_seq, to_seq=to_seq)
            assert both.seqs == [seq for seq in expected if from_seq < seq <= to_seq]


def test_only_matching_tags_and_no_hidden_nodes(client: Client, topic: str) -> None:
    tags = ["a", "ab", None, "b", 'a"', "a*", "é", "éa", "a"]
    nodes = ["n", None, "m"]
    combinations = list(itertools.product(tags, nodes))
    client.append(
        topic,
        records=[
            {"data": i} | ({} if tag is None else {"tag": tag}) | ({} if node is None else {"node": node})
            for i, (tag, node) in enumerate(combinations)
        ],
    )
    for match in ("a", "a*", "*", "é*", 'a"', 'a"*', "none", "none*", "a**", None):
        for hidden in ([], ["n"], ["n", "m"]):
            expected = [
                i
                for i, (tag, node) in enumerate(combinations)
                if node not in hidden
                and (
                    match is None
                    or (tag is not None and (tag.startswith(match[:-1]) if match.endswith("*") else tag == match))
                )
            ]
            query: dict[str, Any] = {"node": hidden} | ({} if match is None else {"match": match})
            found = export(client, topic, **query)
            assert found.data == expected, (match, hidden)
            assert found.end["next_from_seq"] == len(combinations)
    client.put_topic(topic, dedupe_node=False)
    assert len(export(client, topic, node="n").records) == len(combinations)


def test_gaps_are_announced_where_they_are_and_deletions_are_not(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=6)
    client.append(topic, *range(10))
    client.delete_records(topic, before_seq=7)
    found = export(client, topic)
    read = client.read(topic)
    assert found.tombstones == [read["tombstone"]]
    assert (found.order, found.seqs) == (["t", *"rrrr", "e"], [7, 8, 9, 10])
    assert export(client, topic, from_seq=5).gaps == []


def test_another_instance_is_announced_and_given_whole(client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    old = client.state(topic)["epoch"]
    assert export(client, topic, epoch=old, from_seq=2).seqs == [3]
    client.delete_topic(topic)
    client.append(topic, *range(20))
    for query in ({"epoch": old, "from_seq": 2}, {"from_seq": 21}, {"epoch": old}):
        found = export(client, topic, **query)
        assert (found.gaps, found.seqs) == ([(1, 20, "recreated")], list(range(1, 21)))
        assert found.end["epoch"] != old
    assert export(client, topic, epoch=old, to_seq=5).seqs == [1, 2, 3, 4, 5]


def test_what_is_appended_meanwhile_is_not_in_it(client: Client, topic: str) -> None:
    content = lines_of({"data": "x" * 1000} for _ in range(20_000))
    body_of(upload(client, topic, content), 201)
    found = Exported()
    with client.stream("GET", export_path(topic)) as response:
        for line in response.iter_lines():
            if not found.order:
                client.append(topic, "late")
            found.add(line.encode())
    assert found.seqs == list(range(1, 20_001))
    assert (found.end["next_from_seq"], found.end["head_seq"]) == (20_000, 20_001)
    assert export(client, topic, from_seq=20_000).data == ["late"]


def test_what_was_due_through_a_router_is_in_it(client: Client, topic: str) -> None:
    copy = f"{topic}-copy"
    body_of(client.put(f"/v0/routers/{topic}>copy", json={"source": topic, "dest": copy}), 201)
    for count in range(1, 6):
        client.append(topic, count)
        assert export(client, copy).data == list(range(1, count + 1))


@pytest.mark.parametrize("stored", ["in the log", "in segments"])
def test_what_is_on_disk_comes_as_it_was(tmp_path: Path, stored: str) -> None:
    records = [
        {"data": f"{i:06}"} | ({"tag": f"t{i % 7}"} if i % 3 else {}) | ({"meta": {"i": str(i)}} if i % 5 else {})
        for i in range(8_000)
    ]
    with running(tmp_path, cache_bytes="1MiB") as client:
        body_of(upload(client, "t", lines_of(records)), 201)
        before = export(client, "t")
        if stored == "in segments":
            body_of(client.post("/v0/admin/checkpoint"))
        client = client.daemon.restart(signal.SIGTERM)
        after = export(client, "t")
        assert after.records == before.records
        assert after.data == [record["data"] for record in records]
        assert export(client, "t", match="t1").data == [r["data"] for r in records if r.get("tag") == "t1"]
        middle = after.records[5_432]["$ts"]
        assert export_arrow(client, "t") == after
        late = export(client, "t", from_ts=middle)
        assert late.seqs == [record["$seq"] for record in after.records if record["$ts"] >= middle]


def test_text_comes_back_as_it_was_written(client: Client, topic: str) -> None:
    records = [{"data": {t: t}, "tag": t, "node": t, "meta": {t: t}} for t in TEXTS]
    client.append(topic, records=records)
    assert export_arrow(client, topic) == export(client, topic)
    found = export(client, topic).records
    assert [(r["data"], r["$tag"], r["$node"], r["meta"]) for r in found] == [({t: t}, t, t, {t: t}) for t in TEXTS]
    for seq, text in enumerate(TEXTS, 1):
        if not text.endswith("*"):
            assert export(client, topic, match=text).seqs == [seq]
        assert seq not in export(client, topic, node=text).seqs


# --- what is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("from_seq", "x"), ("from_seq", "-1"), ("to_seq", "1.5"), ("to_seq", ""), ("from_ts", "now"), ("to_ts", "-1"),
        ("epoch", "e"), ("epoch", str(2**64)), ("match", ""), ("node", ""), ("node", "n" * 129), ("include_tags", "2"),
        ("include_meta", "yes"), ("include_data", "no"),
    ],
)  # fmt: skip
def test_a_bad_parameter_is_400_and_named(client: Client, topic: str, field: str, value: str) -> None:
    client.append(topic, 1)
    invalid(client.get(export_path(topic), params={field: value}), field)


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        (None, 200), ("*/*", 200), (LINES_TYPE, 200), ("application/*", 200), ("text/html, */*;q=0.1", 200),
        (f"{ARROW_TYPE}, {LINES_TYPE}", 200), (f"{ARROW_TYPE};q=0.5, {LINES_TYPE}", 200), ("application/json", 406),
        ("text/event-stream", 406), (f"{LINES_TYPE};q=0, {ARROW_TYPE};q=0, */*", 406),
    ],
)  # fmt: skip
def test_accept_decides_whether_there_is_a_format(client: Client, topic: str, accept: str | None, status: int) -> None:
    client.append(topic, 1)
    request = client.build_request("GET", export_path(topic))
    del request.headers["accept"]
    if accept is not None:
        request.headers["accept"] = accept
    answer = client.send(request)
    if status == 200:
        assert exported(answer).data == [1]
    else:
        error_of(answer, 406, "not_acceptable")


@pytest.mark.parametrize("accept", [ARROW_TYPE, f"{ARROW_TYPE}, {LINES_TYPE};q=0.5", f"{LINES_TYPE};q=0, */*"])
def test_an_arrow_stream_is_for_who_would_rather_have_it(client: Client, topic: str, accept: str) -> None:
    client.append(topic, 1)
    assert exported_arrow(client.get(export_path(topic), headers={"accept": accept})) == export(client, topic)


def test_an_arrow_stream_holds_what_the_lines_hold(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, cap_records=4000)
    for start in range(0, 6000, 1000):
        records = [
            {"data": {"i": i, "x": ["}", None]}}
            | ({"tag": f"t{i % 7}"} if i % 3 else {})
            | ({"node": f"n{i % 4}"} if i % 2 else {})
            | ({"meta": {"i": str(i), "é": '"'}} if i % 5 == 0 else {})
            for i in range(start, start + 1000)
        ]
        client.append(topic, records=records, return_seqs=False)
    old = client.state(topic)["epoch"]
    client.delete_records(topic, match=["tag", "Eq", "t4"])
    queries: list[dict[str, Any]] = [
        {}, {"from_seq": 2500, "to_seq": 2600}, {"match": "t1"}, {"match": "t*", "node": ["n1", "n3"]},
        {"include_tags": 0}, {"include_meta": 0}, {"include_data": 0}, {"epoch": old + 1}, {"match": "none"},
    ]  # fmt: skip
    for query in queries:
        assert export_arrow(client, topic, **query) == export(client, topic, **query), query
    without = export(client, topic, include_data=False, include_meta=0, include_tags=0)
    assert {name for record in without.records for name in record} == {"$seq", "$ts", "$node"}


def test_what_exports_go_through_and_send_is_counted(client: Client, topic: str) -> None:
    def counted(name: str) -> float:
        metrics = client.get("/v0/metrics", headers={"accept": JSON_TYPE}).json()
        samples = metrics[f"topics_{name}_total"]
        return float(sum(sample["value"] for sample in samples if sample["labels"]["format"] == "arrow"))

    client.append(topic, *("x" * 1000 for _ in range(100)), return_seqs=False)
    names = ("exports", "export_seqs", "export_records", "export_bytes")
    seen = []
    for query in ({"from_seq": 20, "to_seq": 70}, {"from_seq": 20, "to_seq": 70, "include_data": 0}):
        before = [counted(name) for name in names]
        export_arrow(client, topic, **query)
        seen.append([counted(name) - was for name, was in zip(names, before, strict=True)])
    assert seen[0][:3] == seen[1][:3] == [1, 50, 50]
    assert seen[0][3] > 50_000
    assert seen[1][3] < 10_000, "no data was sent"


def test_it_takes_the_scope_read_and_a_name_that_the_key_covers(tmp_path: Path) -> None:
    with running(tmp_path, api_keys="boss,reader:r:in-,writer:w") as client, callers_of(client) as callers:
        for topic in ("in-topic", "out-topic"):
            callers["boss"].append(topic, 1)
        assert export(callers["reader"], "in-topic").data == [1]
        error_of(callers["reader"].get(export_path("out-topic")), 403, "forbidden")
        error_of(callers["writer"].get(export_path("in-topic")), 403, "forbidden")
        error_of(callers[None].get(export_path("in-topic")), 401, "unauthorized")
        error_of(callers[None].get(export_path("in-topic") + "?token=reader"), 401, "unauthorized")


def test_over_http2_it_is_the_same(client: Client, topic: str) -> None:
    body_of(upload(client, topic, lines_of({"data": "x" * 500} for _ in range(5000))), 201)
    with Client(client.daemon, http2=True) as other:
        assert export(other, topic).records == export(client, topic).records


# --- the end of it ---------------------------------------------------------------------------------------------------


def fill(client: Client, topic: str, mebibytes: int, **config: Any) -> int:
    """Records of 100 kB, more than sockets hold; how many."""
    client.put_topic(topic, **config)
    count = mebibytes * 10
    line = b'{"data":"' + b"x" * (MIB // 10) + b'"}\n'
    body_of(upload(client, topic, (line * 10 for _ in range(count // 10))), 200)
    return count


def add_all(found: Exported, lines: Iterator[str]) -> None:
    for line in lines:
        found.add(line.encode())


def cut_off(client: Client, topic: str, cut: Any) -> Exported:
    """Begin an export, do `cut` to it, and read what still comes."""
    found = Exported()
    with client.stream("GET", export_path(topic)) as response:
        lines = response.iter_lines()
        found.add(next(lines).encode())
        cut()
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            add_all(found, lines)
    assert found.end is None
    return found


def test_one_whose_topic_is_deleted_is_cut_off(client: Client, topic: str) -> None:
    fill(client, topic, 30)
    found = cut_off(client, topic, lambda: client.delete_topic(topic))
    assert found.seqs == list(range(1, len(found.seqs) + 1))
    error_of(client.get(export_path(topic)), 404, "topic_not_found")


def test_one_that_is_cut_off_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        count = fill(client, "t", 30)
        daemon = client.daemon
        for how in (signal.SIGTERM, signal.SIGKILL):
            seen = cut_off(client, "t", lambda how=how: daemon.send_signal(how)).seqs
            daemon.wait()
            client = daemon.start()
            assert seen + export(client, "t", from_seq=seen[-1]).seqs == list(range(1, count + 1))


def test_one_whose_key_is_withdrawn_is_cut_off(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("boss\nreader:r\n")
    keys.chmod(0o600)
    with running(tmp_path, api_keys_file=keys) as client, callers_of(client) as callers:
        fill(callers["boss"], "t", 30)

        def withdraw() -> None:
            keys.write_text("boss\n")
            client.daemon.send_signal(signal.SIGHUP)
            until(lambda: callers["reader"].get("/v0/topics").status_code == 401)

        cut_off(callers["reader"], "t", withdraw)
        assert export(callers["boss"], "t").end["head_seq"] == 300


def test_it_counts_as_a_request_of_its_key_until_it_ends(tmp_path: Path) -> None:
    with running(tmp_path, api_keys="boss", max_inflight_per_key=1) as client, callers_of(client) as callers:
        fill(callers["boss"], "t", 30)
        with RawConnection(client) as connection:
            connection.send_head("GET", export_path("t"), authorization="Bearer boss")
            assert connection.socket.recv(1000).startswith(b"HTTP/1.1 200")
            error = error_of(callers["boss"].get("/v0/topics/t"), 429, "throttled")
            assert error["detail"]["limit"] == "max_inflight_per_key"
        until(lambda: callers["boss"].get("/v0/topics/t").status_code == 200)


def test_who_leaves_in_the_middle_holds_up_nobody(client: Client, topic: str) -> None:
    count = fill(client, topic, 10)
    for _ in range(20):
        with RawConnection(client) as connection:
            connection.send_head("GET", export_path(topic))
            assert connection.socket.recv(1000).startswith(b"HTTP/1.1 200")
    assert len(export(client, topic).records) == count


def test_who_does_not_read_holds_up_nobody_and_a_stop_takes_no_longer_than_it_may(tmp_path: Path) -> None:
    with running(tmp_path, drain_ms=1000) as client:
        count = fill(client, "t", 30)
        stalled = [RawConnection(client) for _ in range(10)]
        for connection in stalled:
            connection.send_head("GET", export_path("t"))
            assert connection.socket.recv(1000).startswith(b"HTTP/1.1 200")
        assert len(export(client, "t").records) == count
        client.append("other", 1)
        assert seqs_of(client.read("other")) == [1]
        assert client.daemon.end() == 0
        for connection in stalled:
            connection.socket.close()
        client.daemon.start()


def test_memory_does_not_depend_on_the_range(tmp_path: Path) -> None:
    with running(tmp_path, cache_bytes="8MiB") as client:
        fill(client, "t", 200, durability="memory")
        pid = pid_of(client)
        for accept in (LINES_TYPE, ARROW_TYPE):
            client.get(export_path("t"), params={"to_seq": 100}, headers={"accept": accept})
            before = forget_peak(pid)
            received = 0
            with RawConnection(client) as connection:
                connection.send_head("GET", export_path("t"), accept=accept)
                tail = b""
                while not tail.endswith(b"\r\n0\r\n\r\n"):
                    piece = connection.socket.recv(256 << 10)
                    assert piece
                    received += len(piece)
                    tail = (tail + piece)[-20:]
            assert received > 200 * MIB
            assert peak_of(pid) - before < 40, "MiB; what is read from disk at a time is 1000 records or some MiB"


def test_lists_and_appends_go_on_beside_many_exports(client: Client) -> None:
    topic = fresh_name()
    body_of(upload(client, topic, lines_of({"data": "x" * 100} for _ in range(30_000))), 201)
    exports = [RawConnection(client) for _ in range(4)]
    for connection in exports:
        connection.send_head("GET", export_path(topic))
    for i in range(20):
        assert client.append("beside", i)["count"] == 1
    for connection in exports:
        with connection:
            status, _, body = connection.receive()
            assert (status, body.count(b"\n")) == (200, 30_001)
