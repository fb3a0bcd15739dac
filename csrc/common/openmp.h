// The threads in which torch computes: the threads of its OpenMP runtime. After an operation of
// torch they wait busily for the next one, so that other threads would have to share the cores with
// them.
#pragma once

#if defined(__linux__)
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#endif

namespace peergraph {

/// GOMP_parallel of libgomp's ABI, which libomp has too: runs work(data) in up to `num_threads`
/// threads, including the calling thread, and waits for all. No exception may leave `work`.
using RunTeam = void (*)(void (*work)(void*), void* data, unsigned num_threads, unsigned flags);

#if defined(__linux__)

/// Returns whether this process was forked and has started no program since; true if the kernel
/// does not tell. A child has none of its parent's OpenMP threads, but its runtime waits for them.
inline bool is_fork() {
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
inline const pid_t kLoadedIn = getpid();
inline const RunTeam kTorchTeam =
    is_fork() ? nullptr : reinterpret_cast<RunTeam>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));

/// The function that runs work in torch's threads. Null in a process that was forked, or if torch
/// uses threads of another kind.
inline RunTeam torch_team() { return getpid() == kLoadedIn ? kTorchTeam : nullptr; }

#else

inline RunTeam torch_team() { return nullptr; }

#endif

}  // namespace peergraph
