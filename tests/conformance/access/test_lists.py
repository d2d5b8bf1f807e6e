"""Section 12: lists show what the prefixes of the key cover."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.client import Client, body_of, error_of
from tests.conformance.keys import Callers, names_of, pages

LISTED = [
    "l.A-1", "l.a", "l.a-1", "l.a-10", "l.a-2", "l.a-3", "l.ab", "l.b", "l.b-1", "l.bb", "l.c", "l.c-", "l.c-1",
    "l.c-x", "l.c-x1", "l.c-xx", "l.c-y", "l.c.", "l.d-1", "l.d-2", "l_a-1", "z.a-1",
]  # fmt: skip
LISTER = ("l.a-", "l.c-", "l.c-x", "l.b")


@pytest.fixture(scope="module")
def listed(client: Client) -> list[str]:
    """The topics of which a part is listed, and routers between some of them."""
    for name in LISTED:
        client.put_topic(name)
    numbers = iter(range(100))
    for name in ("l.a-", "l.b", "l.d-", "z"):
        for source in ("l.a-1", "l.d-1"):
            for dest in ("l.c-", "l.d-"):
                number = next(numbers)
                body = {"source": source, "dest": f"{dest}t{number}"}
                body_of(client.put(f"/v0/routers/{name}r{number}", json=body), 201)
    return names_of(pages(client, "topics"))


@pytest.mark.parametrize("page_size", [1, 2, 3, 4, 7, 1000])
def test_a_list_shows_what_the_prefixes_cover_page_by_page(
    client: Client, callers: Callers, listed: list[str], page_size: int
) -> None:
    for prefix in (
        "",
        "l",
        "l.",
        "l.a",
        "l.a-",
        "l.a-1",
        "l.b",
        "l.bb",
        "l.c-",
        "l.c-x",
        "l.c-x1",
        "l.d",
        "zz",
        "l.c-z",
    ):
        for key, covered in [("lister", LISTER), ("one", ("l.a-1",)), ("nowhere", ("no-such-",)), ("mine", ("mine-",))]:
            found = names_of(pages(callers[key], "topics", page_size, prefix=prefix))
            assert found == [name for name in listed if name.startswith(prefix) and name.startswith(covered)]


def test_a_cursor_means_names_after_this_one_whoever_uses_it(
    client: Client, callers: Callers, listed: list[str]
) -> None:
    for name in ("l.a", "l.ab", "l.bb", "l.c-x1", "l.d-1", "z.a-1"):
        place = listed.index(name)
        first = body_of(client.get("/v0/topics", params={"page_size": place + 1}))
        assert first["topics"][-1]["topic"] == name
        if (cursor := first.get("next_cursor")) is None:
            continue
        answer = body_of(callers["lister"].get("/v0/topics", params={"cursor": cursor}))
        expected = [other for other in listed[place + 1 :] if other.startswith(LISTER)]
        assert names_of(answer["topics"]) == expected
    error_of(callers["lister"].get("/v0/topics", params={"cursor": "!"}), 400, "invalid_request")


@pytest.mark.parametrize("page_size", [1, 2, 1000])
def test_a_list_of_routers_shows_those_all_of_whose_names_are_covered(
    client: Client, callers: Callers, listed: list[str], page_size: int
) -> None:
    everything = pages(client, "routers")

    def is_covered(router: Any) -> bool:
        return all(router[field].startswith(LISTER) for field in ("router", "source", "dest"))

    for query in ({}, {"source": "l.a-1"}, {"source": "l.d-1"}, {"prefix": "l.b"}, {"prefix": "z"}, {"prefix": "l"}):
        found = pages(callers["lister"], "routers", page_size, **query)
        expected = [
            router
            for router in everything
            if is_covered(router)
            and query.get("source") in (None, router["source"])
            and router["router"].startswith(query.get("prefix", ""))
        ]
        assert names_of(found, "router") == names_of(expected, "router"), query
    covered = [router for router in everything if is_covered(router)]
    assert covered
    for router in [covered[0], everything[-1]]:
        found = pages(callers["lister"], "routers", page_size, dest=router["dest"])
        assert names_of(found, "router") == ([router["router"]] if is_covered(router) else [])


def test_a_list_that_touches_touches_what_it_shows(client: Client, callers: Callers, listed: list[str]) -> None:
    def read_at(name: str) -> Any:
        return client.state(name, touch="false")["last_read_ts"]

    assert [read_at(name) for name in ("l.a-1", "l.d-1", "l.ab")] == [None] * 3
    body_of(callers["lister"].get("/v0/topics", params={"touch": "true"}))
    assert read_at("l.a-1") is not None
    assert [read_at(name) for name in ("l.d-1", "l.ab")] == [None] * 2


def test_metrics_name_what_the_prefixes_cover(client: Client, callers: Callers, listed: list[str]) -> None:
    as_json = {"accept": "application/json"}
    values = body_of(callers["lister"].get("/v0/metrics", headers=as_json))
    everything = body_of(client.get("/v0/metrics", headers=as_json))
    shown = pages(callers["lister"], "routers")
    covered = [name for name in listed if name.startswith(LISTER)]
    for name in ("head_seq", "earliest_seq", "records_live", "bytes_live"):
        samples = [sample["labels"]["topic"] for sample in values[f"topics_topic_{name}"]]
        assert sorted(samples) == sorted(covered)
    for name in ("lag", "forwarded_total"):
        samples = [sample["labels"]["router"] for sample in values[f"topics_router_{name}"]]
        assert sorted(samples) == sorted(names_of(shown, "router"))
    # Totals name nobody.
    assert set(values) <= set(everything)
    assert (values["topics_topics"], values["topics_routers"]) == (
        everything["topics_topics"],
        everything["topics_routers"],
    )
    text = callers["lister"].get("/v0/metrics").text
    for name in listed:
        assert (f'topic="{name}"' in text) is (name in covered), name
    for router in pages(client, "routers"):
        assert (f'"{router["router"]}"' in text) is (router in shown or router["router"] in names_of(shown, "router"))
