"""Which routers lead where, which further one is refused, and in which order a read catches up (`docs/spec/api.md`
section 7).

Topics are the vertices and routers the edges; two topics may have several routers between them, with different
filters. The graph knows names only: whether a topic exists, and what a router copies, is not its business. A topic
that no router touches is not in here and is asked about as freely as any other.

Every question costs what the routers that it concerns cost, not what all of them do: a refusal looks at the dest's
routers and at what is reachable from the dest, an order at what is upstream. All searches have their own stack, so a
chain may be as long as it likes. Routers of a topic are kept sorted by name, hence every answer depends on the graph
alone and not on the order in which it came about.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from topics.errors import ApiError


class Edge(NamedTuple):
    """A router, as far as the graph is concerned."""

    source: str
    dest: str
    allow_cycle: bool


class Graph:
    """The routers by name. `add` does not refuse anything; `check` does, and whoever creates a router asks it first.

    The two are separate because refusals come before anything is created, and because recovery adds what was once
    allowed in an order of its own.
    """

    __slots__ = ("_edges", "_into", "_out_of")

    def __init__(self) -> None:
        self._edges: dict[str, Edge] = {}
        # Per topic, sorted names; no topic has an empty list.
        self._into: dict[str, list[str]] = {}
        self._out_of: dict[str, list[str]] = {}

    def __len__(self) -> int:
        """The number of routers."""
        return len(self._edges)

    def __contains__(self, router: str) -> bool:
        return router in self._edges

    def add(self, router: str, source: str, dest: str, allow_cycle: bool) -> None:
        """`router` leads from `source` to `dest` from now on, and nowhere else if it was here before."""
        assert source != dest, "a router has two topics"
        self.remove(router)
        self._edges[router] = Edge(source, dest, allow_cycle)
        insort(self._out_of.setdefault(source, []), router)
        insort(self._into.setdefault(dest, []), router)

    def remove(self, router: str) -> None:
        """Forget `router`. One that is not in here stays away."""
        edge = self._edges.pop(router, None)
        if edge is not None:
            _discard(self._out_of, edge.source, router)
            _discard(self._into, edge.dest, router)

    def into(self, topic: str) -> list[str]:
        """The routers whose dest `topic` is, sorted by name. A list that the caller may keep."""
        return self._into.get(topic, [])[:]

    def out_of(self, topic: str) -> list[str]:
        """The routers whose source `topic` is, sorted by name. A list that the caller may keep."""
        return self._out_of.get(topic, [])[:]

    def routers_of(self, topic: str) -> list[str]:
        """The routers whose source or dest `topic` is, sorted by name: those that go when the topic is deleted."""
        return sorted(self._into.get(topic, []) + self._out_of.get(topic, []))

    def check(self, router: str, source: str, dest: str, allow_cycle: bool) -> None:
        """Refuse a creation or update of `router` that the rest of the graph does not allow; the graph stays as it is.

        First cycles: `409 router_cycle` if there is a way from `dest` back to `source` and `router` has no
        `allow_cycle`. `detail.cycle` is a shortest one, `source` first and last, and of several always the same.

        Then fan-in: `409 topic_exists_incompatible`, `detail.reason: "router_dest_fan_in"`, if `dest` has routers from
        other sources, unless `router` and all of those have `allow_cycle`. `detail.routers` are those in the way,
        sorted: all from other sources if `router` itself has no `allow_cycle`, else those of them without it.

        The edge that `router` has already counts neither as a way back nor as fan-in. If the new one is equal to it
        there is no refusal: it closes nothing, even if another router with `allow_cycle` has since led a way back. So
        what was accepted once may be said again.
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
        """All topics from which `topic` can be reached, and `topic` itself as the last, each once.

        A source comes before its dests, unless there is a way back from the dest to it. So one pass of forwarding in
        this order brings everything through where there are no cycles.
        """
        order: list[str] = []
        seen = {topic}
        # The topics on the way down from `topic`, each with the routers into it that are still to be looked at. A
        # topic is put in order once its sources are.
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
        """Whether what goes through a router may come back to it."""
        edge = self._edges.get(router)
        return edge is not None and self._cycle(router, edge.source, edge.dest) is not None

    def _sources(self, topic: str) -> Iterator[str]:
        return (self._edges[router].source for router in self._into.get(topic, ()))

    def _cycle(self, router: str, source: str, dest: str) -> list[str] | None:
        # Most new routers come from where nothing arrives: then there is nothing to search, however much is
        # downstream of the dest.
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
