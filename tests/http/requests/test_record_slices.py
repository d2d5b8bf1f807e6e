"""Large appends are decoded in slices, with the same result and the same errors as in one call."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.http.requests.test_bodies import WIDE
from topics.errors import ApiError
from topics.http.requests import append_requests, json_checks, record_slices
from topics.model import CheckedAppend

T = TypeVar("T")

FEW = replace(WIDE, max_batch_records=7, max_record_bytes=600, max_meta_bytes=100, max_tag_bytes=8, max_node_bytes=8)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_slices, "SLICE", 64)
    monkeypatch.setattr(record_slices, "LONGEST", 256)
    monkeypatch.setattr(append_requests, "SLICE", 64)
    monkeypatch.setattr(append_requests, "_LARGE_BODY", -1)
    monkeypatch.setattr(json_checks, "_DEPTH_STEP", 7)
    monkeypatch.setattr(append_requests, "_CHECKED_RECORDS", 2)


def taken(steps: Generator[None, None, T]) -> tuple[T, int]:
    """What steps return, and how many they are."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value, count
        count += 1


def outcome(request: Any) -> Any:
    """What an append has, in a form that can be compared."""
    assert isinstance(request, CheckedAppend)
    fields = {name: getattr(request, name) for name in request.__struct_fields__}
    fields["records"] = [(bytes(record.data), record.tag, record.node, record.meta) for record in request.records]
    return fields


def decode_in_steps(raw: bytes, limits: Any, *, strict: bool, publish: bool) -> CheckedAppend:
    carrier: append_requests.Carrier = "publish" if publish else "append"
    return taken(append_requests.decode_append_in_steps(raw, limits, "k", strict=strict, carrier=carrier))[0]


def decode_at_once(raw: bytes, limits: Any, *, strict: bool, publish: bool) -> CheckedAppend:
    return append_requests.decode_append(raw, limits, "k", strict=strict, carrier="publish" if publish else "append")


def compare(raw: bytes, limits: Any = FEW) -> Any:
    """Decode in one call and in steps, and check that both do the same. Returns the outcome."""
    result: Any = None
    for strict, publish in ((True, True), (False, False), (True, False)):
        results: list[Any] = []
        for call in (decode_at_once, decode_in_steps):
            try:
                results.append(outcome(call(raw, limits, strict=strict, publish=publish)))
            except ApiError as error:
                results.append((error.code, error.message, error.detail))
        assert results[0] == results[1]
        result = results[1]
    return result


PLAIN = b'{"data":{"a":[1,{"b":"c"}]},"tag":"t"}'

BODIES = [
    b"", b" ", b"{}", b"[]", b'{"records":[]}', b'{"records":[ ]}', b'{"records":5}', b'{"records":null}',
    b'{"records":[%b]}' % PLAIN,
    b' {"node":"n","records" : [ %b ] , "create":true } ' % b" , ".join([PLAIN] * 6),
    b'{"records":[%b]}' % b",".join([PLAIN] * 9),
    b'{"op":"publish","topic":"t","request_id":1,"records":[%b]}' % b",".join([PLAIN] * 9),
    b'{"op":"publish","topic":"t","topics":"t","records":[%b]}' % b",".join([PLAIN] * 9),
    b'{"records":[%b]}x' % b",".join([PLAIN] * 5),
    b'{"records":[%b,]}' % b",".join([PLAIN] * 5),
    b'{"records":[,%b]}' % b",".join([PLAIN] * 5),
    b'{"records":[%b}' % b",".join([PLAIN] * 5),
    b'{"records":[%b' % b",".join([PLAIN] * 5),
    b'{"records":[%b]' % b",".join([PLAIN] * 5),
    b'{"records":[%b]]}' % b",".join([PLAIN] * 5),
    b'{"records":[%b],"records":[%b]}' % (b",".join([PLAIN] * 5), PLAIN),
    b'{"records":[%b],"records":[]}' % b",".join([PLAIN] * 5),
    b'{"records":[%b],"records":[{"data":1},{"data":1,"tag":5}]}' % b",".join([PLAIN] * 5),
    b'{"records":[%b],"rec\\u006frds":[{"data":1},{"data":2}]}' % b",".join([PLAIN] * 5),
    b'{"rec\\u006frds":[{"data":1},{"data":2}],"records":[%b]}' % b",".join([PLAIN] * 5),
    b'{"rec\\u006frds":[%b]}' % b",".join([PLAIN] * 5),
    b'{"x":{"records":[{"data":1}]},"records":[%b]}' % b",".join([PLAIN] * 5),
    b'{"x":"\\"records\\":[","records":[%b]}' % b",".join([PLAIN] * 5),
    b'{"records":[%b],"x":[%b]}' % (b",".join([PLAIN] * 5), b",".join([PLAIN] * 5)),
    b'{"records":[%b],"node":5}' % b",".join([PLAIN] * 5),
    b'{"node":5,"records":[%b,{"tag":5}]}' % b",".join([PLAIN] * 5),
    b'{"records":[%b,{"tag":5}],"node":5}' % b",".join([PLAIN] * 5),
    b'{"records":[%b,{"tag":"x"}],"node":5}' % b",".join([PLAIN] * 5),
    b'{"records":[%b,{"data":1,"colour":1},%b]}' % (b",".join([PLAIN] * 3), PLAIN),
    b'{"records":[%b,{"data":1,"colour - at `$.records[1]":1},%b]}' % (b",".join([PLAIN] * 3), PLAIN),
    b'{"records":[%b],"colour - at `$.records[1]":1}' % b",".join([PLAIN] * 5),
    b'{"records":[%b,{"data":nul},%b]}' % (b",".join([PLAIN] * 3), PLAIN),
    b'{"records":[%b,{"data":"\\ud800"},%b]}' % (b",".join([PLAIN] * 3), PLAIN),
    b'{"records":[%b,{"data":"\\u12"},%b]}' % (b",".join([PLAIN] * 3), PLAIN),
    b'{"records":[%b,{"data":"\xff"},%b]}' % (b",".join([PLAIN] * 3), PLAIN),
    b'{"records":[%b,{"data":"%b"},%b]}' % (PLAIN, b'},{\\"data\\":1' * 20, PLAIN),
    b'{"records":[%b,{"data":[%b]},%b]}' % (PLAIN, b",".join([PLAIN] * 5), PLAIN),
    b'{"records":[%b,{"data":[%b]},%b]}' % (PLAIN, b",".join([b'{"data":1}'] * 50), PLAIN),
    b'{"records":[%b,{"data":"%b"},%b]}' % (PLAIN, b"x" * 700, PLAIN),
    b'{"records":[%b,{"data":%b},%b]}' % (PLAIN, b"[" * 600 + b"]" * 600, PLAIN),
    b'{"records":[%b,{"data":1,"x":%b},%b]}' % (PLAIN, b"[" * 600 + b"]" * 600, PLAIN),
    b'{"records":[%b,{"data":1,"x":%b},%b]}' % (PLAIN, b"[" * 512 + b"]" * 512, PLAIN),
    b'{"records":[%b],"x":%b}' % (PLAIN, b"[" * 600 + b"]" * 600),
    b'{"records":[%b,{"data":1,"meta":{%b}},%b]}' % (PLAIN, b",".join(b'"%d":""' % i for i in range(200)), PLAIN),
    b'{"records":[%b,{"data":1,"meta":{"k":5}},%b]}' % (PLAIN, PLAIN),
    b'{"records":[%b,{"data":1,"meta":{"_topics":"x"}},%b]}' % (PLAIN, PLAIN),
    b'{"records":[%b,{"data":1,"meta":{"k":"%b"}},%b]}' % (PLAIN, b"x" * 200, PLAIN),
    b'{"records":[%b,{"data":1,"meta":{"k":"v"}},%b]}' % (PLAIN, PLAIN),
    b'{"records":[%b,{"data":1,"node":""},%b]}' % (b",".join([PLAIN] * 3), PLAIN),
    b'{"records":[%b,{"data":1,"tag":"123456789"},%b]}' % (b",".join([PLAIN] * 3), PLAIN),
    b'{"records":[%b,5,%b]}' % (PLAIN, PLAIN),
    b'{"records":[[%b]]}' % b",".join([PLAIN] * 5),
    b'{"records":[%b],[%b]}' % (PLAIN, PLAIN),
    b'{"records":[{"x":[{}],"data":1},{"x":[{}]},{"x":[{}],"data":1}]}',
    b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 100),
    b'{"records":[%b,{"data":1,"tag":5}]}' % b",".join([b'{"data":1}'] * 100),
    b'{"records":[%b,{"data":1,"x":5}]}' % b",".join([b'{"data":1,"x":1}'] * 100),
    json.dumps({"records": [{"data": {"a": [i]}, "tag": "t"} for i in range(6)], "node": "n"}, indent=2).encode(),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(BODIES)))
def test_a_body_is_decoded_in_slices_as_it_is_in_one_call(index: int) -> None:
    compare(BODIES[index])
    compare(BODIES[index], WIDE)


PIECES = st.sampled_from(
    [
        b'{"records":[', b'"records":[', b'"rec\\u006frds":[', b'{"data":', b'"data":', b"},{", b"},", b'},{"data":1',
        b'"tag":', b'"meta":{', b'"x":', b'"x"', b'"', b"\\", b'\\"', b"\\\\", b"[", b"]", b"{", b"}", b",", b":", b"1",
        b"-", b"1.", b"null", b"nul", b" ", b"\n", b"]}", b'],"records":[', b'"node":', b"\xc3\xa9", b"\xff",
        b"\\ud83d",
        b"x" * 70, PLAIN, b"," + PLAIN, PLAIN + b",",
    ]
)  # fmt: skip


@pytest.mark.slow
@given(st.data())
@settings(max_examples=1000, deadline=None)
def test_a_changed_body_is_decoded_in_slices_as_it_is_in_one_call(data: st.DataObject) -> None:
    raw = data.draw(st.sampled_from([body for body in BODIES if len(body) < 700]))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(raw)))
        cut = data.draw(st.sampled_from([0, 0, 0, 1, 2, 40, 1000]))
        raw = raw[:at] + b"".join(data.draw(st.lists(PIECES, max_size=4))) + raw[at + cut :]
    compare(raw)


@given(
    st.recursive(
        st.none() | st.text('[]{}"\\\\'), lambda inner: st.lists(inner) | st.dictionaries(st.text('[]{}"\\\\'), inner)
    )
)
def test_depth_is_the_same_in_steps(value: Any) -> None:
    raw = json.dumps(value).encode()
    assert taken(json_checks.depth_in_steps(raw))[0] == json_checks.depth_of(raw)


@given(st.lists(PIECES, max_size=60))
@settings(max_examples=500, deadline=None)
def test_any_text_of_records_is_decoded_in_slices_as_it_is_in_one_call(pieces: list[bytes]) -> None:
    compare(b'{"records":[' + PLAIN + b"," + b"".join(pieces))


def test_no_decoder_is_given_much_more_than_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    class Counting:
        def __init__(self, decoder: Any) -> None:
            self._decoder = decoder

        def decode(self, raw: bytes) -> Any:
            given.append(len(raw))
            return self._decoder.decode(raw)

    names = [name for name, value in vars(append_requests).items() if isinstance(value, msgspec.json.Decoder)]
    for name in names:
        monkeypatch.setattr(append_requests, name, Counting(getattr(append_requests, name)))
    monkeypatch.setattr(record_slices, "SLICE", 4000)
    record = b'{"data":[%b],"tag":"t"}' % b",".join([b'{"data":[[]]}'] * 40)
    good = b",".join([record] * 200)
    small = replace(WIDE, max_batch_records=100_000)
    for body in (
        b'{"records":[%b]}' % good,
        b'{"records":[%b]' % good,
        b'{"records":[%b,{"data":nul}]}' % good,
        b'{"records":[%b],"records":[{"data":1}]}' % good,
        b'{"records":[%b,{"data":1,"x":1},%b]}' % (good, good),
        b'{"records":[%b]}' % b",".join([b'{"data":1,"meta":{"a":"%b"}}' % (b"x" * 100)] * 2000),
        b'{"records":[%b]}' % b",\n ".join([b'{ "data": "}\\"},{" , "meta":{"a":"b"}}'] * 2000),
    ):
        given.clear()
        try:
            _, steps = taken(append_requests.decode_append_in_steps(body, small))
        except ApiError:
            steps = 2
        assert steps > 1
        assert max(given) < 10_000
        assert sum(given) < 6 * len(body)


@pytest.mark.parametrize("message", ["Input data was truncated", "Invalid \\ud800 surrogate", "JSON is malformed: x"])
@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 4100, 9000])
@pytest.mark.parametrize("escape", [rb"\ud800", rb"\uDBFF", rb"\u00e9", b"abcdef"])
def test_half_a_surrogate_pair_is_found_in_steps(
    message: str, size: int, escape: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_checks, "_SURROGATE_STEP", 4096)
    for before in range(max(0, size - 8), size):
        raw = b"x" * before + escape + b"x" * (size - before)
        found, _ = taken(json_checks.malformed_in_steps(message, raw))
        assert found.message == json_checks.malformed(message, raw).message
    assert taken(json_checks.malformed_in_steps("truncated", bytes(3 * 4096)))[1] == 3
