"""The stores that this process has built."""

from __future__ import annotations

import weakref
from typing import Any

open_stores: weakref.WeakSet[Any] = weakref.WeakSet()
"""Each :class:`peergraph.store.Store` that exists, closed stores included."""
