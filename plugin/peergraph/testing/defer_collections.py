"""Imported first by the process that forks ranks: defers garbage collection until all is imported.

:mod:`peergraph.testing.freeze` turns collections on again.
"""

from __future__ import annotations

import gc

gc.disable()
