"""Which names a daemon serves, if others serve the rest."""

from __future__ import annotations

import pytest

from topics.auth.served_names import EVERY_NAME, ServedNames
from topics.errors import ApiError

SERVED = ServedNames(("eu.", "us.west"))


@pytest.mark.parametrize("name", ["eu.orders", "eu.", "us.west", "us.west-2"])
def test_names_with_one_of_the_prefixes_are_here(name: str) -> None:
    SERVED.check(name)
    assert SERVED.has(name)


@pytest.mark.parametrize("name", ["eu", "us.east", "Eu.orders", "a.eu.orders"])
def test_others_are_not_here(name: str) -> None:
    assert not SERVED.has(name)
    with pytest.raises(ApiError) as caught:
        SERVED.check(name, "dest")
    assert (caught.value.status, caught.value.code, caught.value.detail) == (421, "not_here", {"dest": name})


@pytest.mark.parametrize("prefix", ["", "e", "us.", "eu.x"])
def test_a_prefix_is_here_if_some_names_below_it_are(prefix: str) -> None:
    SERVED.check_prefix(prefix)


def test_a_prefix_without_such_names_is_not_here() -> None:
    with pytest.raises(ApiError, match="does not serve"):
        SERVED.check_prefix("as.")


def test_without_prefixes_every_name_is_here() -> None:
    assert not EVERY_NAME
    EVERY_NAME.check("anything")
    EVERY_NAME.check_prefix("anything")
