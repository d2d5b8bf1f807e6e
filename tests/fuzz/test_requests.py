"""What the daemon takes as HTTP/1.1, others see the same way: a fixed corpus. Mutations of it are `test_fuzz`'s."""

from __future__ import annotations

import pytest

from tests.fuzz import requests
from tests.fuzz.requests import CORPUS, HAS_LLHTTP, by_daemon, by_h11, by_its_target, by_llhttp, compare

NO_LLHTTP = "httptools is not installed: pip install httptools==0.9.0"

TAKEN = {
    "two requests": 2,
    "an empty line before": 2,
    "a length": 2,
    "a length of nothing": 2,
    "a length with zeros": 2,
    "chunks": 2,
    "chunks in capitals": 2,
    "an extension": 2,
    "an extension in quotes": 2,
    "a size with zeros": 2,
    "trailers": 2,
    "bytes above ASCII": 2,
    "an unknown method": 2,
    "an asterisk": 2,
    "a GET with a body": 2,
    "a HEAD with chunks": 2,
    "an expectation": 2,
    "an absolute target": 2,
    "HTTP/1.0": 1,
    "HTTP/1.0 kept": 1,
    "a close": 1,
    "a close and more": 1,
    "a WebSocket": 1,
    "an upgrade to HTTP/2": 1,
    "an authority": 1,
}
"""How many requests of an entry of the corpus are taken; of all others none."""


@pytest.mark.parametrize("name", CORPUS)
def test_of_the_corpus_is_taken_what_should_be(name: str) -> None:
    reading = by_daemon(CORPUS[name])
    assert len(reading.requests) == TAKEN.get(name, 0), reading


@pytest.mark.parametrize("name", CORPUS)
def test_what_is_taken_h11_sees_the_same_way(name: str) -> None:
    compare(CORPUS[name])


@pytest.mark.skipif(not HAS_LLHTTP, reason=NO_LLHTTP)
@pytest.mark.parametrize("name", CORPUS)
def test_what_is_taken_llhttp_sees_the_same_way_or_refuses(name: str) -> None:
    reading, other = by_daemon(CORPUS[name]), by_llhttp(CORPUS[name])
    for ours, theirs in zip(reading.requests, other.requests, strict=False):
        theirs = by_its_target(theirs)
        assert (ours.method, ours.target, ours.body) == (theirs.method, theirs.target, theirs.body)
    compare(CORPUS[name])


def test_a_difference_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "by_daemon", by_h11)
    monkeypatch.setattr(requests, "by_h11", lambda data: by_h11(data.replace(b"hello", b"other")))
    with pytest.raises(AssertionError, match="h11 sees"):
        compare(CORPUS["a length"])
