// The ranks that compute one step together. Each holds all weights and computes the gradients of
// some shards of the batch (shard_sums.hpp).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "emulation/backend.hpp"

namespace fp8lab {

/// Communication of one rank with the others. Every rank calls the same functions in the same
/// order, with tensors of the same types and shapes.
class Ranks {
 public:
  virtual ~Ranks() = default;
  /// Index of this rank, from 0.
  virtual std::int64_t rank() const = 0;
  /// Number of ranks, a power of two.
  virtual std::int64_t size() const = 0;
  /// Replaces each tensor by its sum over ranks, on every rank. Ranks 2i and 2i + 1 are added
  /// first, then pairs of such sums, and so on: the left operand of an addition is the lower
  /// rank's. Each addition is ops::Add, rounded to the tensor's type.
  virtual void sum(Backend& backend, std::span<const TensorView> tensors) = 0;
  /// Replaces each value by its maximum over ranks. Values are magnitudes; infinity is above every
  /// number, and a NaN above infinity, as in amaxes of delayed scales.
  virtual void maximum(std::span<float> magnitudes) = 0;
};

/// The only rank of a run in one process: exchanges nothing.
Ranks& one_rank();

/// Ranks that are threads of this process, each with a backend in host memory. A rank that fails
/// calls abandon(), so that the others do not wait for it.
class ThreadRanks {
 public:
  /// Throws Error unless `size` is a power of two.
  explicit ThreadRanks(std::int64_t size);
  ~ThreadRanks();

  std::int64_t size() const { return static_cast<std::int64_t>(ranks_.size()); }
  Ranks& operator[](std::int64_t rank);
  /// Makes every present and future exchange throw Error.
  void abandon();

 private:
  class Rank;

  /// Returns once every rank has called it. Throws Error after abandon().
  void wait_for_all();

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::span<const TensorView>> tensors_;  ///< that each rank exchanges
  std::vector<std::span<float>> magnitudes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t waiting_ = 0, rounds_ = 0;
  bool is_abandoned_ = false;
};

}  // namespace fp8lab
