// A backend that does nothing but count: memory and work of what would run, before there is memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulation/recording/stand_in.hpp"
#include "emulation/recording/work_log.hpp"

namespace fp8lab {

/// Memory is counted as `original` counts it, and operations are checked and logged. A composite is
/// logged as itself, because the backend may do it in one pass. There are no values: what is
/// uploaded is not read, and nothing can be downloaded.
class RecordingBackend final : public StandIn {
 public:
  /// `original` must outlive this.
  explicit RecordingBackend(const Backend& original);

  /// The address is not that of any memory; tensors do not overlap.
  TensorView allocate(DType dtype, std::int64_t rows, std::int64_t cols) override;
  std::size_t memory_mark() const override { return allocations_.size(); }
  void release_to(std::size_t mark) override;
  std::size_t memory_bytes() const override { return held_; }
  /// The most that was held at once.
  std::size_t peak_bytes() const { return peak_; }
  void upload(const TensorView&, const void*) override {}
  /// Throws Error: whoever reads a value may decide by it what runs next.
  void download_all(std::span<const Download> downloads) override;
  void fill_zero(const TensorView& view) override;
  void synchronize() override {}

  /// Throws Error as the operation's check() does.
#define FP8LAB_OPERATION(Name) \
  void run(const ops::Name& op) override { record(op); }
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

  const WorkLog& log() const { return log_; }
  void clear_log() { log_.clear(); }

 private:
  struct Allocation {
    std::uintptr_t address;
    std::size_t bytes;
  };

  template <class Op>
  void record(const Op& op) {
    if (is_checked_) op.check();
    add(log_, op);
  }

  bool is_checked_;  ///< check() is of the types of recipes, which the truth path does not store
  std::vector<Allocation> allocations_;
  std::size_t held_ = 0, peak_ = 0;
  WorkLog log_;
};

}  // namespace fp8lab
