// The threads in which torch computes: the threads of its OpenMP runtime. After an operation of
// torch they wait busily for the next one, so that other threads would have to share the cores with
// them.
#pragma once

namespace peergraph {

/// GOMP_parallel of libgomp's ABI, which libomp has too: runs work(data) in up to `num_threads`
/// threads, including the calling thread, and waits for all. No exception may leave `work`.
using RunTeam = void (*)(void (*work)(void*), void* data, unsigned num_threads, unsigned flags);

/// The function that runs work in torch's threads. Null in a process that was forked, or if torch
/// uses threads of another kind.
RunTeam torch_team();

}  // namespace peergraph
