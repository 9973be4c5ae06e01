#include "src/train/step/ranks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"

namespace fp8lab {
namespace {

class OneRank final : public Ranks {
 public:
  std::int64_t rank() const override { return 0; }
  std::int64_t size() const override { return 1; }
  void sum(Backend&, std::span<const TensorView>) override {}
  void maximum(std::span<float>) override {}
};

}  // namespace

Ranks& one_rank() {
  static OneRank rank;
  return rank;
}

class ThreadRanks::Rank final : public Ranks {
 public:
  Rank(ThreadRanks& all, std::int64_t rank) : all_(all), rank_(rank) {}

  std::int64_t rank() const override { return rank_; }
  std::int64_t size() const override { return all_.size(); }

  void sum(Backend& backend, std::span<const TensorView> tensors) override {
    FP8LAB_ASSERT(backend.is_on_host());
    tensors_of(rank_) = tensors;
    all_.wait_for_all();
    for (std::int64_t distance = 1; distance < size(); distance *= 2) {
      if (rank_ % (2 * distance) == 0) {
        const std::span<const TensorView> others = tensors_of(rank_ + distance);
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          backend.run(ops::Add{.a = tensors[i], .b = others[i], .sum = tensors[i]});
        }
      }
      all_.wait_for_all();
    }
    if (rank_ != 0) {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        backend.run(ops::Copy{tensors_of(0)[i], tensors[i]});
      }
    }
    all_.wait_for_all();
  }

  void maximum(std::span<float> magnitudes) override {
    std::vector<std::span<float>>& shared = all_.magnitudes_;
    shared[static_cast<std::size_t>(rank_)] = magnitudes;
    all_.wait_for_all();
    std::vector<float> largest(magnitudes.begin(), magnitudes.end());
    for (const std::span<float>& others : shared) {
      for (std::size_t i = 0; i < largest.size(); ++i) {
        // The bits of nonnegative numbers, infinity and NaN are ordered as integers.
        largest[i] = std::bit_cast<float>(std::max(std::bit_cast<std::uint32_t>(largest[i]),
                                                   std::bit_cast<std::uint32_t>(others[i])));
      }
    }
    all_.wait_for_all();
    std::copy(largest.begin(), largest.end(), magnitudes.begin());
  }

 private:
  std::span<const TensorView>& tensors_of(std::int64_t rank) const {
    return all_.tensors_[static_cast<std::size_t>(rank)];
  }

  ThreadRanks& all_;
  std::int64_t rank_;
};

ThreadRanks::ThreadRanks(std::int64_t size) {
  if (size < 1 || !std::has_single_bit(static_cast<std::uint64_t>(size))) {
    throw InputError({.found = fmt::format("{} ranks", size), .accepted = "a power of two"});
  }
  for (std::int64_t rank = 0; rank < size; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(*this, rank));
  }
  tensors_.resize(ranks_.size());
  magnitudes_.resize(ranks_.size());
}

ThreadRanks::~ThreadRanks() = default;

Ranks& ThreadRanks::operator[](std::int64_t rank) {
  return *ranks_.at(static_cast<std::size_t>(rank));
}

void ThreadRanks::abandon() {
  const std::lock_guard lock(mutex_);
  is_abandoned_ = true;
  changed_.notify_all();
}

void ThreadRanks::wait_for_all() {
  std::unique_lock lock(mutex_);
  const std::int64_t round = rounds_;
  if (++waiting_ == size()) {
    waiting_ = 0;
    ++rounds_;
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return rounds_ != round || is_abandoned_; });
  if (rounds_ == round) throw Error("another rank has failed");
}

}  // namespace fp8lab
