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

`unevaluatedProperties` and `unevaluatedItems` judge the children that no other subschema has evaluated. To find those
out, the library asks the subschemas of the same value, and theirs in turn, and judges some of them again: twice the
work at each level, and more where these have such a keyword too. So a subschema that may be asked is on the graph a
second time, as what it does then (`_with_questions`).

Numbers are dear: a comparison of two that are not both integers of 64 bits takes as long as 30 tokens, and that of
texts or objects one. So a number in the schema counts for as many, and the tokens with them are the *width*.

Explaining a violation is dearer: for that the library remembers nothing, and builds an error for each alternative.
`Cost.explaining` bounds it for values of a known depth; it builds no error for each number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Final

from topics.schemas.schema_walk import PATTERN_TOKENS, BadSchema, Subschema

MOST: Final = 10**9
"""Counts stop at this number (tokens)."""

MAX_WIDTH: Final = 100_000
"""The most work (tokens) at a single value that a schema may cause, about a millisecond, but for comparing numbers."""

Layers = list[int]
"""The work (tokens) at a value, for each level below the value where a path begins."""


@dataclass(slots=True)
class Cost:
    """The bounds of one schema. `width` is the most work at one value, in tokens of about 15 ns, that of comparing
    numbers included."""

    width: int
    _nodes: Sequence[Subschema]
    _order: Sequence[int]
    """The subschemas, each behind those that it applies to the same value."""
    _levels: tuple[list[list[int]], list[list[int]]] = field(default_factory=lambda: ([], []))

    def explaining(self, depth: int, *, numbers: bool) -> int:
        """The most work of finding all violations of a value that nests `depth` levels, at each of its values: with
        what comparing numbers costs, or without."""
        nodes, levels = self._nodes, self._levels[numbers]
        while len(levels) <= depth:
            below = levels[-1] if levels else [0] * len(nodes)
            level = [0] * len(nodes)
            for i in self._order:
                node = nodes[i]
                work = node.tokens + numbers * node.numbers + sum(level[j] for j in node.same)
                work += sum(below[j] for j in node.one_child) + sum(below[j] for j in node.each_child)
                level[i] = min(work, MOST)
            levels.append(level)
        return levels[depth][0]


def cost_of(nodes: Sequence[Subschema]) -> Cost:
    """Return the bounds of a schema. Raises BadSchema if judging might not end, or be too much work at one value."""
    _, loops = _order(nodes, lambda node: node.same, range(len(nodes)))
    if loops:
        raise BadSchema("refers to itself at the same value, so that judging would not end")
    _, targets = _order(nodes, _following, (0,))
    nodes = _with_questions(nodes)
    whole, loops = _order(nodes, _following, (0, *targets), ends=targets)
    if loops:
        raise BadSchema(
            "has unevaluatedProperties or unevaluatedItems that judge a recursion again at each level of it"
        )
    if _width(nodes, whole, targets, numbers=False) > MAX_WIDTH:
        raise BadSchema("is too much work: alternatives, references and unevaluated... multiply each other")
    order, _ = _order(nodes, lambda node: node.same, range(len(nodes)))
    return Cost(_width(nodes, whole, targets, numbers=True), nodes, order)


def _with_questions(nodes: Sequence[Subschema]) -> Sequence[Subschema]:
    """Return the subschemas, and behind them each once more, as what it does when it is asked which children it
    evaluates. Who has `unevaluated` asks itself."""
    if not any(node.unevaluated for node in nodes):
        return nodes
    count = len(nodes)
    judging = [
        replace(node, same=[*node.same, count + i]) if node.unevaluated else node for i, node in enumerate(nodes)
    ]
    asked = [
        Subschema(
            tokens=node.tokens,
            numbers=node.numbers,
            pattern_properties=node.pattern_properties,
            same=[*node.again, *(count + i for i in node.asked)],
            one_child=node.unevaluated,
            each_child=node.contains,
        )
        for node in nodes
    ]
    return judging + asked


def _following(node: Subschema) -> Sequence[int]:
    return [*node.same, *node.one_child, *node.each_child]


def _width(nodes: Sequence[Subschema], order: Sequence[int], targets: set[int], *, numbers: bool) -> int:
    """The most work at a single value: with what comparing numbers costs, or without."""
    layers: dict[int, Layers] = {}
    for i in order:
        layers[i] = _layers(nodes[i], lambda j: [1] if j in targets else layers[j], numbers=numbers)
    return max(layers[0]) + sum(min(sum(layers[i]), MOST) for i in targets)


def _layers(node: Subschema, of: Callable[[int], Layers], *, numbers: bool) -> Layers:
    """The layers of the paths that begin at a subschema."""
    below = [0, PATTERN_TOKENS * node.pattern_properties]
    total = [node.tokens + numbers * node.numbers, *_most(of(j) for j in node.one_child)]
    return _sum((total, below, *([0, *of(j)] for j in node.each_child), *(of(j) for j in node.same)))


def _most(found: Iterable[Layers]) -> Layers:
    return [max(level) for level in zip_longest(*found, fillvalue=0)]


def _sum(found: Iterable[Layers]) -> Layers:
    return [min(sum(level), MOST) for level in zip_longest(*found, fillvalue=0)]


def _order(
    nodes: Sequence[Subschema],
    following: Callable[[Subschema], Sequence[int]],
    starts: Iterable[int],
    *,
    ends: Collection[int] = (),
) -> tuple[list[int], set[int]]:
    """Return what can be reached from `starts`, each behind what follows it, and the targets of the edges that close a
    cycle. Edges to `ends` do not count. A depth-first search."""
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
            left += [(j, False) for j in following(nodes[i]) if j not in ends]
    return order, targets
