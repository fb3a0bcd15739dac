#!/usr/bin/env bash
# Tests of memory, sampling and aggregation, or those given, with AddressSanitizer and
# UndefinedBehaviorSanitizer in the CPU part; the first thing that they find ends the process.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- tests/memory tests/sampling tests/aggregate

compiler="${CXX:-c++}"
# Python is not compiled with them: they must be loaded first, and libstdc++ for their hooks.
libraries=""
for library in libasan.so libubsan.so libstdc++.so; do
  libraries+="${libraries:+:}$("$compiler" -print-file-name="$library")"
done
# What Python and torch leave allocated at exit is none of ours.
export TEST_ENVIRONMENT="LD_PRELOAD=$libraries ASAN_OPTIONS=detect_leaks=0
  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1"
sanitize="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
# nvcc itself does not run with them.
exec bash tests/another_build.sh build/sanitize -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1 $sanitize" -- -n 0 -q \
  --deselect tests/aggregate/test_user_message.py::test_kernels_compile_with_nvcc "$@"
