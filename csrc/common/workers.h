// Threads for work of many short parallel steps. Like the threads of parallel_for they do not
// outlive a call from Python, so that no such threads exist when the process forks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "common/parallel.h"

namespace peergraph {

/// Has as many threads as were ever needed at once, including the calling thread. One caller at a
/// time.
class Workers {
 public:
  explicit Workers(int num_threads) : num_threads_(num_threads) {}

  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  ~Workers() {
    if (threads_.empty()) return;
    begin({}, 0);
    for (std::thread& t : threads_) t.join();
  }

  /// How many pieces of at least `grain` items run at once.
  int64_t pieces_of(int64_t n, int64_t grain) const {
    return peergraph::pieces_of(n, grain, num_threads_);
  }

  /// As parallel_for.
  template <typename Body>
  void run(int64_t n, int64_t grain, const Body& body) {
    const int64_t pieces = pieces_of(n, grain);
    if (n > 0) run_pieces(pieces, [&](int64_t p) { body(n * p / pieces, n * (p + 1) / pieces); });
  }

  /// Calls body(0), ..., body(pieces - 1), each in a separate thread. An exception of any piece is
  /// rethrown here.
  template <typename Body>
  void run_pieces(int64_t pieces, const Body& body) {
    if (pieces == 1) return body(int64_t{0});
    std::vector<std::exception_ptr> errors(pieces);
    const auto guarded = [&](int64_t p) {
      try {
        body(p);
      } catch (...) {
        errors[p] = std::current_exception();
      }
    };
    while (static_cast<int64_t>(threads_.size()) + 1 < pieces) {
      const auto piece = static_cast<int64_t>(threads_.size()) + 1;
      threads_.emplace_back([this, piece, seen = generation_.load()] { serve(piece, seen); });
    }
    begin(guarded, pieces);
    guarded(0);
    wait_for_others();
    for (auto& e : errors)
      if (e) std::rethrow_exception(e);
  }

 private:
  static constexpr int kPatience = 64;  // yields before a thread sleeps

  /// Gives all threads a new job; without a job they end.
  void begin(std::function<void(int64_t)> job, int64_t pieces) {
    {
      const std::lock_guard<std::mutex> hold(mutex_);
      job_ = std::move(job);
      pieces_ = pieces;
      left_ = static_cast<int64_t>(threads_.size());
      ++generation_;
    }
    has_job_.notify_all();
  }

  void wait_for_others() {
    for (int i = 0; i < kPatience && left_ > 0; ++i) std::this_thread::yield();
    std::unique_lock<std::mutex> hold(mutex_);
    is_done_.wait(hold, [&] { return left_ == 0; });
  }

  /// The loop of a thread; `seen` is the last job before the thread started.
  void serve(int64_t piece, int64_t seen) {
    while (true) {
      for (int i = 0; i < kPatience && generation_ == seen; ++i) std::this_thread::yield();
      {
        std::unique_lock<std::mutex> hold(mutex_);
        has_job_.wait(hold, [&] { return generation_ != seen; });
        seen = generation_;
      }
      // Both stay the same until all threads have reported that they are done.
      if (!job_) return;
      if (piece < pieces_) job_(piece);
      const std::lock_guard<std::mutex> hold(mutex_);
      if (--left_ == 0) is_done_.notify_one();
    }
  }

  const int num_threads_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable has_job_, is_done_;
  std::function<void(int64_t)> job_;
  int64_t pieces_ = 0;
  std::atomic<int64_t> left_{0};
  std::atomic<int64_t> generation_{0};
};

}  // namespace peergraph
