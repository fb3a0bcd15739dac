"""Imported last by the process that forks ranks: exempts imported objects from garbage collection.

Collections in ranks then do not write to these objects, which would copy their memory pages.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
gc.enable()
