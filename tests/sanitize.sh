#!/usr/bin/env bash
# Tests of memory, sampling and aggregation, or those given, with AddressSanitizer and
# UndefinedBehaviorSanitizer in the CPU part; the first thing that they find ends the process.
# Without arguments, the thread that makes batches runs with ThreadSanitizer before them.
set -euo pipefail
cd "$(dirname "$0")/.."
compiler="${CXX:-c++}"
if [ $# -eq 0 ]; then
  set -- tests/memory tests/sampling tests/aggregate
  mkdir -p build/sanitize
  "$compiler" -std=c++17 -O1 -g1 -ffp-contract=off -fsanitize=thread -pthread -Icsrc \
    csrc/common/*.cpp csrc/sampling/*/*.cpp \
    csrc/memory/{lease,gather,decode_gather,stored_rows,row_lists,gather_tables,huge_pages}.cpp \
    tests/sampling/batch_thread.cpp -ldl -o build/sanitize/batch_thread
  # ThreadSanitizer of older compilers needs addresses without much randomness.
  setarch "$(uname -m)" -R build/sanitize/batch_thread
fi

# Python is not compiled with them: they must be loaded first, and libstdc++ for their hooks.
libraries=""
for library in libasan.so libubsan.so libstdc++.so; do
  libraries+="${libraries:+:}$("$compiler" -print-file-name="$library")"
done
# What Python and torch leave allocated at exit is none of ours.
export TEST_ENVIRONMENT="LD_PRELOAD=$libraries ASAN_OPTIONS=detect_leaks=0
  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1"
sanitize="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
# nvcc itself does not run with them, and AddressSanitizer keeps memory for a while that was freed.
exec bash tests/another_build.sh build/sanitize -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1 $sanitize" -- -n 0 -q \
  --deselect tests/aggregate/test_user_message.py::test_kernels_compile_with_nvcc \
  --deselect tests/sampling/test_large_and_empty_inputs.py::test_thousands_of_batches_leak_nothing \
  "$@"
