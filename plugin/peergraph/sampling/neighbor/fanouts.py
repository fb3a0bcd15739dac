"""Fanouts: the number of neighbours that each hop draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from peergraph.sampling.arguments import as_integer
from peergraph.sampling.sample import EdgeType

Fanouts = Sequence[int] | Mapping[EdgeType, Sequence[int]]

_MAX_FANOUT = 2**31 - 1


def check_fanouts(fanouts: Fanouts, edge_types: list[EdgeType]) -> dict[EdgeType, list[int]]:
    """Returns one list of fanouts for each relation, all of one length."""
    if isinstance(fanouts, Mapping):
        for edge_type in edge_types:
            if edge_type not in fanouts:
                raise ValueError(f"fanouts: no entry for relation {edge_type}")
        for edge_type in fanouts:
            if edge_type not in edge_types:
                raise ValueError(f"fanouts: {edge_type} is not one of {edge_types}")
        of_types = {edge_type: fanouts[edge_type] for edge_type in edge_types}
    else:
        of_types = dict.fromkeys(edge_types, fanouts)
    by_type = {t: [as_integer("fanouts", f) for f in of_type] for t, of_type in of_types.items()}
    lengths = {edge_type: len(of_type) for edge_type, of_type in by_type.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"fanouts: expected lists of the same length, got {lengths}")
    for of_type in by_type.values():
        for fanout in of_type:
            if not -1 <= fanout <= _MAX_FANOUT:
                raise ValueError(f"fanouts: expected -1 (all), 0 or more, got {fanout}")
    return by_type
