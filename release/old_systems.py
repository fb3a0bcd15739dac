"""Links modules for older systems than the one that compiles them: manylinux_2_28 and before.

A module takes each function of the C library in the newest version that the linker sees. Here it
sees the library of glibc 2.28, whose symbols (no code) the package `ziglang` makes for any release.
The C++ library is linked in: its objects ask for functions, not for versions. Three that glibc 2.28
lacks are in COMPAT.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

GLIBC = "2.28"
LIBRARIES = ("c", "m", "pthread", "dl", "rt", "util")
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
COMPAT = """\
#include <sys/random.h>
/* Of GCC's C++ library: shared pointers count atomically. */
char __libc_single_threaded = 0;
/* Of std::random_device. */
unsigned arc4random(void) {
  unsigned value;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {}
  return value;
}
"""


def link_options(folder: Path, machine: str = "") -> str:
    """Fills the folder with the library of glibc 2.28, and returns the linker's options for it.

    Args:
        folder: is emptied.
        machine: x86_64 or aarch64; by default this machine's.

    Raises subprocess.CalledProcessError, and RuntimeError where ziglang or COMPAT's compiler is
    missing.
    """
    machine = machine or platform.machine()
    own = platform.libc_ver()[1]
    if machine == platform.machine() and tuple(map(int, own.split("."))) <= (2, 28):
        return ""  # as in PyPA's containers
    if find_spec("ziglang") is None:
        raise RuntimeError("pip install ziglang: wheels for older systems need it")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "compat.c").write_text(COMPAT)
    compiler = "cc" if machine == platform.machine() else f"{machine}-linux-gnu-gcc"
    options = ("-O2", "-fPIC", "-c", "compat.c", "-o", "compat.o")
    subprocess.run([compiler, *options], cwd=folder, check=True)
    caches = {f"ZIG_{kind}_CACHE_DIR": str(folder / kind.lower()) for kind in ("GLOBAL", "LOCAL")}
    target = ("-target", f"{machine}-linux-gnu.{GLIBC}", "-shared", "compat.o", "-o", "any.so")
    zig = [sys.executable, "-m", "ziglang", "cc", *target]
    subprocess.run(zig, cwd=folder, env=os.environ | caches, check=True)
    [libc] = folder.glob("global/o/*/libc.so.6")
    for library in libc.parent.glob("lib*.so.*"):
        name = library.name
        shutil.copy(library, folder / (LOADERS[machine] if name.startswith("libld.") else name))
        linked = name.split(".")[0]
        if linked[3:] in LIBRARIES and linked != "libc":
            (folder / f"{linked}.so").symlink_to(name)
    # The compiler's own libc_nonshared.a has `atexit`. The C library is linked last: C++'s threads
    # are found here, and not in a `-lpthread` that comes before the C++ library.
    as_needed = f"AS_NEEDED ( {LOADERS[machine]} libpthread.so.0 )"
    (folder / "libc.so").write_text(f"GROUP ( libc.so.6 libc_nonshared.a {as_needed} )\n")
    return f"-L{folder} -static-libstdc++ {folder / 'compat.o'}"
