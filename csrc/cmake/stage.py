"""Runs a command of `make` and says how long it took: stage.py WHAT COMMAND..."""

import subprocess
import sys
from time import monotonic

begin = monotonic()
try:
    status = subprocess.call(sys.argv[2:])
except KeyboardInterrupt:  # the command has been told, too
    status = 130
if status == 0:
    print(f"{sys.argv[1]} in {monotonic() - begin:.0f} s", flush=True)
sys.exit(status)
