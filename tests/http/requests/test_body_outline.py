"""Large bodies with any members are decoded in steps, with the same result as in one call."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.requests.test_bodies import WIDE
from topics.errors import ApiError
from topics.http.requests import append_requests, body_outline, json_checks, record_slices, transaction_requests
from topics.http.requests.body_outline import BodyOutline, outline_in_steps

T = TypeVar("T")

BULK = 3 << 20
"""Bytes of a member that is too large for one step."""

_any = msgspec.json.Decoder(msgspec.Raw)


def result_of(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def outcome(steps: Generator[None, None, Any]) -> Any:
    try:
        return result_of(steps)
    except ApiError as error:
        return error.code, error.message, error.detail


def proved(raw: bytes) -> Generator[None, None, BodyOutline]:
    outline = yield from outline_in_steps(raw)
    yield from outline.decode(_any)
    yield from outline.unclaimed(())
    return outline


VALUES = st.recursive(
    st.none() | st.integers(0, 9) | st.sampled_from(["", "\\", '"', "[{", '{"at":0}', "]\\"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["at", "records", "]"]), inner),
    max_leaves=20,
)


@given(
    value=st.dictionaries(st.sampled_from(["a", "at", "["]), VALUES), at=st.integers(0, 200), put=st.binary(max_size=2)
)
def test_an_outline_proves_what_decoding_the_body_proves(value: Any, at: int, put: bytes) -> None:
    raw = json.dumps(value).encode()
    outline = result_of(proved(raw))
    assert outline.text_of(msgspec.Raw(outline.skeleton)) == raw
    changed = raw[:at] + put + raw[at + 1 :]
    try:
        _any.decode(changed)
        is_json = True
    except (msgspec.DecodeError, RecursionError):
        is_json = False
    found = outcome(proved(changed))
    assert isinstance(found, BodyOutline) == is_json, changed


def test_a_place_in_the_skeleton_is_one_in_the_body() -> None:
    raw = b'{"a":[{"b":[1,2,3]},[4,5,6,7,8,9,10],{}],"c":nul}'
    with pytest.raises(msgspec.DecodeError) as expected:
        _any.decode(raw)
    byte = str(expected.value).split("byte ")[1]
    assert f"(byte {byte}" in outcome(proved(raw))[1]


@pytest.mark.parametrize(
    "raw",
    [
        b'{"records":[{"data":1}],"x":"%b"}' % (b"a" * BULK),
        b'{"x":"%b","records":[{"data":1}]}' % (b"a" * BULK),
        b'{"records":[{"data":1}],"x":[%b1]}' % (b"1," * (BULK // 2)),
        b'{"records":[{"data":1}],"%b":1}' % (b"a" * BULK),
        b'{"records":[{"data":1}],"x":{"y":[%b1]}}' % (b"[]," * (BULK // 3)),
    ],
    ids=["text behind", "text in front", "array", "key", "brackets"],
)
def test_what_is_beside_the_records_of_a_large_append_is_bounded(raw: bytes) -> None:
    """60 MB in a member that nobody knows took 0.5 s, in one step."""
    for strict in (False, True):
        code, message, _ = outcome(append_requests.decode_append_in_steps(raw, WIDE, strict=strict))
        assert (code, message) == ("invalid_request", "body: has more than 1048576 bytes beside its records")


@pytest.mark.parametrize("member", ["data", "x"])
def test_a_record_that_is_far_too_large_is_not_decoded(member: str) -> None:
    raw = b'{"records":[{"data":1},{"%b":[%b1],"data":2}]}' % (member.encode(), b"1," * (6 << 20))
    code, message, detail = outcome(append_requests.decode_append_in_steps(raw, WIDE))
    assert code == "record_too_large", message
    assert detail["field"] == "records[1]"


@pytest.mark.parametrize(
    "around",
    [
        b'{"x":{"records":[]},"records":[%b]}',
        b'{"x":"' + b"y" * 100_000 + b'","records":[%b]}',
        b'{"rec\\u006frds":[%b]}',
    ],
    ids=["another", "much in front", "escaped"],
)
def test_records_that_are_hard_to_find_are_decoded_in_steps(around: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    record = b'{"data":"%b","tag":"a"}' % (b"d" * 500)
    raw = around % b",".join([record] * 4000)
    given: list[int] = []
    decode = record_slices.RecordSlices._slice

    def counted(self: Any, body: Any, slices: Any, start: int, end: int, count: int) -> Any:
        given.append(end - start)
        return decode(self, body, slices, start, end, count)

    monkeypatch.setattr(record_slices.RecordSlices, "_slice", counted)
    request = result_of(append_requests.decode_append_in_steps(raw, WIDE))
    assert request.datas == append_requests.decode_append(raw, WIDE).datas
    assert len(given) >= 4000 * len(record) // record_slices.SLICE
    assert max(given) <= record_slices.SLICE


ONE = b'{"topic":"a","records":[{"data":[1,{"b":"]"}],"tag":"t"},{"data":2}],"fence":{"name":"f","token":1}}'
TWO = b'{"topic":"b","records":[{"data":3}],"config":{"schema":{"type":"number"}}}'
TRANSACTIONS = [
    b'{"appends":[%b,%b]}',
    b' { "appends" : [ %b , %b ] , "idempotency_key" : "k" } ',
    b'{"x":[{"a":[1]},[2]],"y":{"z":{}},"appends":[%b,%b]}',
    b'{"appends":[{}],"appends":[%b,%b]}',
    b'{"app\\u0065nds":[%b,%b]}',
    b'{"appends":[%b,%b',
    b'{"appends":[%b %b]}',
    b'{"appends":[%b,%b]}}',
    b'{"appends":[%b,%b],"x":nul}',
    b'{"appends":[%b,%b],"x":[[1 2]]}',
    b'{"appends":[%b,%b,5]}',
    b'{"appends":[%b,%b,{"topic":"a"}]}',
    b'{"appends":[%b,%b,{"topic":"c","records":[{"data":1 2}]}]}',
    b'{"appends":[%b,%b,{"topic":"c","records":[{"data":1}],"node":5}]}',
    b'{"appends":[%b,%b,{"topic":"-","records":[{"data":1}]}]}',
    b'{"appends":[%b,%b],"fence":{"name":"f","token":1}}',
    b'{"appends":[%b,%b],"expected_x":[[]]}',
    b'{"appends":{"a":%b,"b":%b}}',
    b'{"appends":null,"x":[%b,%b]}',
    b'[%b,%b]',
    b'{"appends":[%b,%b],"idempotency_key":{"a":{}}}',
]  # fmt: skip


@pytest.mark.parametrize("text", TRANSACTIONS)
def test_a_large_transaction_is_decoded_like_a_small_one(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = text % (ONE, TWO)
    small = outcome(transaction_requests.decode_transaction(raw, WIDE))
    monkeypatch.setattr(transaction_requests, "LARGE", 0)
    monkeypatch.setattr(body_outline, "_STEP", 7)
    assert outcome(transaction_requests.decode_transaction(raw, WIDE)) == small


@pytest.mark.parametrize(
    "raw",
    [
        b'{"appends":[%b,%b],"x":"%b"}' % (ONE, TWO, b"a" * BULK),
        b'{"appends":[%b,%b],"x":[[%b1]]}' % (ONE, TWO, b"1," * (BULK // 2)),
        b'{"appends":[%b1]}' % (b"1," * (BULK // 2)),
        b'{"appends":[%b{}]}' % (b"{}," * (BULK // 3)),
    ],
    ids=["text", "array", "numbers", "appends"],
)
def test_what_is_beside_the_appends_of_a_transaction_is_bounded(raw: bytes) -> None:
    """Twenty million empty appends took 2 s in one step, thirty million numbers 7 s."""
    code, message, detail = outcome(transaction_requests.decode_transaction(raw, WIDE))
    assert code == "invalid_request"
    assert detail["field"] == "appends"
    assert "262144 bytes beside them" in message


def test_no_append_of_a_transaction_is_decoded_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    records = b",".join([b'{"data":"%b"}' % (b"d" * 500)] * 4000)
    raw = b'{"appends":[{"topic":"a","records":[%b]},{"topic":"b","records":[%b]}]}' % (records, records)
    given: list[int] = []
    decode = json_checks.decode_json

    def counted(decoder: Any, text: bytes) -> Any:
        given.append(len(text))
        return decode(decoder, text)

    monkeypatch.setattr(transaction_requests, "decode_json", counted)
    request = result_of(transaction_requests.decode_transaction(raw, WIDE))
    assert [len(append.records) for append in request.appends] == [4000, 4000]
    assert max(given, default=0) < transaction_requests.LARGE
