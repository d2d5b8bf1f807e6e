"""API keys: how they are written, what of them is kept, what they cover; and the file they may stand in."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.auth.key_file import KeysRefused, read_keys
from topics.auth.keys import ALL, MAX_KEYS, OPEN, Key, Keyring, MalformedKeys, Scope, merged, parse_key_file, parse_keys
from topics.config import ConfigError, load_settings
from topics.errors import ApiError

SECRET = "sesame-4711"
READ, WRITE, DELETE, ADMIN = Scope.READ, Scope.WRITE, Scope.DELETE, Scope.ADMIN


def key_of(entry: str) -> Key:
    [key] = parse_keys(entry)
    return key


def found(entry: str, token: str) -> bool:
    return Keyring(parse_keys(entry)).find(token.encode()) is not None


# How they are written


@pytest.mark.parametrize(
    ("entry", "scopes", "prefixes"),
    [
        ("k", ALL, ()),
        ("k:", ALL, ()),
        ("k::", ALL, ()),
        ("k:read", READ, ()),
        ("k:r", READ, ()),
        ("k:rw", READ | WRITE, ()),
        ("k:r+w:", READ | WRITE, ()),
        ("k:rw+d", READ | WRITE | DELETE, ()),
        ("k:read+write+delete+admin", ALL, ()),
        ("k:a+delete", ADMIN | DELETE, ()),
        ("k::app-", ALL, ("app-",)),
        ("k:w:app-|b", WRITE, ("app-", "b")),
        ("k:w:b|a", WRITE, ("a", "b")),
        ("k:w:team:a|team:b:", WRITE, ("team:a", "team:b:")),
        ("k:w:a|a|ab|b", WRITE, ("a", "b")),
        ("k:w:a>b", WRITE, ("a>b",)),
    ],
)
def test_an_entry_is_a_key_its_scopes_and_its_prefixes(entry: str, scopes: Scope, prefixes: tuple[str, ...]) -> None:
    assert key_of(entry) == Key(hashlib.sha256(b"k").digest(), scopes, prefixes)


MALFORMED = [
    "", ",", " ", f"{SECRET},", f",{SECRET}", f"{SECRET},,other", ":rw", "::app-", f"{SECRET}:root", f"{SECRET}:x",
    f"{SECRET}:rwd", f"{SECRET}:wr", f"{SECRET}:read+", f"{SECRET}:+read", f"{SECRET}:+", f"{SECRET}:READ",
    f"{SECRET}:R", f"{SECRET}:r w", f"{SECRET}:r +w", f"{SECRET}: :", f"{SECRET}:rw:app|", f"{SECRET}:rw:|app",
    f"{SECRET}:rw:|", f"{SECRET}::-app", f"{SECRET}::.app", f"{SECRET}:::app", f"{SECRET}::a/b", f"{SECRET}::a b",
    f"{SECRET}::a*", f"{SECRET}::{'a' * 256}", f"{SECRET}::\xe9", f"{SECRET},{SECRET}", f"{SECRET}:r,other,{SECRET}:w",
    f"{SECRET} x", f"{SECRET}\tx", f"{SECRET}\nx", f"{SECRET}\r\nx", f"{SECRET}\x01", f"{SECRET}\x7f", f"{SECRET}\xe9",
]  # fmt: skip


@pytest.mark.parametrize("text", MALFORMED, ids=ascii)
def test_a_malformed_list_refuses_the_start_and_is_not_shown(text: str) -> None:
    with pytest.raises(MalformedKeys) as caught:
        parse_keys(text)
    assert SECRET not in repr(caught.value)
    with pytest.raises(ConfigError) as refused:
        load_settings({"TOPICS_API_KEYS": text})
    [mistake] = refused.value.mistakes
    assert mistake.startswith("TOPICS_API_KEYS")
    assert SECRET not in str(refused.value)


def test_a_mistake_says_where_it_is() -> None:
    with pytest.raises(MalformedKeys, match="3"):
        parse_keys("a,b,c:root,d")
    with pytest.raises(MalformedKeys, match="4"):
        parse_key_file("# one\n\na\nb:root\n")


TOKENS = st.text([chr(code) for code in range(33, 127) if chr(code) not in ",:"], min_size=1, max_size=20)
NAMES = st.text("abAB01-._:>", min_size=1, max_size=6)
PREFIXES = NAMES.filter(lambda name: name[0].isalnum())
WORDS = {READ: ["r", "read"], WRITE: ["w", "write"], DELETE: ["d", "delete"], ADMIN: ["a", "admin"]}


@st.composite
def entries(draw: st.DrawFn) -> tuple[str, set[Scope], list[str]]:
    """A token, the scopes and the prefixes of a key; none of either is all."""
    return draw(TOKENS), draw(st.sets(st.sampled_from(list(WORDS)))), draw(st.lists(PREFIXES, max_size=4))


def written(draw: Any, token: str, scopes: set[Scope], prefixes: list[str]) -> str:
    words = "+".join(draw(st.sampled_from(WORDS[scope])) for scope in draw(st.permutations(sorted(scopes, key=str))))
    if prefixes:
        return f"{token}:{words}:{'|'.join(prefixes)}"
    return f"{token}:{words}" if words else draw(st.sampled_from([token, f"{token}:", f"{token}::"]))


@given(st.data(), st.lists(entries(), min_size=1, max_size=6, unique_by=lambda entry: entry[0]), NAMES, TOKENS)
def test_whatever_is_written_is_what_is_allowed(
    data: st.DataObject, keys: list[tuple[str, set[Scope], list[str]]], name: str, stranger: str
) -> None:
    texts = [written(data.draw, *key) for key in keys]
    in_file = [text for text in texts if not text.startswith("#")]
    for ring in (Keyring(parse_keys(",".join(texts))), Keyring(merged(parse_key_file("\n".join(in_file))))):
        assert len(ring) in (len(texts), len(in_file))
        for (token, scopes, prefixes), text in zip(keys, texts, strict=True):
            key = ring.find(token.encode())
            if key is None:
                assert text.startswith("#")
                assert len(ring) < len(texts)
                continue
            assert {scope for scope in Scope if scope in key.scopes} == (scopes or set(Scope))
            assert key.covers(name) is (not prefixes or any(name.startswith(prefix) for prefix in prefixes))
            assert ring.current(key) == key
        if stranger not in [token for token, _, _ in keys]:
            assert ring.find(stranger.encode()) is None


# What of them is kept


def test_nothing_of_a_key_is_kept_but_its_digest() -> None:
    settings = load_settings({"TOPICS_API_KEYS": f"{SECRET}:r:a,other"})
    [key, _] = settings.api_keys
    assert key.digest == hashlib.sha256(SECRET.encode()).digest()
    everything = [repr(settings), str(settings), repr(key), repr(Keyring(settings.api_keys)), key.name]
    assert not [text for text in everything if SECRET in text or "sesame" in text]
    assert key.name == f"key-{key.digest.hex()[:8]}"
    assert key.digest.hex() not in key.name


@pytest.mark.parametrize("token", ["a", "b", "c", "nobody", ""])
def test_a_token_is_compared_with_every_key_whatever_it_is(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    ring = Keyring(parse_keys("a,b,c"))
    compared = []
    compare_digest = hmac.compare_digest

    def count(one: bytes, other: bytes) -> bool:
        compared.append({one, other})
        return compare_digest(one, other)

    monkeypatch.setattr(hmac, "compare_digest", count)
    key = ring.find(token.encode())
    digest = hashlib.sha256(token.encode()).digest()
    assert [pair - {digest} for pair in compared] == [{other.digest} - {digest} for other in ring]
    assert (key is not None) is (token in ("a", "b", "c"))


@pytest.mark.parametrize("token", ["", "k", "key:r", "KEY", "key ", " key", "keykey", "key:"])
def test_a_token_is_the_whole_key_and_nothing_else(token: str) -> None:
    assert not found("key:r", token)
    assert found("key:r", "key")


# What they cover


@given(st.lists(PREFIXES, max_size=5), st.text("abAB01-._:>", max_size=4), st.lists(NAMES, max_size=20))
def test_the_covered_ranges_hold_what_is_covered_once_and_in_order(
    prefixes: list[str], asked: str, names: list[str]
) -> None:
    key = key_of("k::" + "|".join(prefixes))
    ranges = key.covered(asked)
    assert ranges == sorted(set(ranges))
    for name in [*names, *prefixes, asked, asked + "a", *(prefix + "a" for prefix in prefixes)]:
        holding = [one for one in ranges if name.startswith(one)]
        assert len(holding) == (1 if key.covers(name) and name.startswith(asked) else 0)


def test_what_is_not_covered_is_refused_and_named() -> None:
    key = key_of("k:r:mine-|our.")
    for name in ("mine-", "mine-a", "our.x"):
        key.check_name(name)
    for name in ("mine", "Mine-a", "xmine-a", "ours", ""):
        with pytest.raises(ApiError) as caught:
            key.check_name(name, "dest")
        assert (caught.value.code, caught.value.detail) == ("forbidden", {"dest": name})


def test_no_scope_implies_another() -> None:
    for scope in Scope:
        key = Key(b"x", scope, ())
        key.check_scope(scope)
        for other in Scope:
            if other is not scope:
                with pytest.raises(ApiError) as caught:
                    key.check_scope(scope | other)
                assert caught.value.code == "forbidden"
                assert caught.value.detail == {"missing": [str(other.name).lower()]}


def test_where_there_are_no_keys_everybody_may_do_everything() -> None:
    assert load_settings({}).api_keys == ()
    assert not Keyring()
    assert Keyring().current(OPEN) is OPEN
    for scope in Scope:
        OPEN.check_scope(scope)
    OPEN.check_name("anything")
    assert OPEN.covered("a") == ["a"]


def test_a_key_may_have_other_rights_by_now_or_none() -> None:
    key = key_of("k:r:a")
    assert Keyring(parse_keys("other,k:w")).current(key) == key_of("k:w")
    assert Keyring(parse_keys("other")).current(key) is None
    assert Keyring(parse_keys("other")).current(OPEN) is None


def test_there_is_an_end_to_how_many() -> None:
    parse_keys(",".join(f"k{number}" for number in range(MAX_KEYS)))
    with pytest.raises(MalformedKeys, match=str(MAX_KEYS)):
        parse_keys(",".join(f"k{number}" for number in range(MAX_KEYS + 1)))
    half = parse_keys(",".join(f"k{number}" for number in range(MAX_KEYS // 2 + 1)))
    other = parse_keys(",".join(f"l{number}" for number in range(MAX_KEYS // 2 + 1)))
    with pytest.raises(MalformedKeys):
        merged(half, other)


# The file


def keys_of(path: Path, keys: str = "") -> tuple[Sequence[Key], Path | None]:
    environ = {"TOPICS_API_KEYS_FILE": str(path)} | ({"TOPICS_API_KEYS": keys} if keys else {})
    settings = load_settings(environ)
    return settings.api_keys, settings.api_keys_file


def test_a_file_holds_an_entry_a_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"\n# the readers\n  a:r\r\n\r\n\tb:w:x|y \n   # no more\nc#d")
    ring = read_keys(*keys_of(path))
    assert [key.scopes for key in ring] == [READ, WRITE, ALL]
    assert ring.find(b"c#d") is not None
    assert ring.find(b"# the readers") is None
    both = read_keys(*keys_of(path, "boss,other:r"))
    assert len(both) == 5
    assert both.find(b"a") is not None
    assert both.find(b"boss") is not None


@pytest.mark.parametrize(
    "content",
    [f"a\n{SECRET}:root".encode(), f"{SECRET}\n{SECRET}".encode(), f"{SECRET} # a note".encode(), b"\xff", b":r",
     f"{SECRET},other".encode(), f"boss\n{SECRET}".encode(), b"x" * (5 << 20), f"{SECRET}\0".encode()],
    ids=lambda content: repr(content[:20]),
)  # fmt: skip
def test_a_bad_file_is_refused_by_its_name_and_is_not_shown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(KeysRefused, match="TOPICS_API_KEYS_FILE") as caught:
        read_keys(*keys_of(path, "boss"))
    assert SECRET not in str(caught.value)
    assert "xxxx" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_or_none_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path, tmp_path / "a" / "b"):
        for keys in ("", "boss"):
            with pytest.raises(KeysRefused, match="TOPICS_API_KEYS_FILE"):
                read_keys(*keys_of(path, keys))


def test_a_file_without_keys_leaves_nobody_without_a_check(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# nobody yet\n\n")
    with pytest.raises(KeysRefused, match="TOPICS_API_KEYS_FILE"):
        read_keys(*keys_of(path))
    assert len(read_keys(*keys_of(path, "boss"))) == 1
