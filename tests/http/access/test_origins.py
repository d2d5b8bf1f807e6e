"""Which `Host` a daemon without keys answers to (`topics.http.access.origins`)."""

from __future__ import annotations

import pytest

from topics.errors import ApiError
from topics.http.access.origins import Origins


def test_beyond_loopback_any_name_is_answered() -> None:
    Origins(()).check("GET", {b"host": b"topics.example.org"})
    with pytest.raises(ApiError, match="without keys"):
        Origins((), hosts=()).check("GET", {b"host": b"topics.example.org"})


def test_a_client_without_a_host_is_no_browser() -> None:
    Origins((), hosts=()).check("GET", {})
    Origins((), hosts=()).check("GET", {b"host": b""})


def test_names_are_told_apart_however_many_come() -> None:
    origins = Origins((), hosts=("home.example",))
    for number in range(1000):
        with pytest.raises(ApiError):
            origins.check("GET", {b"host": b"a%d.example" % number})
        origins.check("GET", {b"host": b"home.example:%d" % number})


def test_what_is_repeated_in_the_refusal_is_short() -> None:
    with pytest.raises(ApiError) as raised:
        Origins((), hosts=()).check("GET", {b"host": b"x" * 100_000})
    assert len(raised.value.detail["host"]) < 150
    with pytest.raises(ApiError) as raised:
        Origins((), hosts=()).check("GET", {b"origin": b"http://" + b"x" * 100_000})
    assert len(raised.value.detail["origin"]) < 150
