"""`data` is read back byte for byte as it was written."""

from __future__ import annotations

import pytest

from tests.conformance.client import JSON_TYPE, Client, body_of, error_of, fresh_name, has_data

AS_WRITTEN = [
    b"null",
    b"true",
    b"false",
    b"0",
    b"-0",
    b"-0.0",
    b"1.0",
    b"1.10",
    b"1E5",
    b"1e+05",
    b"1E-400",
    b"1e999999",
    b"123456789012345678901234567890",
    b"-" + b"9" * 400,
    b"0." + b"1" * 400,
    b"18446744073709551616",
    b'""',
    b'"/\\/\\"\\\\\\b\\f\\n\\r\\t"',
    b'"\\u0000\\u001f\\u007f\\u00e9\\uD83D\\uDE00\\ud83d\\ude00"',
    '"é ü 漢字 😀 \u2028\u2029\u00a0\ufeff"'.encode(),
    b'"\x7f"',
    b'"  two  spaces\\tand a tab "',
    b"[]",
    b"{}",
    b"[ ]",
    b"{  }",
    b"[ 1 ,2,\t3\t, 4 ]",
    b'{ "b" :1 , "a": [ ] ,"":{ "x" :null}}',
    b'{"a":1,"a":2,"a":1}',
    b'{"$seq":1,"$ts":2,"data":3,"records":[]}',
    b'{"z":1,"y":2,"x":[{"w":0.10}]}',
    b'"[[[[{{{{"',
    b'"<script>&amp;</script>"',
    '{"ключ":"значение"}'.encode(),
]

REFUSED = [
    b"",
    b"01",
    b"-",
    b"+1",
    b".5",
    b"1.",
    b"1e",
    b"1e+",
    b"0x10",
    b"1_000",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"nul",
    b"True",
    b"undefined",
    b"'a'",
    b'"a',
    b'"\\x41"',
    b'"\\u12g4"',
    b'"\\u12"',
    b'"\n"',
    b'"\t"',
    b'"\x00"',
    b'"\xff"',
    b'"\xc0\xaf"',
    b'"\xed\xa0\x80"',
    b'"\xf5\x80\x80\x80"',
    b"[1,]",
    b"[,1]",
    b"[1 2]",
    b'{"a":1,}',
    b'{"a"}',
    b"{a:1}",
    b"{1:1}",
    b"[1}",
    b"[/* c */]",
    b"1 2",
    b"[\x0b1]",
    b"[\xc2\xa01]",
]


def written_and_read(client: Client, topic: str, data: bytes, expected: bytes) -> None:
    body_of(client.append_raw(topic, data), 200, 201)
    assert has_data(client.post(f"/v0/topics/{topic}/diff"), expected)


@pytest.mark.parametrize("data", AS_WRITTEN)
def test_a_value_is_read_as_it_was_written(client: Client, topic: str, data: bytes) -> None:
    written_and_read(client, topic, data, data)


def test_all_values_are_read_as_written_when_they_share_a_batch(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    body = b'{"records":[' + b",".join(b'{"tag":"t","data": %s ,"node":"n"}' % data for data in AS_WRITTEN) + b"]}"
    body_of(client.post(f"/v0/topics/{topic}", content=body, headers={"content-type": JSON_TYPE}))
    for seq, data in enumerate(AS_WRITTEN):
        assert has_data(client.get(f"/v0/topics/{topic}/diff?from_seq={seq}&limit=1"), data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a":1,\r\n"b":2}', b'{"a":1,  "b":2}'),
        (b"[\n1\r,\n\n2\r\n]", b"[ 1 ,  2  ]"),
        (b'{\n\t"a":\t"\\r\\n"\n}', b'{ \t"a":\t"\\r\\n" }'),
        (b'["a\\n",\n"b"]', b'["a\\n", "b"]'),
    ],
)
def test_line_breaks_between_tokens_become_spaces(client: Client, topic: str, data: bytes, expected: bytes) -> None:
    written_and_read(client, topic, data, expected)


@pytest.mark.parametrize("data", REFUSED)
def test_what_is_not_json_is_400_and_nothing_is_stored(client: Client, topic: str, data: bytes) -> None:
    client.put_topic(topic)
    error_of(client.append_raw(topic, data), 400, "invalid_request")
    assert client.state(topic)["head_seq"] == 0


@pytest.mark.parametrize("opened", [b"[", b'{"a":'])
def test_data_may_be_nested_up_to_the_limit(client: Client, topic: str, opened: bytes) -> None:
    # Three levels are those of the body itself, so that this holds however the depth is counted.
    closed = b"]" if opened == b"[" else b"}"
    data = opened * 509 + b"1" + closed * 509
    written_and_read(client, topic, data, data)


@pytest.mark.parametrize("depth", [513, 5000, 170_000])  # a little below 1 MiB, above which it is too large
@pytest.mark.parametrize("opened", [b"[", b'{"a":'])
def test_deeper_data_is_400(client: Client, depth: int, opened: bytes) -> None:
    topic = fresh_name()
    closed = b"]" if opened == b"[" else b"}"
    error_of(client.append_raw(topic, opened * depth + b"1" + closed * depth), 400, "invalid_request")
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def test_a_wide_value_is_not_a_deep_one(client: Client, topic: str) -> None:
    data = b"[" + b",".join([b'[{"a":[]}]'] * 2000) + b"]"
    written_and_read(client, topic, data, data)


def test_data_around_the_limit_of_a_record(client: Client, topic: str) -> None:
    data = b'"' + b"x" * ((1 << 20) - 2) + b'"'
    written_and_read(client, topic, data, data)
    error_of(client.append_raw(topic, data[:-1] + b'x"'), 400, "record_too_large")
    assert client.state(topic)["head_seq"] == 1


def test_meta_and_names_are_read_as_text(client: Client, topic: str) -> None:
    text = 'é 漢 😀 "quoted" \\ \n\r\t\u2028 \x7f'
    client.append(topic, records=[{"data": 1, "tag": text, "node": text, "meta": {text: text, "": ""}}])
    record = client.read(topic, include_tags=True)["records"][0]
    assert record["$tag"] == text
    assert record["$node"] == text
    assert record["meta"] == {text: text, "": ""}
