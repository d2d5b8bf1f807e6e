"""An upper bound for the work of judging a value by a schema, computed before judging.

With some schemas of 64 KiB, judging a small value would take for ever: an `anyOf` of two references to an `anyOf` of
two references and so on doubles the work at each level. The library has no limit for this, and holds the interpreter
meanwhile. So the bound is computed from the schema and the number of values in the record alone.

Theory of operation. Judging visits pairs of a value and a subschema. The work at one value is at most the sum of the
*tokens* (`schema_walk`) of the subschemas that are applied to it, each as often as a path leads to it. Paths are
counted on the graph of subschemas, layer by layer: layer j has the subschemas that judge values j levels below the
value where the path begins. Only one of the properties of an object applies to any child, so only the largest of them
counts.

A recursive schema has cycles. The library judges a value by the target of a recursive reference once and remembers the
result. So a path ends at such a target, and new paths begin at each target, at every value. The work at a value is then
the largest layer from the root, plus all layers from each target, because a path to the value may begin at each of its
ancestors.

Explaining a violation takes more work: the library then remembers no results, and builds an error for each alternative.
`Cost.explaining` bounds this work for values of a known depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

from topics.schemas.schema_walk import PATTERN_TOKENS, BadSchema, Subschema

MOST: Final = 10**9
"""Counts stop at this number (tokens)."""

MAX_WIDTH: Final = 100_000
"""The most work (tokens) at a single value that a schema may cause, about a millisecond."""

Layers = list[int]
"""The work (tokens) at a value, for each level below the value where a path begins."""


@dataclass(slots=True)
class Cost:
    """The bounds of one schema. `width` is the most work at one value, in tokens of about 15 ns."""

    width: int
    _nodes: Sequence[Subschema]
    _order: Sequence[int]
    """The indexes of the subschemas. Each comes after the subschemas that it applies to the same value."""
    _levels: list[list[int]] = field(default_factory=list)

    def explaining(self, depth: int) -> int:
        """Return the most work (tokens), for each value in it, of finding all violations of a value that nests `depth`
        levels."""
        nodes = self._nodes
        while len(self._levels) <= depth:
            below = self._levels[-1] if self._levels else [0] * len(nodes)
            level = [0] * len(nodes)
            for i in self._order:
                node = nodes[i]
                work = node.tokens + sum(level[j] for j in node.same)
                work += sum(below[j] for j in node.one_child) + sum(below[j] for j in node.each_child)
                level[i] = min(work, MOST)
            self._levels.append(level)
        return self._levels[depth][0]


def cost_of(nodes: Sequence[Subschema]) -> Cost:
    """Return the bounds of a schema. Raises BadSchema if judging might not end, or might take too much work at one
    value."""
    order, loops = _order(nodes, lambda node: node.same, range(len(nodes)))
    if loops:
        raise BadSchema("refers to itself at the same value, so that judging would not end")
    whole, targets = _order(nodes, lambda node: [*node.same, *node.one_child, *node.each_child], (0,))
    layers: dict[int, Layers] = {}
    for i in whole:
        layers[i] = _layers(nodes[i], lambda j: [1] if j in targets else layers[j])
    width = max(layers[0]) + sum(min(sum(layers[i]), MOST) for i in targets)
    if width > MAX_WIDTH:
        raise BadSchema("might take too much work: alternatives and references multiply each other")
    return Cost(width, nodes, order)


def _layers(node: Subschema, of: Callable[[int], Layers]) -> Layers:
    """Return the layers of the paths that begin at a subschema."""
    below = [0, PATTERN_TOKENS * node.pattern_properties]
    total = [node.tokens, *_most(of(j) for j in node.one_child)]
    return _sum((total, below, *([0, *of(j)] for j in node.each_child), *(of(j) for j in node.same)))


def _most(found: Iterable[Layers]) -> Layers:
    return [max(level) for level in zip_longest(*found, fillvalue=0)]


def _sum(found: Iterable[Layers]) -> Layers:
    return [min(sum(level), MOST) for level in zip_longest(*found, fillvalue=0)]


def _order(
    nodes: Sequence[Subschema], following: Callable[[Subschema], Sequence[int]], starts: Iterable[int]
) -> tuple[list[int], set[int]]:
    """Return the nodes that can be reached from `starts`, each after the nodes that follow it, and the targets of the
    edges that close a cycle. A depth-first search."""
    order: list[int] = []
    targets: set[int] = set()
    open_: set[int] = set()
    seen: set[int] = set()
    for start in starts:
        left = [(start, False)]
        while left:
            i, done = left.pop()
            if done:
                open_.discard(i)
                order.append(i)
                continue
            if i in seen:
                if i in open_:
                    targets.add(i)
                continue
            seen.add(i)
            open_.add(i)
            left.append((i, True))
            left += [(j, False) for j in following(nodes[i])]
    return order, targets
