"""Names: what may be one, and which field a refusal is about."""

from __future__ import annotations

import pytest

from topics.errors import ApiError
from topics.log.names import check_consumer_name, check_node, check_router_name, check_stage_name, check_topic_name


@pytest.mark.parametrize("name", ["a", "0", "A.b_c:d-e", "x" * 255])
def test_a_good_topic_name_comes_back(name: str) -> None:
    assert check_topic_name(name) == name
    assert check_router_name(name) == name


@pytest.mark.parametrize("name", ["", ".a", "-a", "_a", "a b", "a/b", "a\n", "ü", "aü", "x" * 256, "a>b", None, 7])
def test_a_bad_topic_name_is_refused_by_its_field(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_topic_name(name, "dest")
    assert caught.value.status == 400
    assert caught.value.detail == {"field": "dest"}


def test_a_refusal_says_what_the_name_is_of() -> None:
    checks = {
        "topic": check_topic_name,
        "consumer": check_consumer_name,
        "stage": check_stage_name,
        "router": check_router_name,
    }
    for kind, check in checks.items():
        assert check("a-1", "place") == "a-1"
        with pytest.raises(ApiError, match=f"place: a {kind} name is 1 to 255 of "):
            check("a b", "place")


def test_only_a_router_name_may_contain_an_arrow() -> None:
    assert check_router_name("a>b") == "a>b"
    for name in (">a", "a>b\n", "a b"):
        with pytest.raises(ApiError):
            check_router_name(name)


def test_a_node_is_measured_in_bytes() -> None:
    assert check_node("ü" * 64, 128) == "ü" * 64
    with pytest.raises(ApiError) as caught:
        check_node("ü" * 65, 128, "records[3].node")
    assert caught.value.detail["field"] == "records[3].node"


def test_half_a_surrogate_pair_is_no_node() -> None:
    with pytest.raises(ApiError):
        check_node("\ud800", 128)
