"""Every node computes the same owner, and a join or a death moves only the chunks that it must."""

from __future__ import annotations

from collections import Counter

import pytest

from bdn.digest import Digest
from bdn.roster import Node, Roster, parse_nodes

CHUNKS = [Digest.of(i.to_bytes(4, "big")) for i in range(2000)]


def roster(*names: str) -> Roster:
    return Roster(tuple(Node(n) for n in names))


def test_order_of_the_member_list_decides_nothing() -> None:
    one, two = roster("a", "b", "c"), roster("c", "a", "b")
    assert all(one.ranked(c) == two.ranked(c) for c in CHUNKS[:50])


def test_a_death_moves_only_the_dead_nodes_chunks_and_to_the_next_in_rank() -> None:
    before, after = roster("a", "b", "c", "d"), roster("a", "b", "c")
    for c in CHUNKS:
        ranked = [n.name for n in before.ranked(c) if n.name != "d"]
        assert [n.name for n in after.ranked(c)] == ranked


def test_ownership_is_even() -> None:
    count = Counter(roster(*"abcdefgh").owner(c) for c in CHUNKS)
    assert all(150 < n < 350 for n in count.values())


def test_a_terminating_node_owns_nothing() -> None:
    view = Roster((Node("a"), Node("b", ready=False)))
    assert all(view.owner(c) == Node("a") for c in CHUNKS[:50])


@pytest.mark.parametrize(
    "spec",
    ["a", "a=", "a=h", "a=h:", "a=h:x", "=h:1", "a=h:0", "a=h:65536", "a b=h:1", "ä=h:1", "a=h h:1", "a=h:²"],
)
def test_a_bad_node_is_named(spec: str) -> None:
    with pytest.raises(ValueError, match="not a node"):
        parse_nodes([spec])


def test_two_nodes_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two nodes are called 'a'"):
        parse_nodes(["a=h:1", "b=h:2", "a=h:3"])


def test_nodes_are_parsed_with_zone_and_ipv6() -> None:
    node, six = parse_nodes(["n1@z1=10.0.0.1:80", "n2=[::1]:81"])
    assert (node.name, node.zone, node.host, node.port) == ("n1", "z1", "10.0.0.1", 80)
    assert (six.host, six.port) == ("::1", 81)
