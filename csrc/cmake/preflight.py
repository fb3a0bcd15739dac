"""Says which system packages the build lacks, before pip fails for want of one of them."""

import os
import shutil
import sys
import sysconfig
from importlib.util import find_spec

VERSION = "python{}.{}".format(*sys.version_info[:2])
HEADER = os.path.join(sysconfig.get_paths()["include"], "Python.h")


def problems():
    if not (3, 10) <= sys.version_info[:2] <= (3, 14):
        yield f"Python 3.10 to 3.14 is needed, {sys.executable} is {VERSION}: make PYTHON=..."
    if find_spec("venv") is None or find_spec("ensurepip") is None:
        yield f"Python's venv module is missing: apt install {VERSION}-venv"
    if not os.path.exists(HEADER):
        yield f"{HEADER} is missing: apt install {VERSION}-dev"
    if not (os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")):
        yield "a C++17 compiler is missing: apt install g++"


sys.exit("\n".join(problems()) or None)
