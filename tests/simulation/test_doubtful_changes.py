"""Changes of topics and routers whose sync has failed: the client was told 503, and the next start finds them.

Nothing that is answered in between may say the contrary: that there is no such thing, or that it is as it was.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from tests.simulation.disk import Fault
from tests.simulation.world import Life, World, settings
from topics.errors import ApiError
from topics.model import RouterPatch, TopicConfigPatch

ROUTER: Final = RouterPatch(source="from", dest="into")
Script = Callable[[Life], Awaitable[None]]


@asynccontextmanager
async def refused(code: str = "read_only") -> AsyncIterator[None]:
    """The body is refused so."""
    with pytest.raises(ApiError) as raised:
        yield
    assert raised.value.code == code


@asynccontextmanager
async def in_doubt(life: Life) -> AsyncIterator[None]:
    """The next sync of a log fails, and the body is refused; what it has written stays in the page cache."""
    fault = life.fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*.log"))
    async with refused():
        yield
    assert fault.hits == 1


def killed_after(script: Script, **config: Any) -> World:
    """The machine after a life that has run `script` and was killed."""
    world = World(config=settings(**config))
    assert world.live(script, end="kill")
    return world.after("kill")


def found_by(world: World, look: Callable[[Life], Any]) -> Any:
    """What the next start shows."""
    found: list[Any] = []

    async def scenario(life: Life) -> None:
        found.append(look(life))

    assert world.live(scenario, end="kill")
    return found[0]


async def both_ends(life: Life) -> None:
    for name in ("from", "into"):
        await life.engine.topic_lifecycle.put(name, TopicConfigPatch())


def test_a_router_whose_creation_has_failed_is_not_said_to_be_away() -> None:
    async def script(life: Life) -> None:
        await both_ends(life)
        async with in_doubt(life):
            await life.engine.routers.put("there", ROUTER)
        async with refused():
            await life.engine.routers.delete("there")
        async with refused():
            await life.engine.routers.put("there", ROUTER, create=False)
        assert not await life.engine.routers.delete("another")

    assert found_by(killed_after(script), lambda life: life.engine.routers.ends("there")) == ("from", "into")


def test_a_router_whose_deletion_has_failed_is_not_said_to_be_there() -> None:
    async def script(life: Life) -> None:
        await both_ends(life)
        for name in ("gone", "another"):
            await life.engine.routers.put(name, ROUTER)
        async with in_doubt(life):
            await life.engine.routers.delete("gone")
        async with refused():
            await life.engine.routers.put("gone", ROUTER)
        assert not (await life.engine.routers.put("another", ROUTER))[1]

    world = killed_after(script)
    assert found_by(world, lambda life: [life.engine.routers.ends(name) for name in ("gone", "another")]) == [
        None,
        ("from", "into"),
    ]


def test_a_router_whose_change_has_failed_is_not_said_to_be_as_it_was() -> None:
    async def script(life: Life) -> None:
        await both_ends(life)
        await life.engine.routers.put("changed", ROUTER)
        async with in_doubt(life):
            await life.engine.routers.put("changed", RouterPatch(preserve_node=False))
        async with refused():
            await life.engine.routers.put("changed", ROUTER)

    async def look(life: Life) -> None:
        assert not life.engine.routers.state("changed").preserve_node

    assert killed_after(script).live(look, end="kill")


def test_a_topic_whose_creation_has_failed_is_not_said_to_be_away() -> None:
    async def script(life: Life) -> None:
        async with in_doubt(life):
            await life.engine.topic_lifecycle.put("there", TopicConfigPatch())
        async with refused():
            await life.engine.topic_lifecycle.delete("there", if_empty=False)
        async with refused():
            await life.engine.topic_lifecycle.put("there", TopicConfigPatch(), create=False)
        assert await life.engine.topic_lifecycle.delete("another", if_empty=False) == (False, [])
        async with refused("topic_not_found"):
            await life.engine.topic_lifecycle.put("another", TopicConfigPatch(), create=False)

    assert found_by(killed_after(script), lambda life: list(life.engine.registry.topics)) == ["there"]


def test_a_topic_that_was_made_again_in_another_shard_is_in_doubt_no_more() -> None:
    async def script(life: Life) -> None:
        async with in_doubt(life):
            await life.engine.topic_lifecycle.put("again", TopicConfigPatch())
        failed = [shard for shard in range(2) if life.store.failed(shard)]
        assert len(failed) == 1
        for i in range(8):  # ids are spread over the shards
            try:
                await life.engine.topic_lifecycle.put("again", TopicConfigPatch())
            except ApiError:
                assert i < 7
            else:
                break
        assert not (await life.engine.topic_lifecycle.put("again", TopicConfigPatch()))[1]
        assert await life.engine.topic_lifecycle.delete("again", if_empty=False) == (True, [])
        assert await life.engine.topic_lifecycle.delete("again", if_empty=False) == (False, [])

    assert found_by(killed_after(script, wal_shards=2), lambda life: list(life.engine.registry.topics)) == []


@pytest.mark.parametrize("deleted", [True, False])
def test_a_topic_whose_change_has_failed_is_not_said_to_be_as_it_was(deleted: bool) -> None:
    async def script(life: Life) -> None:
        await both_ends(life)
        async with in_doubt(life):
            if deleted:
                await life.engine.topic_lifecycle.delete("from", if_empty=False)
            else:
                await life.engine.topic_lifecycle.put("from", TopicConfigPatch(priority=5))
        async with refused():
            await life.engine.topic_lifecycle.put("from", TopicConfigPatch())
        assert not (await life.engine.topic_lifecycle.put("into", TopicConfigPatch()))[1]

    topics = found_by(killed_after(script), lambda life: dict(life.engine.registry.topics))
    assert topics.keys() == ({"into"} if deleted else {"into", "from"})
    assert deleted or topics["from"].config.priority == 5


def test_a_router_is_not_said_to_be_there_whose_source_may_be_away() -> None:
    async def script(life: Life) -> None:
        await both_ends(life)
        engine = life.engine
        names = [f"source-{i}" for i in range(8)]
        for name in names:
            await engine.topic_lifecycle.put(name, TopicConfigPatch())
        source = next(
            name for name in names if engine.registry.topics[name].shard != engine.registry.topics["into"].shard
        )
        routed = RouterPatch(source=source, dest="into")
        await engine.routers.put("routed", routed)
        async with in_doubt(life):
            await engine.topic_lifecycle.delete(source, if_empty=False)
        for name in ("routed", "new"):
            async with refused():
                await engine.routers.put(name, routed)
        assert await engine.routers.delete("routed"), "its own shard is well"

    found = found_by(killed_after(script, wal_shards=2), lambda life: life.engine.routers.ends("routed"))
    assert found is None
