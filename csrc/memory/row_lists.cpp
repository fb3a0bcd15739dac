#include "memory/row_lists.h"

#include <stdexcept>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/on_device.h"
#include "common/parallel.h"

namespace peergraph {
namespace {

constexpr int64_t kRowGrain = 4096;

/// Calls body(number, bounds) for the lists of the rows [begin, end), without divisions.
template <typename Body>
void for_lists(const RowLists& lists, int64_t begin, int64_t end, const Body& body) {
  int64_t number = begin * lists.columns;
  const int64_t* bounds = lists.bounds + begin * (lists.columns + 1);
  for (int64_t row = begin; row < end; ++row, ++bounds)
    for (int64_t column = 0; column < lists.columns; ++column) body(number++, bounds++);
}

void write_ends_cpu(const std::vector<RowLists>& lists, int64_t* sizes) {
  int64_t& broken = sizes[lists.size()];
  broken = 0;
  for (const RowLists& of : lists) {
    int64_t end = 0;
    of.ends[0] = 0;
    for_lists(of, 0, of.rows, [&](int64_t number, const int64_t* list) {
      if (of.holds(list))
        end += list[1] - list[0];
      else
        broken = 1;
      of.ends[number + 1] = end;
    });
    *sizes++ = end;
  }
}

void write_places_cpu(const std::vector<RowLists>& lists, int num_threads) {
  for (const RowLists& of : lists)
    parallel_for(of.rows, kRowGrain, num_threads, [&](int64_t begin, int64_t end) {
      for_lists(of, begin, end, [&](int64_t number, const int64_t* list) {
        int64_t place = list[0];
        for (int64_t at = of.ends[number]; at < of.ends[number + 1]; ++at) of.places[at] = place++;
      });
    });
}

}  // namespace

ListPlaces::ListPlaces(Allocate allocate, int64_t* sizes, const Launch& launch)
    : allocate_(std::move(allocate)), sizes_(sizes), launch_(launch) {}

ListPlaces::~ListPlaces() {
#ifdef PEERGRAPH_CUDA
  // The owner of the sizes reuses their memory.
  if (!sizes_written_) return;
  try {
    sizes_written_->synchronize();
  } catch (...) {  // what the GPU does next fails as well
  }
#endif
}

void ListPlaces::write_ends() {
  if (lists_.empty()) return;
  if (launch_.device < 0) {
    own_sizes_.resize(lists_.size() + 1);
    sizes_ = own_sizes_.data();
  }
  PG_ON_DEVICE(launch_.device, write_ends_cpu(lists_, sizes_), {
    sizes_written_.emplace(launch_.device);
    write_list_ends_cuda(lists_, sizes_, allocate_, launch_);
    sizes_written_->record(launch_.stream);
  });
}

void ListPlaces::write_places() {
  if (lists_.empty()) return;
#ifdef PEERGRAPH_CUDA
  if (sizes_written_) sizes_written_->synchronize();
#endif
  if (sizes_[lists_.size()] != 0)
    throw std::runtime_error("lists of a batch are not in their store: its tables are damaged");
  int64_t total = 0;
  for (size_t i = 0; i < lists_.size(); ++i) total += lists_[i].num_elements = sizes_[i];
  auto* places = static_cast<int64_t*>(allocate_(checked_product(total, sizeof(int64_t))));
  for (RowLists& of : lists_) {
    of.places = places;
    places += of.num_elements;
  }
  PG_ON_DEVICE(launch_.device, write_places_cpu(lists_, launch_.num_threads),
               write_list_places_cuda(lists_, launch_));
}

}  // namespace peergraph
