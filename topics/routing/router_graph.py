"""Which routers lead where, which new one is refused, and in which order a read brings topics up to date
(`docs/spec/api.md` section 7).

Topics are the vertices and routers the edges; two topics may have several routers between them, with different filters.
The graph knows names only, not whether a topic exists or what a router copies. A topic without routers is not in the
graph, and every question about it has an answer all the same.

A question costs as much as the routers that it concerns: a refusal looks at the dest's routers and at what is reachable
from the dest, an order at what is upstream. Searches use their own stack, so a chain may have any length. The routers
of a topic are sorted by name, so answers depend on the graph alone and not on the order in which it was built.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from topics.errors import ApiError


class RouterEdge(NamedTuple):
    """A router, as far as the graph is concerned."""

    source: str
    dest: str
    allow_cycle: bool


class RouterGraph:
    """The routers by name. `add` refuses nothing; `check` does, and is called before a router is created.

    They are separate because a refusal must come before anything is created, and because recovery adds routers that
    were allowed once in any order.
    """

    __slots__ = ("_edges", "_into", "_out_of")

    def __init__(self) -> None:
        self._edges: dict[str, RouterEdge] = {}
        # Sorted router names for each topic; no list is empty.
        self._into: dict[str, list[str]] = {}
        self._out_of: dict[str, list[str]] = {}

    def __len__(self) -> int:
        """Return the number of routers."""
        return len(self._edges)

    def __contains__(self, router: str) -> bool:
        return router in self._edges

    def add(self, router: str, source: str, dest: str, allow_cycle: bool) -> None:
        """Let `router` lead from `source` to `dest`, in place of the edge that it had before, if any."""
        assert source != dest, "a router has two topics"
        self.remove(router)
        self._edges[router] = RouterEdge(source, dest, allow_cycle)
        insort(self._out_of.setdefault(source, []), router)
        insort(self._into.setdefault(dest, []), router)

    def remove(self, router: str) -> None:
        """Forget `router`. Does nothing if it is not in the graph."""
        edge = self._edges.pop(router, None)
        if edge is not None:
            _discard(self._out_of, edge.source, router)
            _discard(self._into, edge.dest, router)

    def into(self, topic: str) -> list[str]:
        """Return the routers whose dest is `topic`, sorted by name. A list that the caller may keep."""
        return self._into.get(topic, [])[:]

    def out_of(self, topic: str) -> list[str]:
        """Return the routers whose source is `topic`, sorted by name. A list that the caller may keep."""
        return self._out_of.get(topic, [])[:]

    def routers_of(self, topic: str) -> list[str]:
        """Return the routers whose source or dest is `topic`, sorted by name: those that are deleted with the topic."""
        return sorted(self._into.get(topic, []) + self._out_of.get(topic, []))

    def check(self, router: str, source: str, dest: str, allow_cycle: bool) -> None:
        """Refuse a creation or update of `router` that the rest of the graph does not allow. Does not change the graph.

        First cycles: `409 router_cycle` if there is a way from `dest` back to `source` and `router` has no
        `allow_cycle`. `detail.cycle` is a shortest one, `source` first and last, and of several always the same.

        Then fan-in: `409 topic_exists_incompatible`, `detail.reason: "router_dest_fan_in"`, if `dest` has routers from
        other sources, unless `router` and all of those have `allow_cycle`. `detail.routers` are the routers in the way,
        sorted: all from other sources if `router` itself has no `allow_cycle`, else those of them without it.

        The present edge of `router` counts neither as a way back nor as fan-in. If the new edge equals it there is no
        refusal, even if another router with `allow_cycle` has since led a way back: a request that was accepted once
        may be repeated.
        """
        if self._edges.get(router) == (source, dest, allow_cycle):
            return
        if not allow_cycle:
            cycle = self._cycle(router, source, dest)
            if cycle is not None:
                raise ApiError(
                    "router_cycle",
                    f"router {router!r} would close a cycle of {len(cycle) - 1} topics and has no allow_cycle",
                    detail={"router": router, "cycle": cycle},
                )
        in_the_way = [
            other
            for other in self._into.get(dest, ())
            if other != router
            and (edge := self._edges[other]).source != source
            and not (allow_cycle and edge.allow_cycle)
        ]
        if in_the_way:
            raise ApiError(
                "topic_exists_incompatible",
                f"dest: topic {dest!r} has a router from another source, and not all of them have allow_cycle",
                detail={"reason": "router_dest_fan_in", "router": router, "dest": dest, "routers": in_the_way},
            )

    def upstream_first(self, topic: str) -> list[str]:
        """Return all topics from which `topic` can be reached, and `topic` itself as the last, each once.

        A source comes before its dests, unless there is a way back from the dest to it. So, without cycles, one pass of
        forwarding in this order brings everything up to date.
        """
        order: list[str] = []
        seen = {topic}
        # The path of the search from `topic` upstream, each topic with the routers into it that are still to be
        # examined. A topic is added to the order after its sources.
        stack = [(topic, self._sources(topic))]
        while stack:
            below, sources = stack[-1]
            for source in sources:
                if source not in seen:
                    seen.add(source)
                    stack.append((source, self._sources(source)))
                    break
            else:
                order.append(below)
                stack.pop()
        return order

    def is_in_cycle(self, router: str) -> bool:
        """Return True if records that leave through a router may come back to it."""
        edge = self._edges.get(router)
        return edge is not None and self._cycle(router, edge.source, edge.dest) is not None

    def _sources(self, topic: str) -> Iterator[str]:
        return (self._edges[router].source for router in self._into.get(topic, ()))

    def _cycle(self, router: str, source: str, dest: str) -> list[str] | None:
        # Most new routers have a source that no router leads to: then there is no cycle, and nothing to search.
        if source not in self._into:
            return None
        previous = {dest: source}
        queue = deque((dest,))
        while queue:
            topic = queue.popleft()
            if topic == source:
                return _walk_back(previous, source)
            for name in self._out_of.get(topic, ()):
                onward = self._edges[name].dest
                if name != router and onward not in previous:
                    previous[onward] = topic
                    queue.append(onward)
        return None


def _walk_back(previous: dict[str, str], source: str) -> list[str]:
    cycle = [source]
    while True:
        cycle.append(previous[cycle[-1]])
        if cycle[-1] == source:
            cycle.reverse()
            return cycle


def _discard(routers_of: dict[str, list[str]], topic: str, router: str) -> None:
    routers = routers_of[topic]
    del routers[bisect_left(routers, router)]
    if not routers:
        del routers_of[topic]
