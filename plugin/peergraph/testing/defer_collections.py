"""Imported first by the process that forks ranks: garbage is looked for once all is imported.

:mod:`peergraph.testing.freeze` turns collections on again.
"""

from __future__ import annotations

import gc

gc.disable()
