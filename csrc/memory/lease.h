// Leases protect memory that is closed while other threads may use it: closing waits for the
// threads that use it, and no thread can begin to use it afterwards.
//
// Each region has a lease. Python objects that refer to the region's memory hold a Leased view. A
// binding reaches the view through an Opened, which holds the leases for as long as it lives.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace peergraph {

class Lease {
 public:
  /// Refuses all later entries, with `why` as the error's text; threads that hold the lease keep
  /// it. Returns whether the lease was open.
  bool close(const std::string& why);

  bool closed() const { return closed_.load(); }

  /// Throws std::runtime_error with the reason if the lease is closed.
  void check() const;

  /// Whether the calling thread holds the lease, and whether other threads of this process do.
  bool used_here() const;
  bool used_elsewhere() const;

 private:
  friend class Entered;

  void enter();
  void leave() noexcept;
  uint32_t users() const;

  std::atomic<bool> closing_{false};
  std::atomic<bool> closed_{false};
  // The number of holders and, in the upper half, the number of forks before this process: a forked
  // child has none of its parent's threads.
  std::atomic<uint64_t> users_{0};
  std::string why_;
};

using Leases = std::vector<std::shared_ptr<Lease>>;

/// Adds the leases of `more` that `leases` does not have yet.
void add_leases(Leases& leases, const Leases& more);

/// Holds leases for as long as it lives, in one thread. The constructor throws std::runtime_error
/// if one of them is closed.
class Entered {
 public:
  explicit Entered(const Leases& leases);
  ~Entered();
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  void leave(size_t count) noexcept;

  const Leases& leases_;
};

template <typename View>
class Opened;

/// A view of memory that may be closed. Python objects hold views in this form.
template <typename View>
class Leased {
 public:
  Leased() = default;
  Leased(View view, Leases leases) : view_(std::move(view)), leases_(std::move(leases)) {}

  const Leases& leases() const { return leases_; }

  /// The view, although the leases are not held. Only for making another view with these leases.
  const View& unopened() const { return view_; }

 private:
  friend class Opened<View>;

  View view_{};
  Leases leases_;
};

/// A view whose memory stays mapped for as long as this lives; must not outlive the Leased.
template <typename View>
class Opened {
 public:
  explicit Opened(const Leased<View>& leased) : entered_(leased.leases_), view_(leased.view_) {}

  const View& operator*() const { return view_; }
  const View* operator->() const { return &view_; }

 private:
  Entered entered_;
  const View& view_;
};

}  // namespace peergraph
