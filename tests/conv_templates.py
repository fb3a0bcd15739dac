"""Makes PyG's layers once, for the processes that import this module and for their forks.

PyG parses and compiles templates for every class of layers, which takes longer than most tests of
a layer. What PyG makes of the templates is the same.
"""

from __future__ import annotations

from functools import partial

import torch
from jinja2 import BytecodeCache, Environment
from jinja2.bccache import Bucket
from torch_geometric import template

_compiled: dict[str, bytes] = {}


class _InMemory(BytecodeCache):
    """Keeps compiled templates by name and content."""

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key + bucket.checksum in _compiled:
            bucket.bytecode_from_string(_compiled[bucket.key + bucket.checksum])

    def dump_bytecode(self, bucket: Bucket) -> None:
        _compiled[bucket.key + bucket.checksum] = bucket.bytecode_to_string()


template.Environment = partial(Environment, bytecode_cache=_InMemory())

from tests.adapters.pyg.full_graph import conv_cases  # noqa: E402 - it may make layers

with torch.random.fork_rng(devices=[]):
    for make, _ in (*conv_cases.FUSED.values(), *conv_cases.OTHERS.values()):
        make()
