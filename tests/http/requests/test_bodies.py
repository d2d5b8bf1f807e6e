"""Every limit, type, range and encoding of request bodies, without a server."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from tests.http.conftest import SMALL
from topics.config import Settings
from topics.errors import ApiError
from topics.http.requests import append_requests, json_checks, query_strings, read_requests, topic_requests
from topics.model import AppendRequest, CheckedAppend, ReadRequest

WIDE = Settings(wal_shards=1)


def append(body: Any, settings: Settings = SMALL, key: str | None = None) -> CheckedAppend:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return append_requests.decode_append(raw, settings, key)


def record(**fields: Any) -> dict[str, Any]:
    return {"records": [{"data": 1, **fields}]}


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def refused(call: Any, *arguments: Any, code: str = "invalid_request", **keywords: Any) -> str:
    """The field that the refusal names."""
    with pytest.raises(ApiError) as caught:
        call(*arguments, **keywords)
    assert caught.value.code == code
    return str(caught.value.detail.get("field"))


# --- append ----------------------------------------------------------------------------------------------------------


def test_an_append_with_everything_comes_through() -> None:
    request = append(
        b'{"records":[{"data":{"a": 1},"tag":"t","node":"n","meta":{"k":"v"}},{"data":null}],'
        b'"node":"d","idempotency_key":"i","create":true,"disable_backpressure":true,"config":{"ttl_ms":5}}'
    )
    assert isinstance(request, AppendRequest)
    assert request.datas == [b'{"a": 1}', b"null"]
    assert request.metas == [b'{"k":"v"}', b""]
    assert [(r.tag, r.node, r.meta) for r in request.records] == [("t", "n", {"k": "v"}), (None, None, None)]
    assert (request.node, request.idempotency_key, request.create) == ("d", "i", True)
    assert request.disable_backpressure
    assert request.config is not None
    assert request.config.ttl_ms == 5


@pytest.mark.parametrize(
    "data",
    [
        b"null", b"0", b"-0.0", b"1e400", b"123456789012345678901234567890", b'""', b'"\\u0000"', b'"\\ud83d\\ude00"',
        '"\u00e9\u2028\U0001f600"'.encode(), b'{"a":1,"a":2}', b"[ 1 ,\t2 ]", b'{"$seq":1}',
    ],
)  # fmt: skip
def test_data_is_kept_byte_for_byte(data: bytes) -> None:
    request = append(b'{"records":[ {"data" : ' + data + b" } ]}")
    assert request.datas == [data]
    assert bytes(request.records[0].data) == data


def test_line_ends_between_tokens_become_spaces() -> None:
    request = append(b'{"records":[\r\n{"data":{"a":\r\n1,\n"b":"\\n"}}\n]}\n')
    assert request.datas == [b'{"a":  1, "b":"\\n"}']
    assert bytes(request.records[0].data) == request.datas[0]


@pytest.mark.parametrize("name", ["tag", "node", "meta"])
def test_null_is_absent_in_a_record(name: str) -> None:
    assert getattr(append(record(**{name: None})).records[0], name) is None


@pytest.mark.parametrize("name", ["node", "idempotency_key", "config"])
def test_null_is_absent_in_an_append(name: str) -> None:
    assert getattr(append({**record(), name: None}), name) is None


@pytest.mark.parametrize("name", ["records", "create", "disable_backpressure"])
def test_null_is_refused_where_it_means_nothing(name: str) -> None:
    assert refused(append, {**record(), name: None}) == name


def test_unknown_keys_are_ignored_in_an_append() -> None:
    assert append({**record(colour="red"), "shape": ["round"]}).datas == [b"1"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b'{"records":[{"data":1}]} x', "body"),
        (b'{"records":[{"data":1,}]}', "body"),
        (b'{"records":[{"data":NaN}]}', "body"),
        (b'{"records":[{"data":01}]}', "body"),
        (b'{"records":[{"data":"a\nb"}]}', "body"),
        (b'{"records":[{"data":"\x01"}]}', "body"),
        (b'{"records":[{"data":"\xff"}]}', "body"),
        (b'{"records":[{"data":"\xed\xa0\x80"}]}', "body"),
        (b'{"records":[{"data":"\\ud800"}]}', "body"),
        (b'{"records":[{"data":"\\ud800x"}]}', "body"),
        (b'{"records":[{"data":1,"tag":"\\ud800"}]}', "body"),
        (b'{"records":[{"data":1,"meta":{"k":"\\udc00"}}]}', "body"),
        (b'\xef\xbb\xbf{"records":[{"data":1}]}', "body"),
        ('{"records":[{"data":1}]}'.encode("utf-16"), "body"),
        (b"[]", "body"),
        (b"null", "body"),
        (b"{}", "records"),
        (b'{"records":[]}', "records"),
        (b'{"records":{}}', "records"),
        (b'{"records":[1]}', "records[0]"),
        (b'{"records":[{"data":1},{}]}', "records[1].data"),
        (b'{"records":[{"data":1,"tag":1}]}', "records[0].tag"),
        (b'{"records":[{"data":1,"node":["n"]}]}', "records[0].node"),
        (b'{"records":[{"data":1,"meta":[]}]}', "records[0].meta"),
        (b'{"records":[{"data":1,"meta":{"k":1}}]}', "records[0].meta"),
        (b'{"records":[{"data":1,"meta":{"k":null}}]}', "records[0].meta"),
        (b'{"records":[{"data":1}],"node":1}', "node"),
        (b'{"records":[{"data":1}],"create":1}', "create"),
        (b'{"records":[{"data":1}],"create":"true"}', "create"),
        (b'{"records":[{"data":1}],"disable_backpressure":0}', "disable_backpressure"),
        (b'{"records":[{"data":1}],"idempotency_key":1}', "idempotency_key"),
        (b'{"records":[{"data":1}],"config":[]}', "config"),
        (b'{"records":[{"data":1}],"config":{"colour":1}}', "config.colour"),
        (b'{"records":[{"data":1}],"config":{"ttl_ms":true}}', "config.ttl_ms"),
        (b'{"records":[{"data":1}],"config":{"ttl_ms":1.0}}', "config.ttl_ms"),
        (b'{"records":[{"data":1}],"config":{"ttl_ms":"1"}}', "config.ttl_ms"),
        (b'{"records":[{"data":1}],"config":{"type":"heap"}}', "config.type"),
    ],
)
def test_a_bad_append_names_its_field(body: bytes, field: str) -> None:
    assert refused(append, body) == field


@pytest.mark.parametrize("body", [b'{"records":[{"data":"\\ud800"}]}', b'{"records":[{"data":1,"tag":"\\uD8Ffx"}]}'])
def test_half_a_surrogate_pair_is_said_to_be_one(body: bytes) -> None:
    with pytest.raises(ApiError, match="surrogate"):
        append(body)


def test_a_batch_may_be_as_large_as_the_limit_and_no_larger() -> None:
    assert len(append({"records": [{"data": 1}] * 100}).records) == 100
    assert refused(append, {"records": [{"data": 1}] * 101}, code="batch_too_large") == "records"


def test_data_may_be_as_large_as_the_limit_and_no_larger() -> None:
    fits = b'"' + b"x" * (SMALL.max_record_bytes - 2) + b'"'
    assert append(b'{"records":[{"data":' + fits + b"}]}").datas == [fits]
    larger = b'{"records":[{"data":0},{"data":' + fits[:-1] + b'x"}]}'
    assert refused(append, larger, code="record_too_large") == "records[1]"


def test_data_and_meta_count_together() -> None:
    meta = {"k": "v" * 100}
    data = "x" * (SMALL.max_record_bytes - 2 - len(msgspec.json.encode(meta)))
    assert append({"records": [{"data": data, "meta": meta}]}).records
    refused(append, {"records": [{"data": data + "x", "meta": meta}]}, code="record_too_large")


def test_meta_may_be_as_large_as_the_limit_and_no_larger() -> None:
    fits = {"k": "v" * (SMALL.max_meta_bytes - len('{"k":""}'))}
    metas = append(record(meta=fits)).metas
    assert metas is not None
    assert len(metas[0]) == SMALL.max_meta_bytes
    assert refused(append, record(meta={"k": fits["k"] + "v"})) == "records[0].meta"


def test_meta_has_at_most_64_keys() -> None:
    assert append(record(meta={str(i): "" for i in range(64)}))
    assert refused(append, record(meta={str(i): "" for i in range(65)})) == "records[0].meta"


@pytest.mark.parametrize("key", [b"_topics", b"_topics.x", b"\\u005ftopics", b"_\\u0074opics_x"])
def test_reserved_meta_keys_are_refused_however_they_are_written(key: bytes) -> None:
    assert refused(append, b'{"records":[{"data":1,"meta":{"' + key + b'":"v"}}]}') == "records[0].meta"


def test_meta_keys_that_only_contain_the_reserved_prefix_are_fine() -> None:
    assert append(record(meta={"x_topics": "_topics"})).metas == [b'{"x_topics":"_topics"}']


def test_an_empty_meta_is_none() -> None:
    assert append(record(meta={})).metas is None


@pytest.mark.parametrize(("name", "limit"), [("tag", SMALL.max_tag_bytes), ("node", SMALL.max_node_bytes)])
def test_names_of_records_are_limited_in_bytes(name: str, limit: int) -> None:
    for fits in ("x" * limit, "\u00e9" * (limit // 2), "x"):
        assert getattr(append(record(**{name: fits})).records[0], name) == fits
    for bad in ("x" * (limit + 1), "\u00e9" * (limit // 2) + "x", ""):
        assert refused(append, record(**{name: bad})) == f"records[0].{name}"


@pytest.mark.parametrize("name", ["t\\u0061g", "n\\u006fde", "met\\u0061"])
def test_names_are_checked_however_their_keys_are_written(name: str) -> None:
    value = '{"_topics":""}' if name.startswith("met") else '""'
    refused(append, b'{"records":[{"data":1,"%b":%b}]}' % (name.encode(), value.encode()))


def test_the_node_of_an_append_is_limited_too() -> None:
    assert refused(append, {**record(), "node": "x" * 129}) == "node"
    assert refused(append, {**record(), "node": ""}) == "node"


def test_the_idempotency_key_of_the_body_wins_over_the_header() -> None:
    assert append({**record(), "idempotency_key": "b"}, key="h").idempotency_key == "b"
    assert append(record(), key="h").idempotency_key == "h"
    assert append({**record(), "idempotency_key": None}, key="h").idempotency_key == "h"
    assert append({**record(), "idempotency_key": "b"}, key="h" * 257).idempotency_key == "b"


def test_idempotency_keys_have_1_to_256_characters() -> None:
    assert append(record(), key="\u00e9" * 256).idempotency_key == "\u00e9" * 256
    for bad in ("", "k" * 257):
        assert refused(append, {**record(), "idempotency_key": bad}) == "idempotency_key"
        assert refused(append, record(), key=bad) == "Idempotency-Key"


@pytest.mark.parametrize("opener", [b"[", b'{"a":'])
def test_data_nests_512_levels_and_no_more(opener: bytes) -> None:
    closer = b"]" if opener == b"[" else b"}"

    def body(depth: int) -> bytes:
        return b'{"records":[{"data":' + opener * depth + b"0" + closer * depth + b"}]}"

    assert append(body(512)).datas
    assert refused(append, body(513)) == "records[0].data"


@pytest.mark.parametrize("depth", [2_000, 200_000])
def test_absurd_nesting_is_refused_wherever_it_is(depth: int) -> None:
    assert refused(append, b'{"records":[{"data":' + nested(depth) + b"}]}") == "body"
    assert refused(append, b'{"x":' + nested(depth) + b',"records":[{"data":1}]}') == "body"


def test_deep_nesting_under_an_unknown_key_is_refused() -> None:
    assert refused(append, b'{"x":' + nested(600) + b',"records":[{"data":1}]}') == "body"


def test_brackets_in_strings_and_side_by_side_are_not_depth() -> None:
    data = json.dumps(["[" * 5000, [[]] * 2000, '\\"{' * 600, {"{": "\\"}]).encode()
    assert append(b'{"records":[{"data":' + data + b"}]}").datas == [data]


@pytest.mark.parametrize(
    ("text", "depth"), [(b"1", 0), (b"[]", 1), (b'{"a":[{}],"b":[]}', 3), (b'"[["', 0), (b'["\\"[",[]]', 2)]
)
def test_depth(text: bytes, depth: int) -> None:
    assert json_checks.depth_of(text) == depth


def test_an_inline_config_is_checked_by_the_rules_of_topics() -> None:
    config = append({**record(), "config": {"idempotency_window_ms": 8 * 86_400_000}}).config
    assert config is not None
    assert refused(append_requests.check_inline_config, "jobs", config) == "config.idempotency_window_ms"
    config = append({**record(), "config": {"dead_letter": "jobs"}}).config
    assert config is not None
    assert refused(append_requests.check_inline_config, "jobs", config) == "config.dead_letter"
    append_requests.check_inline_config("other", config)


# --- diff ------------------------------------------------------------------------------------------------------------


def read(body: Any) -> ReadRequest:
    request = read_requests.decode_read(body if isinstance(body, bytes) else json.dumps(body).encode(), WIDE)
    assert isinstance(request, ReadRequest)
    return request


def test_a_read_without_a_body_has_the_defaults() -> None:
    for request in (read(b""), read({}), read_requests.decode_read_query(b"", WIDE)):
        assert request == ReadRequest()


@pytest.mark.parametrize(
    ("field", "given", "taken"),
    [
        ("limit", 0, 256), ("limit", 1, 1), ("limit", 1000, 1000), ("limit", 1001, 1000), ("limit", 2**64 - 1, 1000),
        ("wait_ms", 0, 0), ("wait_ms", 30_000, 30_000), ("wait_ms", 30_001, 30_000),
        ("max_batch_bytes", 0, 1 << 20), ("max_batch_bytes", 1, 1), ("max_batch_bytes", (8 << 20) + 1, 8 << 20),
        ("from_seq", 2**64 - 1, 2**64 - 1), ("epoch", 0, 0), ("epoch", 7, 7),
    ],
)  # fmt: skip
def test_figures_of_a_read_are_clamped(field: str, given: int, taken: int) -> None:
    assert getattr(read({field: given}), field) == taken
    assert getattr(read_requests.decode_read_query(f"{field}={given}".encode(), WIDE), field) == taken


def test_the_default_limit_gives_way_to_a_lower_maximum() -> None:
    assert read_requests.decode_read(b"", Settings(wal_shards=1, max_limit=10)).limit == 10


def test_nodes_of_a_read() -> None:
    assert read({"node": "a"}).nodes == {"a"}
    assert read({"node": ["a", "b", "a"]}).nodes == {"a", "b"}
    assert read({"node": None}).nodes == read({"node": []}).nodes == frozenset()
    assert read_requests.decode_read_query(b"node=a&node=%C3%A9+x", WIDE).nodes == {"a", "\u00e9 x"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"from_seq": -1}, "from_seq"), ({"from_seq": 2**64}, "from_seq"), ({"from_seq": "1"}, "from_seq"),
        ({"from_seq": 1.0}, "from_seq"), ({"from_seq": True}, "from_seq"), ({"from_seq": None}, "from_seq"),
        ({"epoch": -1}, "epoch"), ({"limit": -1}, "limit"), ({"limit": "x"}, "limit"), ({"wait_ms": -1}, "wait_ms"),
        ({"max_batch_bytes": -1}, "max_batch_bytes"), ({"include_tags": 1}, "include_tags"),
        ({"include_meta": None}, "include_meta"), ({"node": 1}, "node"), ({"node": [1]}, "node[0]"),
        ({"node": "x" * 129}, "node"), ({"node": ["a", ""]}, "node"), ([], "body"), (b"{", "body"),
        (b'{"x":' + nested(600) + b"}", "body"), (b'{"from_seq":1e400}', "from_seq"), (b'{"node":"\xff"}', "body"),
    ],
)  # fmt: skip
def test_a_bad_read_names_its_field(body: Any, field: str) -> None:
    assert refused(read, body) == field


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (b"from_seq=-1", "from_seq"), (b"from_seq=", "from_seq"), (b"from_seq=1.0", "from_seq"),
        (b"from_seq=0x1", "from_seq"), (b"from_seq=%D9%A1", "from_seq"), (b"from_seq=+1", "from_seq"),
        (b"from_seq=18446744073709551616", "from_seq"), (b"from_seq=" + b"9" * 5000, "from_seq"),
        (b"from_seq=1&from_seq=2", "from_seq"), (b"limit=x", "limit"), (b"wait_ms=-5", "wait_ms"),
        (b"include_tags=yes", "include_tags"), (b"include_tags=True", "include_tags"),
        (b"include_meta=", "include_meta"),
        (b"epoch=none", "epoch"), (b"node=", "node"), (b"node=%ff", "query"),
    ],
)  # fmt: skip
def test_a_bad_read_query_names_its_parameter(query: bytes, field: str) -> None:
    assert refused(read_requests.decode_read_query, query, WIDE) == field


@pytest.mark.parametrize(("text", "value"), [(b"1", True), (b"true", True), (b"0", False), (b"false", False)])
def test_booleans_in_queries(text: bytes, value: bool) -> None:
    assert read_requests.decode_read_query(b"include_tags=" + text, WIDE).include_tags is value
    assert query_strings.decode_if_empty(b"if_empty=" + text) is value
    assert query_strings.decode_look(b"touch=" + text) == (value, False)
    assert query_strings.decode_look(b"places=" + text) == (True, value)
    assert append_requests.decode_append_query(b"return_seqs=" + text).return_seqs is value


@pytest.mark.parametrize("query", [b"stage=", b"stage=-a", b"stage=a%20b", b"stage=a&stage=b", b"stage=%C3%A4"])
def test_a_stage_has_a_name_like_a_topic(query: bytes) -> None:
    assert append_requests.decode_append_query(b"stage=a:1&return_seqs=0") == (False, "a:1")
    assert append_requests.decode_ingest_query(b"stage=a:1", WIDE).stage == "a:1"
    assert refused(append_requests.decode_append_query, query) == "stage"
    assert refused(append_requests.decode_ingest_query, query, WIDE) == "stage"


# --- staging ---------------------------------------------------------------------------------------------------------


def test_a_commit_names_stages_in_their_order_and_a_key() -> None:
    body = topic_requests.decode_commit(b'{"stages":["b","a"],"idempotency_key":"k","other":[1]}')
    assert (body.stages, body.idempotency_key) == (["b", "a"], "k")
    most = [f"s{i}" for i in range(topic_requests.MAX_STAGES)]
    assert (
        topic_requests.decode_commit(json.dumps({"stages": most, "idempotency_key": "k" * 256}).encode()).stages == most
    )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (None, "stages"),
        ({}, "stages"),
        ({"stages": ["a"]}, "idempotency_key"),
        ({"idempotency_key": "k"}, "stages"),
        ({"stages": [], "idempotency_key": "k"}, "stages"),
        ({"stages": ["a", "a"], "idempotency_key": "k"}, "stages"),
        ({"stages": "a", "idempotency_key": "k"}, "stages"),
        ({"stages": ["a", "-"], "idempotency_key": "k"}, "stages[1]"),
        ({"stages": ["a", 1], "idempotency_key": "k"}, "stages[1]"),
        ({"stages": [f"s{i}" for i in range(topic_requests.MAX_STAGES + 1)], "idempotency_key": "k"}, "stages"),
        ({"stages": ["a"], "idempotency_key": ""}, "idempotency_key"),
        ({"stages": ["a"], "idempotency_key": None}, "idempotency_key"),
        ({"stages": ["a"], "idempotency_key": "k" * 257}, "idempotency_key"),
    ],
)
def test_a_commit_that_is_none_names_what_is_wrong(body: Any, field: str) -> None:
    assert refused(topic_requests.decode_commit, b"" if body is None else json.dumps(body).encode()) == field


# --- queries ---------------------------------------------------------------------------------------------------------


def test_unknown_parameters_are_ignored() -> None:
    assert read_requests.decode_read_query(b"colour=red&colour=blue&x", WIDE) == ReadRequest()


# --- control plane ---------------------------------------------------------------------------------------------------


def test_a_deletion_needs_a_condition() -> None:
    for body in (b"", b"{}", b'{"x":1}'):
        assert refused(topic_requests.decode_delete, body, WIDE) == "before_seq"


def test_deletions() -> None:
    assert topic_requests.decode_delete(b'{"before_seq":0}', WIDE) == topic_requests.DeleteSelection(0, None)
    both = topic_requests.decode_delete(b'{"before_seq":5,"match":["tag","Glob","a*"]}', WIDE)
    assert both.before_seq == 5
    assert both.match is not None
    assert (both.match.pattern, both.match.prefix) == ("a", True)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"before_seq": -1}, "before_seq"), ({"before_seq": 2**64}, "before_seq"), ({"before_seq": None}, "before_seq"),
        ({"before_seq": "1"}, "before_seq"), ({"before_seq": True}, "before_seq"), ({"match": None}, "match"),
        ({"match": {}}, "match"), ({"match": ["tag", "Like", "x"]}, "match"),
        ({"match": ["tag", "Glob", "x"]}, "match"),
        ({"match": ["node", "Eq", "x"]}, "match"), ({"match": 5, "before_seq": 1}, "match"), ([], "body"),
    ],
)  # fmt: skip
def test_a_bad_deletion_names_its_field(body: Any, field: str) -> None:
    assert refused(topic_requests.decode_delete, json.dumps(body).encode(), WIDE) == field


def test_a_config_patch_has_what_was_given() -> None:
    patch = topic_requests.decode_config_patch(b'{"priority":null,"ttl_ms":1}')
    assert patch.priority is None
    assert patch.ttl_ms == 1
    assert patch.discard is msgspec.UNSET
    assert topic_requests.decode_config_patch(b"") == topic_requests.decode_config_patch(b"{}")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"colour": 1}, "colour"), ({"ttl_ms": None}, "ttl_ms"), ({"ttl_ms": 1.5}, "ttl_ms"), ({"type": 1}, "type"),
        ({"type": "heap"}, "type"), ({"durable": 1}, "durable"), ({"dead_letter": 1}, "dead_letter"),
        ({"priority": "high"}, "priority"), ([], "body"), ("x", "body"),
    ],
)  # fmt: skip
def test_a_bad_config_names_its_field(body: Any, field: str) -> None:
    assert refused(topic_requests.decode_config_patch, json.dumps(body).encode()) == field


def test_lists_have_pages() -> None:
    assert topic_requests.decode_list_query(b"") == topic_requests.ListPage("", None, 100)
    assert topic_requests.decode_list_query(b"prefix=a.&page_size=7&touch=false") == topic_requests.ListPage(
        "a.", None, 7
    )
    assert topic_requests.decode_list_query(b"touch=1") == topic_requests.ListPage("", None, 100, touch=True)
    for given, taken in ((0, 1), (-5, 1), (1, 1), (1000, 1000), (1001, 1000)):
        assert topic_requests.decode_list_query(f"page_size={given}".encode()).page_size == taken


@pytest.mark.parametrize("name", ["a", "a.b:c-d_e", "Z" * 255])
def test_a_cursor_means_names_after_one(name: str) -> None:
    cursor = topic_requests.TOPIC_CURSORS.encode(name)
    assert cursor.replace("-", "").replace("_", "").isalnum()
    assert topic_requests.decode_list_query(b"cursor=" + cursor.encode()).after == name


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "!!!!",
        "abcd",
        "%ff",
        base64.urlsafe_b64encode(b"jobs").decode(),
        base64.urlsafe_b64encode(b"t:a/b").decode(),
        topic_requests.TOPIC_CURSORS.encode("jobs") + "x",
        topic_requests.TOPIC_CURSORS.encode("jobs")[:-1] + "~",
    ],
)
def test_a_corrupt_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(ApiError) as caught:
        topic_requests.decode_list_query(f"cursor={cursor}".encode())
    assert caught.value.status == 400


@pytest.mark.parametrize("query", [b"page_size=x", b"page_size=", b"touch=maybe", b"page_size=1&page_size=2"])
def test_a_bad_list_query_is_refused(query: bytes) -> None:
    refused(topic_requests.decode_list_query, query)
