"""Imported last by the process that forks ranks: what is imported is never collected as garbage.

Collections in ranks then do not read and write all of it, which would copy its memory pages.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
gc.enable()
