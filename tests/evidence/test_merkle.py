"""Trees and proofs, compared with the vectors of Certificate Transparency and with another implementation."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import accumulate, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tlog_scales.tlog import ConsistencyProof, InclusionProof

from topics.evidence.merkle import EMPTY_ROOT, GrowingTree, Leaves, blank_root, inner_node, perfect_root
from topics.evidence.proofs import (
    BadProof,
    check_consistency,
    check_inclusion,
    prove_consistency,
    prove_inclusion,
    root_of_range,
)
from topics.evidence.record_leaf import BLANK, leaves_of, record_leaf

SIZES = 300

# Entries and roots of Certificate Transparency's own tests (RFC 6962, section 2.1).
ENTRIES = ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)


class Tree:
    """The definition of RFC 6962, section 2.1, with the roots of complete subtrees kept."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self.levels = [list(leaves)]
        while len(self.levels[-1]) > 1:
            below = self.levels[-1]
            pairs = zip(below[::2], below[1::2], strict=False)
            self.levels.append([sha256(b"\x01" + left + right).digest() for left, right in pairs])

    def root_of(self, level: int, index: int) -> bytes:
        assert index % (1 << level) == 0
        return self.levels[level][index >> level]


def made(size: int) -> list[bytes]:
    return [sha256(b"leaf %d" % i).digest() for i in range(size)]


def test_the_vectors_of_rfc_6962() -> None:
    leaves = [sha256(b"\x00" + bytes.fromhex(entry)).digest() for entry in ENTRIES]
    tree = GrowingTree()
    assert tree.root == EMPTY_ROOT == sha256().digest()
    for leaf, root in zip(leaves, ROOTS, strict=True):
        tree.add(Leaves(leaf))
        assert tree.root.hex() == root
    node = Tree(leaves)
    # Audit paths and a consistency proof from the same tests.
    assert [one.hex()[:8] for one in prove_inclusion(node, 0, 8)] == ["96a296d2", "5f083f0a", "6b47aaf2"]
    assert [one.hex()[:8] for one in prove_inclusion(node, 5, 8)] == ["bc1a0643", "ca854ea1", "d37ee418"]
    assert [one.hex()[:8] for one in prove_inclusion(node, 2, 3)] == ["fac54203"]
    assert [one.hex()[:8] for one in prove_consistency(node, 6, 8)] == ["0ebc5d34", "ca854ea1", "d37ee418"]
    assert prove_consistency(node, 8, 8) == []


LEAVES = made(SIZES)
TREE = Tree(LEAVES)
PREFIXES = [EMPTY_ROOT, *(root_of_range(TREE, 0, size) for size in range(1, SIZES + 1))]


@pytest.mark.slow
def test_every_leaf_of_every_tree_is_proved_to_another_implementation() -> None:
    for size in range(1, SIZES + 1):
        for index in range(size):
            path = prove_inclusion(TREE, index, size)
            InclusionProof(index, size, path).check(LEAVES[index], PREFIXES[size])
            if index % 7 == size % 7:
                check_inclusion(LEAVES[index], index, size, path, PREFIXES[size])


@pytest.mark.slow
def test_every_pair_of_sizes_is_proved_to_another_implementation() -> None:
    for second in range(1, SIZES + 1):
        for first in range(1, second + 1):
            path = prove_consistency(TREE, first, second)
            ConsistencyProof(first, second, path).check(PREFIXES[first], PREFIXES[second])
            if first % 7 == second % 7:
                check_consistency(first, PREFIXES[first], second, PREFIXES[second], path)


@given(st.data())
def test_a_proof_of_anything_else_is_none(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 64))
    index = data.draw(st.integers(0, size - 1))
    path = prove_inclusion(TREE, index, size)
    root, leaf = PREFIXES[size], LEAVES[index]
    other = data.draw(st.integers(0, size).filter(lambda other: other != index))
    wrong_path = list(path)
    place = data.draw(st.integers(0, len(path) - 1))
    wrong_path[place] = sha256(wrong_path[place]).digest()
    for arguments in (
        (leaf, other, size, path, root),
        (LEAVES[other], index, size, path, root),
        (leaf, index, size, wrong_path, root),
        (leaf, index, size, path[:-1], root),
        (leaf, index, size, [*path, leaf], root),
        (leaf, index, size, path, PREFIXES[size - 1]),
        (leaf, size, size, path, root),
    ):
        with pytest.raises(BadProof):
            check_inclusion(*arguments)


@given(st.data())
def test_a_proof_of_another_beginning_is_none(data: st.DataObject) -> None:
    second = data.draw(st.integers(2, 64))
    first = data.draw(st.integers(1, second - 1))
    path = prove_consistency(TREE, first, second)
    old, new = PREFIXES[first], PREFIXES[second]
    for arguments in (
        (first, new, second, new, path),
        (first, old, second, old, path),
        (first, old, second, new, [*path, old]),
        (first, old, second, new, path[:-1]),
        (first, old, first, new, path),
        (second, new, first, old, path),
        (0, old, second, new, path),
    ):
        with pytest.raises(BadProof):
            check_consistency(*arguments)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12))
def test_a_tree_is_the_same_however_it_grew(parts: list[tuple[int, int]]) -> None:
    hashes = made(sum(count for count, _ in parts))
    ends = list(accumulate((count for count, _ in parts), initial=0))
    grown, flat = GrowingTree(), []
    for (count, blank), at in zip(parts, ends, strict=False):
        grown.add(Leaves(b"".join(hashes[at : at + count]), blank))
        flat += [*hashes[at : at + count], *[BLANK] * blank]
    at_once = GrowingTree()
    at_once.add(Leaves(b"".join(flat)))
    assert grown.size == at_once.size == len(flat)
    assert grown.root == at_once.root == (root_of_range(Tree(flat), 0, len(flat)) if flat else EMPTY_ROOT)
    again = GrowingTree.of(grown.size, grown.edge)
    again.add(Leaves(BLANK))
    grown.add(Leaves(BLANK))
    assert again.root == grown.root


def test_a_run_of_blank_leaves_costs_nothing() -> None:
    assert blank_root(3) == perfect_root(BLANK * 8)
    tree = GrowingTree()
    tree.add(Leaves(LEAVES[0], 1 << 42))
    assert tree.size == (1 << 42) + 1
    assert tree.root == inner_node(root_of_range(_Sparse(), 0, 1 << 42), BLANK)


class _Sparse:
    """A leaf and blank ones behind it."""

    def root_of(self, level: int, index: int) -> bytes:
        if index:
            return blank_root(level)
        root = LEAVES[0]
        for below in range(level):
            root = inner_node(root, blank_root(below))
        return root


def test_an_edge_that_cannot_be_is_refused() -> None:
    for size, edge in ((1, b""), (2, LEAVES[0] * 2), (0, LEAVES[0]), (1, LEAVES[0][:31])):
        with pytest.raises(ValueError, match="edge"):
            GrowingTree.of(size, edge)


def test_the_leaf_of_a_record() -> None:
    written = (
        b"\x00"
        + (7).to_bytes(8, "little")
        + (8).to_bytes(8, "little")
        + (9).to_bytes(8, "little")
        + b"\x01\x00\x00\x00n"
        + b"\x00\x00\x00\x00"
        + b"\x0a\x00\x00\x00"
        + b'{"a":"\xc3\xa4"}'[:10]
        + b"\x02\x00\x00\x0042"
    )
    assert record_leaf(7, 8, 9, b"n", b"", '{"a":"ä"}'.encode()[:10], b"42") == sha256(written).digest()
    assert sha256(b"\x00").digest() == BLANK


def test_the_leaves_of_columns_are_those_of_the_records() -> None:
    datas = [b"1", b"22", b"333"]
    names, metas = ["n", None, "\u00fc"], [b"", b'{"m":"1"}', b""]
    for nodes, tags, of_meta in product((None, names), (None, names), (None, metas)):
        expected = [
            record_leaf(
                7,
                10 + i,
                99,
                (nodes[i] or "").encode() if nodes else b"",
                (tags[i] or "").encode() if tags else b"",
                of_meta[i] if of_meta else b"",
                data,
            )
            for i, data in enumerate(datas)
        ]
        assert leaves_of(7, 10, 99, datas, nodes=nodes, tags=tags, metas=of_meta) == b"".join(expected)
