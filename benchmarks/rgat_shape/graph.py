"""Describes typed graphs: with the nodes, edges and relations of IGBH, or with N relations.

The counts of IGBH are those of its data sets and of MLPerf's preparation of them: the reverse of
each relation is a type of its own, but both directions of citations are one type, with a self loop
at each paper. Who is connected to whom is drawn: an end of an edge is the i-th node of its type
with a chance proportional to 1 / i^exponent, and these nodes lie scattered over the ids. A few
edges occur twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

EdgeType = tuple[str, str, str]

# How the opposite direction of a relation is stored: with it in one type, with self loops; in a
# type of its own; or not at all.
MERGED, APART, NONE = "merged", "apart", "none"


@dataclass(frozen=True)
class Relation:
    """A relation as its data set has it.

    Args:
        type: source type, name, destination type.
        edges: number of edges in the data set.
        exponents: of the power laws of the sources and of the destinations; 0: all alike.
        reverse: how the opposite direction is stored.
    """

    type: EdgeType
    edges: int
    exponents: tuple[float, float]
    reverse: str = APART


@dataclass(frozen=True)
class StoredType:
    """An edge type of the stored graph.

    Args:
        type: source type, name, destination type.
        relation: position of the relation that it is made of.
        directions: of the relation, by the end (0 or 1) that is the source.
        self_loops: whether each node has an edge to itself.
    """

    type: EdgeType
    relation: int
    directions: tuple[int, ...]
    self_loops: bool


@dataclass(frozen=True)
class TypedGraph:
    """A graph of several types.

    Args:
        name: as it is shown.
        nodes: number of nodes of each type.
        relations: what is stored, see :attr:`stored`.
        target: the type of the seeds, the only one with labels.
        labelled: the share of the target's nodes that have labels: the first ones.
        columns: of the features of every node.
        classes: number of classes.
    """

    name: str
    nodes: dict[str, int]
    relations: tuple[Relation, ...]
    target: str
    labelled: float = 1.0
    columns: int = 1024
    classes: int = 2983

    @property
    def stored(self) -> tuple[StoredType, ...]:
        """The edge types of the stored graph."""
        types = []
        for i, relation in enumerate(self.relations):
            source, name, destination = relation.type
            if relation.reverse == MERGED:
                types.append(StoredType(relation.type, i, (0, 1), True))
                continue
            types.append(StoredType(relation.type, i, (0,), False))
            if relation.reverse == APART:
                back = destination, f"rev_{name}", source
                types.append(StoredType(back, i, (1,), False))
        return tuple(types)

    @property
    def edge_types(self) -> list[EdgeType]:
        """The edge types of the stored graph."""
        return [stored.type for stored in self.stored]

    def num_edges(self, stored: StoredType) -> int:
        """The number of stored edges of a type."""
        loops = self.nodes[stored.type[0]] if stored.self_loops else 0
        return len(stored.directions) * self.relations[stored.relation].edges + loops

    def scaled(self, factor: float) -> TypedGraph:
        """The same degrees with `factor` times the nodes, at least 8 of each type."""
        if factor == 1.0:
            return self
        return replace(
            self,
            name=f"{self.name}*{factor:g}",
            nodes={t: max(8, int(n * factor)) for t, n in self.nodes.items()},
            relations=tuple(
                replace(r, edges=max(8, int(r.edges * factor))) for r in self.relations
            ),
        )


def _igbh(name: str, nodes: dict[str, int], edges: dict[str, int], labelled: float) -> TypedGraph:
    relations = [
        # The most cited paper of IGBH-full has 277,194 edges.
        Relation(("paper", "cites", "paper"), edges["cites"], (0.0, 0.55), MERGED),
        Relation(("paper", "written_by", "author"), edges["written_by"], (0.0, 0.4)),
        Relation(("paper", "topic", "fos"), edges["topic"], (0.0, 1.0)),
        Relation(("author", "affiliated_to", "institute"), edges["affiliated_to"], (0.0, 1.0)),
    ]
    if "published" in edges:
        relations += [
            Relation(("paper", "published", "journal"), edges["published"], (0.0, 1.0)),
            Relation(("paper", "venue", "conference"), edges["venue"], (0.0, 1.0)),
        ]
    return TypedGraph(name, nodes, tuple(relations), "paper", labelled)


_SMALL = _igbh(
    "small",
    {"paper": 1_000_000, "author": 1_926_066, "institute": 14_751, "fos": 190_449},
    {"cites": 12_070_502, "written_by": 4_553_516, "topic": 7_234_122, "affiliated_to": 1_630_476},
    1.0,
)
_MEDIUM = _igbh(
    "medium",
    {"paper": 10_000_000, "author": 15_544_654, "institute": 23_256, "fos": 415_054},
    {
        "cites": 120_077_694,
        "written_by": 39_854_592,
        "topic": 68_510_495,
        "affiliated_to": 11_049_412,
    },
    1.0,
)
# .37127 of IGBH-full. The edges of `published` and `venue` are not published: these are guesses.
_FULL_371 = _igbh(
    "full.371",
    {
        "paper": 100_000_000,
        "author": 102_923_639,
        "institute": 9_994,
        "fos": 264_700,
        "journal": 18_212,
        "conference": 1_688,
    },
    {
        "cites": 1_483_756_738,
        "written_by": 266_111_650,
        "topic": 389_937_078,
        "affiliated_to": 18_014_544,
        "published": 60_000_000,
        "venue": 15_000_000,
    },
    157_675_969 / 269_346_174,
)

GRAPHS = {
    "small": _SMALL,
    "half-medium": replace(_MEDIUM.scaled(0.5), name="half-medium"),
    "medium": _MEDIUM,
    "full.371": _FULL_371,
}
"""Graphs of the shape of IGBH by name."""

_RELATION_NODES, _RELATION_EDGES = 500_000, 6_000_000


def of_relations(count: int) -> TypedGraph:
    """Returns a graph of one node type whose 6 million edges are of `count` equal relations."""
    edges = _RELATION_EDGES // count
    relations = tuple(
        Relation(("entity", f"r{i}", "entity"), edges, (0.5, 0.5), NONE) for i in range(count)
    )
    nodes = {"entity": _RELATION_NODES}
    return TypedGraph(f"{count} relations", nodes, relations, "entity", columns=128)
