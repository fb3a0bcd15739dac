#include "memory/lease.h"

#include <pthread.h>

#include <algorithm>
#include <stdexcept>

namespace peergraph {
namespace {

constexpr int kHalf = 32;

/// The number of forks between the first process and this one.
std::atomic<uint32_t> generation{0};

const bool counts_forks = [] {
  pthread_atfork(nullptr, nullptr, [] { ++generation; });
  return true;
}();

/// The leases that this thread holds, innermost last.
thread_local std::vector<const Leases*> inside;

uint64_t packed(uint32_t users) { return uint64_t{generation.load()} << kHalf | users; }

bool is_of_this_process(uint64_t word) { return word >> kHalf == generation.load(); }

}  // namespace

bool Lease::close(const std::string& why) {
  if (closing_.exchange(true)) return false;
  why_ = why;
  closed_.store(true);
  return true;
}

void Lease::check() const {
  if (closed()) throw std::runtime_error(why_);
}

uint32_t Lease::users() const {
  const uint64_t word = users_.load();
  return is_of_this_process(word) ? static_cast<uint32_t>(word) : 0;
}

bool Lease::used_here() const {
  return std::any_of(inside.begin(), inside.end(), [this](const Leases* leases) {
    return std::any_of(leases->begin(), leases->end(),
                       [this](const auto& lease) { return lease.get() == this; });
  });
}

bool Lease::used_elsewhere() const {
  uint32_t own = 0;
  for (const Leases* leases : inside)
    for (const auto& lease : *leases) own += lease.get() == this;
  return users() > own;
}

// A thread that enters counts itself before it checks whether the lease is closed, and a thread
// that closes sets `closed_` before it checks for users: at least one of the two sees the other.
void Lease::enter() {
  uint64_t word = users_.load();
  while (!users_.compare_exchange_weak(word, is_of_this_process(word) ? word + 1 : packed(1))) {
  }
  if (!closed_.load()) return;
  leave();
  check();
}

void Lease::leave() noexcept {
  uint64_t word = users_.load();
  while (is_of_this_process(word) && !users_.compare_exchange_weak(word, word - 1)) {
  }
}

void add_leases(Leases& leases, const Leases& more) {
  for (const auto& lease : more)
    if (std::find(leases.begin(), leases.end(), lease) == leases.end()) leases.push_back(lease);
}

Entered::Entered(const Leases& leases) : leases_(leases) {
  size_t count = 0;
  try {
    for (; count < leases_.size(); ++count) leases_[count]->enter();
    if (!leases_.empty()) inside.push_back(&leases_);
  } catch (...) {
    leave(count);
    throw;
  }
}

Entered::~Entered() {
  if (leases_.empty()) return;
  inside.pop_back();
  leave(leases_.size());
}

void Entered::leave(size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) leases_[i]->leave();
}

}  // namespace peergraph
