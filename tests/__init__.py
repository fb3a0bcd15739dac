"""Tests. What is set here is set before torch and DGL are loaded, in the processes of ranks too."""

import os

# Threads that spin while they wait take the cores of ranks, and of other tests, that run beside.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
