"""Raw bytes as JSON: one form, which says exactly what it is."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from topics import raw_bytes
from topics.client.results import Record
from topics.raw_bytes import (
    MAX_TYPE,
    STEP,
    bytes_in_steps,
    bytes_of_data,
    content_type_of,
    data_in_steps,
    data_of_bytes,
    normal_type,
    room_for_bytes,
)

TYPES = [
    "application/octet-stream",
    "application/cbor",
    "application/protobuf",
    "image/png",
    "image/svg+xml",
    "audio/ogg;codecs=opus",
    'video/mp4;codecs="avc1.42E01E, mp4a.40.2"',
    "image/x.y-z_1!#$&^",
    'audio/x;a="";b=C',
    "image/" + "a" * 127,
]


def last_of(steps: Any) -> Any:
    """What a generator returns."""
    try:
        while True:
            next(steps)
    except StopIteration as done:
        return done.value


@given(st.binary(max_size=200), st.sampled_from(TYPES))
def test_what_is_written_is_read_and_is_plain_json(content: bytes, content_type: str) -> None:
    data = data_of_bytes(content, content_type)
    assert content_type_of(data) == content_type
    assert bytes_of_data(data) == content
    told = {"$bytes": base64.b64encode(content).decode(), "$content_type": content_type}
    assert json.loads(data) == told
    assert data == json.dumps(told, separators=(",", ":")).encode()


@pytest.mark.parametrize("size", [0, 1, STEP - 1, STEP, STEP + 1, 3 * STEP + 2])
def test_in_steps_it_is_the_same(size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    data = data_of_bytes(content, "image/png")
    assert last_of(data_in_steps(content, "image/png")) == data
    assert last_of(bytes_in_steps(data)) == content


def is_raw(data: bytes) -> bool:
    """The definition: the JSON of some bytes and a type, and no other JSON."""
    try:
        value = json.loads(data)
        content = base64.b64decode(value["$bytes"], validate=True)
        content_type = value["$content_type"]
    except (ValueError, KeyError, TypeError):
        return False
    if not isinstance(content_type, str) or normal_type(content_type) != content_type:
        return False
    return data_of_bytes(content, content_type) == data


NEARLY = [
    b'{"$bytes":"","$content_type":"image/png"}',
    b'{"$bytes":"AA==","$content_type":"image/png"}',
    b'{"$bytes":"AB==","$content_type":"image/png"}',  # bits that mean nothing
    b'{"$bytes":"AAA=","$content_type":"image/png"}',
    b'{"$bytes":"AAB=","$content_type":"image/png"}',
    b'{"$bytes":"AA","$content_type":"image/png"}',
    b'{"$bytes":"====","$content_type":"image/png"}',
    b'{"$bytes":"A===","$content_type":"image/png"}',
    b'{"$bytes":"AA==AA==","$content_type":"image/png"}',
    b'{"$bytes":"AA-_","$content_type":"image/png"}',
    b'{"$bytes":"AA A","$content_type":"image/png"}',
    b'{"$bytes":"AA\\u0041A","$content_type":"image/png"}',
    b'{"$bytes": "AAAA","$content_type":"image/png"}',
    b'{"$bytes":"AAAA","$content_type":"image/png","a":1}',
    b'{"$bytes":"AAAA","a":"AAAA","$content_type":"image/png"}',
    b'{"$bytes":"AAAA","$content_type":"text/plain"}',
    b'{"$bytes":"AAAA","$content_type":"IMAGE/png"}',
    b'{"$bytes":"AAAA","$content_type":"image/png; a=b"}',
    b'{"$bytes":"AAAA","$content_type":"image/png;a=\\"b\\""}',
    b'{"$bytes":"AAAA","$content_type":"image/png;a=\\"\\\\\\""}',
    b'{"$bytes":"AAAA","$content_type":"image/p\\u006eg"}',
    b'{"$bytes":"AAAA","$content_type":"image/*"}',
    b'{"$bytes":"AAAA","$content_type":"image/png\\r\\nx: y"}',
    b'{"$bytes":"AAAA","$content_type":"image/png\\u00e9"}',
    b'{"$bytes":"AAAA","$content_type":7}',
    b'{"$bytes":"AAAA"}',
    b'{"$bytes":7,"$content_type":"image/png"}',
    b'{"$bytes":"AAAA","$bytes":"AAAA","$content_type":"image/png"}',
    b'{"$content_type":"image/png","$bytes":"AAAA"}',
    b'[{"$bytes":"AAAA","$content_type":"image/png"}]',
    b'"$bytes"',
    b"{}",
    b"null",
    b'{"$bytes":"","$content_type":""}',
    b'{"$bytes":"","$content_type":"image/%b"}' % (b"a" * (MAX_TYPE + 1)),
    b'{"$bytes":"","$content_type":"image/a;b=%b"}' % (b"c" * (MAX_TYPE - 10)),
    b'{"$bytes":"","$content_type":"image/a;b=%b"}' % (b"c" * (MAX_TYPE - 9)),
    b'{"$bytes":"","$content_type":"image/a%b"}' % (b';b=\\"\\"' * 40),
]


@pytest.mark.parametrize("data", NEARLY)
def test_only_the_one_form_is_raw_bytes(data: bytes) -> None:
    json.loads(data)
    found = content_type_of(data)
    assert (found is not None) is is_raw(data)
    client = msgspec.json.decode(b'{"$seq":1,"$ts":1,"data":' + data + b"}", type=Record)
    if found is not None:
        assert (client.content_type, client.content) == (found, bytes_of_data(data))
    elif client.content_type is not None:  # it may be a type that a newer daemon knows
        assert normal_type(client.content_type) != client.content_type


@settings(max_examples=500)
@given(st.sampled_from([data for data in NEARLY if len(data) < 200]), st.integers(0, 200), st.binary(max_size=2))
@example(NEARLY[1], 13, b"\\")
def test_a_change_anywhere_is_noticed(data: bytes, at: int, put: bytes) -> None:
    changed = data[:at] + put + data[at + len(put) :]
    try:
        json.loads(changed)
    except ValueError:
        return
    assert (content_type_of(changed) is not None) is is_raw(changed)


def test_large_data_is_looked_at_to_its_end() -> None:
    data = bytearray(data_of_bytes(bytes(1 << 20), "image/png"))
    assert content_type_of(bytes(data)) == "image/png"
    data[len(data) // 2] = ord("-")
    assert content_type_of(bytes(data)) is None


@pytest.mark.parametrize(
    ("header", "normal"),
    [
        ("image/png", "image/png"),
        (" IMAGE/Png\t", "image/png"),
        ("image/svg+xml ; charset=UTF-8", "image/svg+xml;charset=UTF-8"),
        ("Audio/OGG;\tCodecs=Opus; ;", "audio/ogg;codecs=Opus"),
        ('video/mp4; codecs="a, b; c=d"', 'video/mp4;codecs="a, b; c=d"'),
        ("application/octet-stream;", "application/octet-stream"),
        ("application/x-protobuf", None),
        ("application/octet-streams", None),
        ("application/json", None),
        ("text/plain", None),
        ("text/plain; image/png", None),
        ("image", None),
        ("image/", None),
        ("image/*", None),
        ("image/-x", None),
        ("*/*", None),
        ("image/png, image/jpeg", None),
        ("image/png; a", None),
        ("image/png; a=", None),
        ("image/png; =a", None),
        ("image/png; a=b c", None),
        ("image/png; a = b", None),
        ('image/png; a="b', None),
        ('image/png; a="b\\"c"', None),
        ('image/png; a="é"', None),
        ("image/png\r\nx: y", None),
        ("image/png; a=b\n", None),
        ("imag\u00e9/png", None),
        ("\u212amage/png", None),
        ("", None),
        ("image/" + "a" * 127, "image/" + "a" * 127),
        ("image/" + "a" * 128, None),
        ("image/a;b=" + "c" * (MAX_TYPE - 10), "image/a;b=" + "c" * (MAX_TYPE - 10)),
        ("image/a;b=" + "c" * (MAX_TYPE - 9), None),
        ("image/a;b=c" + " " * 5000, None),
    ],
)
def test_the_normal_form_of_a_type(header: str, normal: str | None) -> None:
    assert normal_type(header) == normal
    if normal is not None:
        assert normal_type(normal) == normal


@settings(max_examples=500)
@given(st.text(st.sampled_from('iImage/png;= "\\\r\n\t,*é0Z'), max_size=20).map("image/".__add__))
def test_whatever_a_client_names_a_type_can_be_a_header(header: str) -> None:
    found = normal_type(header)
    if found is not None:
        assert normal_type(found) == found
        assert found.isascii()
        assert found.isprintable()
        assert content_type_of(data_of_bytes(b"x", found)) == found


@pytest.mark.parametrize("content_type", TYPES)
def test_as_many_bytes_fit_as_it_says(content_type: str) -> None:
    for size in range(400, 420):
        room = room_for_bytes(size, content_type)
        if room >= 0:
            assert len(data_of_bytes(bytes(room), content_type)) <= size
            assert len(data_of_bytes(bytes(room + 1), content_type)) > size


def test_of_other_json_only_the_beginning_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def untouched(*_: object) -> None:
        raise AssertionError("looked at")

    monkeypatch.setattr(raw_bytes, "_is_base64", untouched)
    assert content_type_of(b'{"$byte":"AAAA","$content_type":"image/png"}') is None
    with pytest.raises(AssertionError):
        content_type_of(b'{"$bytes":"AAAA","$content_type":"image/png"}')
