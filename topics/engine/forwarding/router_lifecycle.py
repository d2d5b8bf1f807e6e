"""Routers as a whole: created, updated, deleted, listed (`docs/spec/api.md` section 7), each change synced before it is
answered.

Responsible for the graph of all routers, against which every change is checked before anything is created, and for
adding and removing routers with their topics. Changes take place one at a time. A router belongs to its dest: its
frames are in the dest's log, in the order of the dest's other changes, and its durable state is part of the dest's.
Copying records is the business of `topics.engine.forwarding.forwarders`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import trio
from sortedcontainers import SortedDict

from topics.auth.keys import OPEN, Key
from topics.config import Settings
from topics.engine.commits import Commits
from topics.engine.doubts import Doubts
from topics.engine.forwarding.forwarders import Forwarders
from topics.engine.operations.topic_lifecycle import TopicLifecycle
from topics.engine.registry import Registry, names_with, settled
from topics.engine.topic import Commit, CommitPoint, Topic
from topics.errors import router_not_found, topic_not_found
from topics.model import RouterPatch, RouterState
from topics.routing.router import RouterConfig, resolve_router
from topics.routing.router_graph import RouterGraph
from topics.routing.router_state import Router, kept_origins
from topics.runtime.background import BackgroundTasks
from topics.runtime.clock import Clock
from topics.storage.wal.frames import FrameType, encode_control
from topics.telemetry.figures import RouterFigures
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


class RouterLifecycle:
    """The calls that create, update, delete and list routers. Made once by the engine. A change that was begun goes on
    in a background task if its caller is cancelled."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        registry: Registry,
        *,
        commits: Commits,
        topic_lifecycle: TopicLifecycle,
        forwarders: Forwarders,
        background: BackgroundTasks,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._registry = registry
        self._commits = commits
        self._topic_lifecycle = topic_lifecycle
        self._forwarders = forwarders
        self._background = background
        self._graph = RouterGraph()
        self._names: SortedDict[str, Router] = SortedDict()
        forwarders.is_in_cycle = self._graph.is_in_cycle
        self._doubts = Doubts()
        self._one = trio.Lock()
        """Held during each change."""

    def __len__(self) -> int:
        return len(self._names)

    # -- what there is -----------------------------------------------------------------------------------------------

    def state(self, name: str) -> RouterState:
        """Return the current state of a router. Raises `404 router_not_found`."""
        router = self._names.get(name)
        if router is None:
            raise router_not_found(name)
        return self._state(router)

    def _state(self, router: Router) -> RouterState:
        config = router.config
        return RouterState(
            router=router.name,
            source=config.source,
            dest=config.dest,
            preserve_node=config.preserve_node,
            preserve_tag=config.preserve_tag,
            create_dest=config.create_dest,
            filter=_wire_filter(config),
            allow_cycle=config.allow_cycle,
            guarantee=config.guarantee,
            start=config.start,
            forwarded_total=router.forwarded,
            cursor_seq=router.cursor,
            lag=self._lag(router),
        )

    def _lag(self, router: Router) -> int:
        source = self._registry.by_id.get(router.source_id)
        return max(source.log.head_seq - router.cursor, 0) if source is not None else 0

    def ends(self, name: str) -> tuple[str, str] | None:
        """Return source and dest of a router; None if there is no such router."""
        router = self._names.get(name)
        return None if router is None else (router.config.source, router.config.dest)

    def page(
        self, prefix: str, source: str | None, dest: str | None, after: str | None, page_size: int, key: Key = OPEN
    ) -> tuple[list[RouterState], bool]:
        """Return a page of the routers that `key` covers, in name order, and True if there are more. The cost depends
        on the page, or on the routers of the topic asked for, plus routers whose ends the key does not cover."""
        found: list[RouterState] = []
        for name in self._candidates(key.covered(prefix), source, dest, after):
            config = self._names[name].config
            if (source is not None and config.source != source) or (dest is not None and config.dest != dest):
                continue
            if not (key.covers(config.source) and key.covers(config.dest)):
                continue
            if len(found) == page_size:
                return found, True
            found.append(self._state(self._names[name]))
        return found, False

    def _candidates(
        self, prefixes: Sequence[str], source: str | None, dest: str | None, after: str | None
    ) -> Iterator[str]:
        if source is None and dest is None:
            yield from names_with(self._names, prefixes, after)
            return
        names: Iterable[str] = self._graph.into(dest) if dest is not None else self._graph.out_of(source or "")
        starts = tuple(prefixes)
        yield from (name for name in names if name.startswith(starts) and (after is None or name > after))

    def samples(self, most: int, key: Key) -> tuple[list[RouterFigures], bool]:
        """Return figures of the first routers, by name, whose ends `key` covers, and True if there are more."""
        found: list[RouterFigures] = []
        for name in names_with(self._names, key.covered(""), None):
            router = self._names[name]
            if not (key.covers(router.config.source) and key.covers(router.config.dest)):
                continue
            if len(found) == most:
                return found, True
            found.append(RouterFigures(name, self._lag(router), router.forwarded))
        return found, False

    async def catch_up(self, names: Iterable[str]) -> None:
        """Forward the records that are due now, before a read of these topics (`Forwarders.catch_up`). Topics without
        routers cost nothing. Cancelling leaves nothing behind."""
        topics = self._registry.topics
        routed = [name for name in names if name in topics and topics[name].incoming]
        if routed:
            upstream = dict.fromkeys(other for name in routed for other in self._graph.upstream_first(name))
            await self._forwarders.catch_up([topics[other] for other in upstream if other in topics])

    # -- changes -----------------------------------------------------------------------------------------------------

    async def put(self, name: str, patch: RouterPatch, *, create: bool = True) -> tuple[RouterState, bool]:
        """Create or update a router. Return its state, and True if it was created. Synced when it returns. Without
        `create`, raises 404 for a router that is missing.

        Raises the refusals of `docs/spec/api.md` section 7, all of them before anything is created, and `503 read_only`
        if the last change of the router, or of one of its topics, has failed and may be on disk all the same.
        Cancelling before the change is decided leaves nothing; after that it takes place all the same.
        """
        self._check_free()
        return await self._background.finish(partial(self._put, name, patch, create), self._commits.wait_begun)

    def _check_free(self) -> None:
        """Refuse a change while another one waits for room on the disk, behind which it would wait. Raises 503."""
        if self._one.locked():
            self._commits.check_all_unblocked()

    async def _put(self, name: str, patch: RouterPatch, create: bool) -> tuple[RouterState, bool]:
        async with self._one:
            while True:
                self._doubts.check(name)
                known = self._names.get(name)
                if known is None and not create:
                    raise router_not_found(name)
                config = resolve_router(known.config if known is not None else None, patch, router=name)
                self._check_ends(config)
                if known is not None and config == known.config:
                    return self._state(known), False
                self._graph.check(name, config.source, config.dest, config.allow_cycle)
                ends = await self._ends(config, known)
                if ends is None:
                    continue  # topics were made or deleted meanwhile: check everything again
                source, dest = ends
                self._commits.check_changeable(dest)
                if known is None:
                    cursor = source.log.head_seq if config.start == "tail" else 0
                    router = Router(name, source.id, cursor, 0, config)
                else:
                    router = Router(name, known.source_id, known.cursor, known.forwarded, config)
                payload = {"router": router.dump()}
                commit = self._commit(dest, FrameType.ROUTER_CREATE, payload, partial(self._settle, router, source))
                with self._doubts.deciding(name):
                    settled = await commit.wait()
                if settled:
                    return self._state(known or router), known is None

    def _check_ends(self, config: RouterConfig) -> None:
        """Refuse a router of topics whose deletion has failed and may be on disk: a restart would delete it with them.
        Raises 503."""
        for end in (config.source, config.dest):
            if end in self._registry.topics:  # else it is made anew, also if an older one has left files
                self._topic_lifecycle.doubts.check(end)

    async def _ends(self, config: RouterConfig, known: Router | None) -> tuple[Topic, Topic] | None:
        """Return the source and the dest of a router, made if they are missing. None if it had to wait, or if one was
        deleted meanwhile: then the caller starts over."""
        if known is None:
            self._check_room(config)
            self._commits.check_all_writable()
            await self._topic_lifecycle.create_missing((config.source, config.dest))
        topics = self._registry.topics
        source, dest = topics.get(config.source), topics.get(config.dest)
        if source is None or dest is None:
            return None
        return (source, dest) if await settled(dest, source) else None

    def _check_room(self, config: RouterConfig) -> None:
        """Refuse the creation of missing topics if that is not allowed. Raises 404 and 429, and creates nothing."""
        maximum = self._settings.max_routers
        if maximum and len(self._names) >= maximum:
            raise self._registry.throttle("max_routers", maximum)
        if not config.create_dest and config.dest not in self._registry.topics:
            raise topic_not_found(config.dest)

    def _settle(self, router: Router, source: Topic, commit: Commit) -> bool:
        """The commit point of a RouterCreate. Returns False if the source was deleted meanwhile, and the router with
        it."""
        dest = commit.topic
        if source.deleted:
            return False
        known = self._names.get(router.name)
        if known is not None:
            known.config = router.config
            router = known
        incoming = dest.incoming = dest.incoming or {}
        incoming[router.name] = router
        self._add(router)
        dest.origins = kept_origins(dest.origins, incoming.values())
        dest.mark_changed()
        if known is None:
            self._forwarders.begin(router, source, dest)
        else:
            self._forwarders.reconsider(router.name)
        return True

    def _add(self, router: Router) -> None:
        self._names[router.name] = router
        config = router.config
        self._graph.add(router.name, config.source, config.dest, config.allow_cycle)

    async def delete(self, name: str) -> bool:
        """Delete a router. Return True if it existed. Its copies stay. Synced when it returns. Raises `503 read_only`
        if its last change has failed and may be on disk all the same."""
        self._check_free()
        return await self._background.finish(partial(self._delete, name), self._commits.wait_begun)

    async def _delete(self, name: str) -> bool:
        async with self._one:
            while True:
                self._doubts.check(name)
                router = self._names.get(name)
                if router is None:
                    return False
                dest = self._registry.topics[router.config.dest]
                if await settled(dest):
                    break
            self._commits.check_changeable(dest)
            commit = self._commit(dest, FrameType.ROUTER_DELETE, {"name": name}, self._remove_at, name)
            with self._doubts.deciding(name):
                await commit.wait()
            return True

    def _remove_at(self, name: str, commit: Commit) -> None:
        if name in self._names:  # else it was deleted with its source
            self._remove(self._names[name], commit.topic)

    def _remove(self, router: Router, dest: Topic) -> None:
        self._forwarders.end(router.name)
        self._forget(router, dest)

    def _forget(self, router: Router, dest: Topic) -> None:
        del self._names[router.name]
        self._graph.remove(router.name)
        assert dest.incoming is not None
        del dest.incoming[router.name]
        dest.origins = kept_origins(dest.origins, dest.incoming.values())
        if not dest.incoming:
            dest.incoming = None
        dest.mark_changed()

    def _commit(self, dest: Topic, kind: FrameType, payload: dict[str, Any], apply: Any, *args: Any) -> Commit:
        data = encode_control(kind, payload, topic_id=dest.id, ts=self._registry.now_ms())
        commit = Commit(dest, data, 1, CommitPoint.SYNCED, partial(apply, *args), self._clock.perf_ns)
        self._commits.send(commit)
        return commit

    # -- topics ------------------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Take over the routers that recovery has found, once all topics are there."""
        for dest in self._registry.by_id.values():
            for router in list((dest.incoming or {}).values()):
                source = self._registry.by_id.get(router.source_id)
                older = self._names.get(router.name)
                if older is not None:  # salvage has dropped the frame that deleted it
                    log.error("router_dropped", router=router.name, dest=older.config.dest)
                    self._remove(older, self._registry.topics[older.config.dest])
                self._add(router)
                if source is None:
                    self._forget(router, dest)  # its source was another topic of that name
                else:
                    self._forwarders.begin(router, source, dest)

    def drop_replayed(self, dest: Topic, incoming: Mapping[str, Router]) -> None:
        """Drop the routers into a topic that are not among `incoming`, those that replay has found."""
        for name, router in list((dest.incoming or {}).items()):
            if incoming.get(name) is not router:
                self._remove(router, dest)

    def adopt_replayed(self, dest: Topic, incoming: Mapping[str, Router]) -> None:
        """Take over the routers into a topic that replay has found, when all topics are there. One whose source does
        not exist has gone with it."""
        for name, router in incoming.items():
            source = self._registry.by_id.get(router.source_id)
            known = self._names.get(name)
            if known is not None and known is not router:
                self._remove(known, self._registry.topics[known.config.dest])
                known = None
            if source is None:
                continue
            dest.incoming = dest.incoming or {}
            dest.incoming[name] = router
            self._add(router)
            if known is None:
                self._forwarders.begin(router, source, dest)
        dest.origins = kept_origins(dest.origins, (dest.incoming or {}).values())

    def forget_topic(self, topic: Topic) -> list[str]:
        """Delete every router of a topic that is deleted. Return their names."""
        gone = self._graph.routers_of(topic.name)
        for name in gone:
            router = self._names[name]
            self._remove(router, self._registry.topics[router.config.dest])
        return gone


def _wire_filter(config: RouterConfig) -> Any:
    """Return the filter of a router as answers have it."""
    if config.record_filter is not None:
        return msgspec.Raw(config.record_filter.text.encode())
    return None if config.filter is None else config.filter.to_wire()
