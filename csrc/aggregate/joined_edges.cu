// Joins edges on a GPU: counts and a scan number the keys, stable radix sorts order the edges.
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/tabulate_output_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "aggregate/host_table.cuh"
#include "aggregate/joined_edges.h"
#include "common/cuda_check.cuh"
#include "common/partition_point.h"

namespace peergraph {
namespace {

using Count = unsigned long long;

/// Numbers of a kind of keys, on the device. The edges of a list are counted by `counts`.
struct Numbers {
  KeyNumbering numbering;
  int32_t* counts;        // [num_keys] edges; in the end the numbers, unless used keys are numbered
  int32_t* numbers;       // [num_keys + 1] the keys before that have edges
  int32_t* offsets;       // [num_keys + 1] the edges of these; null if used keys are numbered
  const int64_t* starts;  // [segments]
  const int64_t* fixed_cuts;  // [segments + 1] for kFixed
  int64_t num_keys;
  int32_t num_segments;
  int32_t* keys;        // as of EdgeJoin
  int32_t* segment_of;  // or null
  int32_t* indptr;      // or null
  int64_t* cuts;        // [segments + 1]
  int64_t* lasts;       // [segments]
  Count* chunks;        // one number
  int64_t chunk, long_row;

  __device__ int32_t segment(int64_t key) const { return last_not_behind(starts, key); }
  /// The last segment that begins at or before a place, by the first place of each.
  __device__ int32_t last_not_behind(const int64_t* firsts, int64_t place) const {
    return partition_point(1, num_segments, [&](int32_t i) { return firsts[i] <= place; }) - 1;
  }
  __device__ int64_t end_of(int32_t segment) const {
    return segment + 1 < num_segments ? starts[segment + 1] : num_keys;
  }
};

/// The relations and the edges of all of them.
struct Edges {
  const JoinedRelation* relations;
  int32_t num_relations;
  int64_t num_edges;

  __device__ const JoinedRelation& of(int64_t edge) const {
    const auto begins = [&](int32_t i) { return relations[i].first_edge <= edge; };
    return relations[partition_point(1, num_relations, begins) - 1];
  }
};

/// The keys of an edge's row and column. Returns whether its ids are in range; else the keys are
/// those of node 0.
__device__ bool keys_of(const Edges& edges, int64_t edge, int64_t& row, int64_t& column) {
  const JoinedRelation& relation = edges.of(edge);
  const int64_t at = edge - relation.first_edge;
  int64_t source = at, destination = at;
  if (relation.sources != nullptr) {
    source = load_id(relation.sources, relation.id_bytes, at);
    destination = load_id(relation.destinations, relation.id_bytes, at);
  }
  const bool good = source >= 0 && source < relation.num_sources && destination >= 0 &&
                    destination < relation.num_destinations;
  if (!good) source = destination = 0;
  row = relation.row_base + destination * relation.row_stride;
  column = relation.column_base + source;
  return good;
}

__global__ void __launch_bounds__(kBlockThreads)
    count_joined_edges(const Edges edges, int32_t* rows, int32_t* columns, Count* bad) {
  for (int64_t e = global_thread(); e < edges.num_edges; e += grid_threads()) {
    int64_t row, column;
    if (!keys_of(edges, e, row, column)) {
      atomicMin(bad, static_cast<Count>(e));
      continue;
    }
    atomicAdd(rows + row, 1);
    atomicAdd(columns + column, 1);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    number_joined_edges(const Edges edges, const int32_t* row_numbers,
                        const int32_t* column_numbers, int32_t* rows, int32_t* columns,
                        int32_t* positions) {
  for (int64_t e = global_thread(); e < edges.num_edges; e += grid_threads()) {
    int64_t row, column;
    keys_of(edges, e, row, column);
    rows[e] = row_numbers[row];
    columns[e] = column_numbers[column];
    positions[e] = static_cast<int32_t>(e);
  }
}

/// Selects the columns of the edges by row, and numbers the places.
__global__ void __launch_bounds__(kBlockThreads)
    select_joined_columns(const int32_t* order, const int32_t* columns, int64_t count,
                          int32_t* indices, int32_t* places) {
  for (int64_t p = global_thread(); p < count; p += grid_threads()) {
    indices[p] = columns[order[p]];
    if (places != nullptr) places[p] = static_cast<int32_t>(p);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    select_joined_rows(const int32_t* order, const int32_t* rows, int64_t count, int32_t* rows_of) {
  for (int64_t p = global_thread(); p < count; p += grid_threads()) rows_of[p] = rows[order[p]];
}

/// What the scan adds up: in the upper half whether a key has edges, in the lower half its edges.
struct ReadKey {
  const int32_t* counts;
  int64_t num_keys;
  __device__ Count operator()(int64_t key) const {
    const Count edges = key < num_keys ? counts[key] : 0;
    return edges + (static_cast<Count>(edges > 0) << 32);
  }
};

struct WriteKey {
  Numbers out;
  __device__ void operator()(int64_t key, Count sum) const {
    const auto number = static_cast<int32_t>(sum >> 32);
    out.numbers[key] = number;
    if (out.offsets != nullptr) {
      out.offsets[key] = static_cast<int32_t>(sum);
      return;
    }
    const bool is_end = key == out.num_keys;
    const int64_t edges = is_end ? 0 : out.counts[key];
    if (!is_end && edges == 0) return;
    if (out.indptr != nullptr) out.indptr[number] = static_cast<int32_t>(sum);
    if (is_end) return;
    const int32_t segment = out.segment(key);
    out.keys[number] = static_cast<int32_t>(key - out.starts[segment]);
    if (out.segment_of != nullptr) out.segment_of[number] = segment;
    if (edges > out.long_row) atomicAdd(out.chunks, (edges + out.chunk - 1) / out.chunk);
  }
};

__global__ void __launch_bounds__(kBlockThreads) cut_joined_keys(const Numbers of) {
  for (int64_t i = global_thread(); i <= of.num_segments; i += grid_threads()) {
    const bool is_end = i == of.num_segments;
    const int64_t cut = of.numbers[is_end ? of.num_keys : of.starts[i]];
    of.cuts[i] = cut;
    if (is_end) continue;
    const int64_t end = of.numbers[of.end_of(static_cast<int32_t>(i))];
    of.lasts[i] = cut < end ? of.keys[end - 1] : -1;
  }
}

/// Gives each key its own number.
__global__ void __launch_bounds__(kBlockThreads) place_all_keys(const Numbers of) {
  for (int64_t key = global_thread(); key <= of.num_keys; key += grid_threads()) {
    if (of.indptr != nullptr) of.indptr[key] = of.offsets[key];
    if (key < of.num_keys) of.counts[key] = static_cast<int32_t>(key);
  }
}

/// Gives the keys that have edges their numbers by fixed cuts.
__global__ void __launch_bounds__(kBlockThreads) place_joined_keys(const Numbers of) {
  for (int64_t key = global_thread(); key < of.num_keys; key += grid_threads()) {
    if (of.counts[key] == 0) continue;
    const int32_t segment = of.segment(key);
    const auto before = static_cast<int64_t>(of.numbers[key]) - of.numbers[of.starts[segment]];
    const int64_t number = of.fixed_cuts[segment] + before;
    of.keys[number] = static_cast<int32_t>(key - of.starts[segment]);
    if (of.segment_of != nullptr) of.segment_of[number] = segment;
    if (of.indptr != nullptr) of.indptr[number] = of.offsets[key];
    of.counts[key] = static_cast<int32_t>(number);
  }
}

/// Fills the numbers that no key has.
__global__ void __launch_bounds__(kBlockThreads) fill_joined_keys(const Numbers of) {
  const int64_t count = of.fixed_cuts[of.num_segments];
  for (int64_t number = global_thread(); number <= count; number += grid_threads()) {
    if (number == count) {
      if (of.indptr != nullptr) of.indptr[number] = of.offsets[of.num_keys];
      return;
    }
    const int32_t segment = of.last_not_behind(of.fixed_cuts, number);
    const int64_t end = of.end_of(segment);
    const int64_t used = of.numbers[end] - of.numbers[of.starts[segment]];
    if (number - of.fixed_cuts[segment] < used) continue;
    // Only rows have segments.
    const bool is_row = of.segment_of != nullptr;
    of.keys[number] = static_cast<int32_t>(is_row ? end - 1 - of.starts[segment]
                                                  : number - of.fixed_cuts[segment]);
    if (of.segment_of != nullptr) of.segment_of[number] = segment;
    if (of.indptr != nullptr) of.indptr[number] = of.offsets[end];
  }
}

/// Scratch memory of one join: one allocation for everything but what the libraries ask for.
class Scratch {
 public:
  Scratch(const Allocate& allocate, int64_t bytes)
      : next_(static_cast<char*>(allocate(bytes))), left_(bytes) {}

  template <typename T>
  T* take(int64_t count) {
    const int64_t bytes = size_of(count, sizeof(T));
    if (bytes > left_) throw std::logic_error("join_edges: scratch memory is too small");
    char* const piece = next_;
    next_ += bytes;
    left_ -= bytes;
    return reinterpret_cast<T*>(piece);
  }

  static int64_t size_of(int64_t count, int64_t item_bytes) {
    return (count * item_bytes + kAlign - 1) / kAlign * kAlign;
  }

 private:
  static constexpr int64_t kAlign = 256;
  char* next_;
  int64_t left_;
};

int bits_of(int64_t limit) {
  int bits = 1;
  while (limit >> bits != 0) ++bits;
  return bits;
}

/// The words that the host reads at the end, for a kind of keys: cuts, lasts, chunks.
int64_t words_of(const KeySegments& segments) {
  return 2 * static_cast<int64_t>(segments.starts.size()) + 2;
}

JoinedKeys keys_from(const int64_t* words, int64_t segments) {
  JoinedKeys keys;
  keys.cuts.assign(words, words + segments + 1);
  keys.lasts.assign(words + segments + 1, words + 2 * segments + 1);
  keys.chunks = words[2 * segments + 1];
  return keys;
}

class Join {
 public:
  Join(const EdgeJoin& op, cudaStream_t stream, const Allocate& allocate)
      : op_(op),
        stream_(stream),
        allocate_(allocate),
        edges_(op.num_edges()),
        scratch_(allocate, scratch_bytes()) {}

  JoinedCounts run() {
    prepare();
    const unsigned blocks = grid_for(edges_);
    count_joined_edges<<<blocks, kBlockThreads, 0, stream_>>>(of_all_, rows_.counts,
                                                              columns_.counts, bad_);
    PG_LAUNCH_CHECK("count_joined_edges");
    number(rows_);
    number(columns_);
    const bool is_used = op_.numbering == KeyNumbering::kUsed;
    // Before the edges are sorted: the host goes on as soon as the keys are counted.
    const JoinedCounts counts = is_used ? read() : known_counts();
    int32_t* const row_of = scratch_.take<int32_t>(edges_);
    int32_t* const column_of = scratch_.take<int32_t>(edges_);
    int32_t* const positions = scratch_.take<int32_t>(edges_);
    number_joined_edges<<<blocks, kBlockThreads, 0, stream_>>>(
        of_all_, is_used ? rows_.numbers : rows_.counts,
        is_used ? columns_.numbers : columns_.counts, row_of, column_of, positions);
    PG_LAUNCH_CHECK("number_joined_edges");
    int32_t* const ordered_rows = scratch_.take<int32_t>(edges_);
    int32_t* const order = scratch_.take<int32_t>(edges_);
    sort(row_of, ordered_rows, positions, order, op_.rows);
    if (op_.edge_ids != nullptr)
      PG_CUDA_CHECK(cudaMemcpyAsync(op_.edge_ids, order, edges_ * sizeof(int32_t),
                                    cudaMemcpyDeviceToDevice, stream_));
    select_joined_columns<<<blocks, kBlockThreads, 0, stream_>>>(
        order, column_of, edges_, op_.indices, op_.rows_of == nullptr ? nullptr : positions);
    PG_LAUNCH_CHECK("select_joined_columns");
    if (op_.rows_of != nullptr) {
      sort(op_.indices, column_of, positions, op_.positions, op_.columns);
      select_joined_rows<<<blocks, kBlockThreads, 0, stream_>>>(op_.positions, ordered_rows, edges_,
                                                                op_.rows_of);
      PG_LAUNCH_CHECK("select_joined_rows");
    }
    return counts;
  }

 private:
  /// Everything that `prepare` and `run` take.
  int64_t scratch_bytes() const {
    const int64_t arrays = op_.numbering == KeyNumbering::kUsed ? 2 : 3;
    const auto of_keys = [arrays](const KeySegments& segments) {
      return arrays * Scratch::size_of(segments.num_keys + 1, sizeof(int32_t));
    };
    return of_keys(op_.rows) + of_keys(op_.columns) + Scratch::size_of(num_words(), 8) +
           Scratch::size_of(table_bytes(), 1) + 5 * Scratch::size_of(edges_, sizeof(int32_t));
  }
  int64_t num_words() const { return words_of(op_.rows) + words_of(op_.columns) + 1; }
  int64_t table_bytes() const {
    const auto of_keys = [](const KeySegments& segments) {
      return (segments.starts.size() + segments.fixed_cuts.size()) * sizeof(int64_t);
    };
    return op_.relations.size() * sizeof(JoinedRelation) + of_keys(op_.rows) + of_keys(op_.columns);
  }

  /// Copies the relations and the segments to the device, and clears the counts.
  void prepare() {
    // Counts first: they are cleared together.
    int32_t* const row_counts = scratch_.take<int32_t>(op_.rows.num_keys + 1);
    int32_t* const column_counts = scratch_.take<int32_t>(op_.columns.num_keys + 1);
    words_ = scratch_.take<int64_t>(num_words());
    const char* const end = scratch_.take<char>(0);
    PG_CUDA_CHECK(
        cudaMemsetAsync(row_counts, 0, end - reinterpret_cast<char*>(row_counts), stream_));
    HostTable content;
    char* const table = scratch_.take<char>(table_bytes());
    content.add(op_.relations);
    of_all_ = {reinterpret_cast<const JoinedRelation*>(table),
               static_cast<int32_t>(op_.relations.size()), edges_};
    const auto of_keys = [&](const KeySegments& segments, int32_t* counts, int64_t* words) {
      const auto count = static_cast<int32_t>(segments.starts.size());
      const auto* const starts =
          reinterpret_cast<const int64_t*>(table + content.add(segments.starts));
      const auto* const cuts =
          reinterpret_cast<const int64_t*>(table + content.add(segments.fixed_cuts));
      Numbers numbers{};
      numbers.numbering = op_.numbering;
      numbers.counts = counts;
      numbers.numbers = scratch_.take<int32_t>(segments.num_keys + 1);
      numbers.starts = starts;
      if (op_.numbering != KeyNumbering::kUsed)
        numbers.offsets = scratch_.take<int32_t>(segments.num_keys + 1);
      numbers.fixed_cuts = cuts;
      numbers.num_keys = segments.num_keys;
      numbers.num_segments = count;
      numbers.cuts = words;
      numbers.lasts = words + count + 1;
      numbers.chunks = reinterpret_cast<Count*>(words + 2 * count + 1);
      numbers.chunk = op_.chunk;
      numbers.long_row = op_.long_row;
      return numbers;
    };
    rows_ = of_keys(op_.rows, row_counts, words_);
    rows_.keys = op_.row_keys;
    rows_.segment_of = op_.row_segments;
    rows_.indptr = op_.indptr;
    columns_ = of_keys(op_.columns, column_counts, words_ + words_of(op_.rows));
    columns_.keys = op_.column_keys;
    columns_.indptr = op_.by_column;
    content.write(table, stream_);
    bad_ = reinterpret_cast<Count*>(words_ + num_words() - 1);
    PG_CUDA_CHECK(cudaMemsetAsync(bad_, 0xff, sizeof(Count), stream_));
  }

  void number(const Numbers& numbers) {
    with_scratch([&](void* scratch, size_t& bytes) {
      return cub::DeviceScan::ExclusiveSum(
          scratch, bytes,
          thrust::make_transform_iterator(thrust::counting_iterator<int64_t>(0),
                                          ReadKey{numbers.counts, numbers.num_keys}),
          thrust::make_tabulate_output_iterator(WriteKey{numbers}), numbers.num_keys + 1, stream_);
    });
    const unsigned blocks = grid_for(numbers.num_keys + 1);
    switch (numbers.numbering) {
      case KeyNumbering::kUsed:
        cut_joined_keys<<<grid_for(numbers.num_segments + 1), kBlockThreads, 0, stream_>>>(numbers);
        PG_LAUNCH_CHECK("cut_joined_keys");
        break;
      case KeyNumbering::kFixed:
        place_joined_keys<<<blocks, kBlockThreads, 0, stream_>>>(numbers);
        PG_LAUNCH_CHECK("place_joined_keys");
        fill_joined_keys<<<blocks, kBlockThreads, 0, stream_>>>(numbers);
        PG_LAUNCH_CHECK("fill_joined_keys");
        break;
      case KeyNumbering::kAll:
        place_all_keys<<<blocks, kBlockThreads, 0, stream_>>>(numbers);
        PG_LAUNCH_CHECK("place_all_keys");
        break;
    }
  }

  void sort(const int32_t* keys, int32_t* ordered, const int32_t* values, int32_t* order,
            const KeySegments& segments) {
    const int64_t numbers = op_.numbering == KeyNumbering::kAll
                                ? segments.num_keys
                                : std::min(segments.num_keys, edges_);
    with_scratch([&](void* scratch, size_t& bytes) {
      return cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, ordered, values, order, edges_,
                                             0, bits_of(numbers), stream_);
    });
  }

  template <typename Call>
  void with_scratch(const Call& call) {
    size_t bytes = 0;
    PG_CUDA_CHECK(call(nullptr, bytes));
    void* const scratch = allocate_(static_cast<int64_t>(bytes));
    PG_CUDA_CHECK(call(scratch, bytes));
  }

  /// What the host knows without the edges.
  JoinedCounts known_counts() const {
    JoinedCounts counts{all_keys(op_.rows), all_keys(op_.columns), -1};
    if (op_.numbering == KeyNumbering::kFixed) {
      counts.rows.cuts = op_.rows.fixed_cuts;
      counts.columns.cuts = op_.columns.fixed_cuts;
    }
    return counts;
  }

  JoinedCounts read() {
    std::vector<int64_t> words(num_words());
    PG_CUDA_CHECK(cudaMemcpyAsync(words.data(), words_, words.size() * sizeof(int64_t),
                                  cudaMemcpyDeviceToHost, stream_));
    PG_CUDA_CHECK(cudaStreamSynchronize(stream_));
    return {keys_from(words.data(), op_.rows.starts.size()),
            keys_from(words.data() + words_of(op_.rows), op_.columns.starts.size()), words.back()};
  }

  const EdgeJoin& op_;
  const cudaStream_t stream_;
  const Allocate& allocate_;
  const int64_t edges_;
  Scratch scratch_;
  int64_t* words_ = nullptr;
  Count* bad_ = nullptr;
  Edges of_all_{};
  Numbers rows_{}, columns_{};
};

}  // namespace

JoinedCounts join_edges_cuda(const EdgeJoin& op, const Launch& launch, const Allocate& allocate) {
  DeviceGuard guard(launch.device);
  return Join(op, reinterpret_cast<cudaStream_t>(launch.stream), allocate).run();
}

}  // namespace peergraph
