#include "common/openmp.h"

#if defined(__linux__)
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#endif

namespace peergraph {

#if defined(__linux__)

namespace {

/// Returns whether this process was forked and has started no program since; true if the kernel
/// does not tell. A child has none of its parent's OpenMP threads, but its runtime waits for them.
bool is_fork() {
  constexpr unsigned kForkedWithoutExec = 0x40;  // PF_FORKNOEXEC of linux/sched.h
  char text[512];
  std::FILE* file = std::fopen("/proc/self/stat", "r");
  if (file == nullptr) return true;
  const size_t size = std::fread(text, 1, sizeof(text) - 1, file);
  std::fclose(file);
  text[size] = '\0';
  // The name, which may contain any characters, is followed by the state and five ids.
  const char* name_end = std::strrchr(text, ')');
  unsigned flags = 0;
  if (name_end == nullptr || std::sscanf(name_end + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) != 1)
    return true;
  return (flags & kForkedWithoutExec) != 0;
}

// Both are determined when this module is loaded, after torch.
const pid_t kLoadedIn = getpid();
const RunTeam kTorchTeam =
    is_fork() ? nullptr : reinterpret_cast<RunTeam>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));

}  // namespace

RunTeam torch_team() { return getpid() == kLoadedIn ? kTorchTeam : nullptr; }

#else

RunTeam torch_team() { return nullptr; }

#endif

}  // namespace peergraph
