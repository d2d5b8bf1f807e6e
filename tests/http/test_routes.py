"""Which route a path has, and which answers of that are remembered (`topics.http.routes`)."""

from __future__ import annotations

import pytest

from topics.errors import ApiError
from topics.http.routes import REMEMBERED, SHORT_PATH, RouteTable


def test_a_remembered_route_is_the_one_that_was_found() -> None:
    table = RouteTable()
    first = table.find("POST", b"/v0/topics/a%2Db/diff")
    first.params()["topic"] = "another"
    again = table.find("POST", b"/v0/topics/a%2Db/diff")
    assert again is first
    assert again.route.name == "diff_post"
    assert again.unchecked() == {"topic": "a-b"}
    assert table.find("GET", b"/v0/topics/a%2Db/diff").route.name == "diff_get"


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("POST", b"/v0/health", "method_not_allowed"),
        ("GET", b"/v0/nothing", "not_found"),
        ("GET", b"/v0/topics//claims", "not_found"),
    ],
)
def test_a_refusal_is_the_same_each_time(method: str, path: bytes, code: str) -> None:
    table = RouteTable()
    for _ in range(3):
        with pytest.raises(ApiError) as refused:
            table.find(method, path)
        assert refused.value.code == code


def test_what_is_remembered_is_bounded() -> None:
    table = RouteTable()
    short = b"/v0/topics/".ljust(SHORT_PATH, b"x")
    assert table.find("GET", short) is table.find("GET", short)
    assert table.find("GET", short + b"x") is not table.find("GET", short + b"x")
    first = table.find("GET", short)
    for number in range(REMEMBERED):
        table.find("GET", b"/v0/topics/%d" % number)
    assert table.find("GET", short) is not first
