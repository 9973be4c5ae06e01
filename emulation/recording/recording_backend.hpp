// A backend that only counts the memory and the work of a run, before any memory is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulation/recording/stand_in.hpp"
#include "emulation/recording/work_log.hpp"

namespace fp8lab {

/// Counts memory as `original` does, and checks and logs operations without running them. Logs a
/// composite as one operation, because a backend may fuse it. Tensors have no values: upload()
/// reads nothing, and a download throws.
class RecordingBackend final : public StandIn {
 public:
  /// `original` must outlive this.
  explicit RecordingBackend(const Backend& original);

  /// Returns a view with a made-up address. Tensors do not overlap.
  TensorView allocate(DType dtype, std::int64_t rows, std::int64_t cols) override;
  std::size_t memory_mark() const override { return allocations_.size(); }
  void release_to(std::size_t mark) override;
  std::size_t memory_bytes() const override { return held_; }
  /// Returns the largest number of bytes allocated at one time.
  std::size_t peak_bytes() const { return peak_; }
  void upload(const TensorView&, const void*) override {}
  /// Throws Error: the caller may choose later operations by the value, and there is none.
  void download_all(std::span<const Download> downloads) override;
  void fill_zero(const TensorView& view) override;
  void synchronize() override {}

  /// Throws Error if the operation's check() does.
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

  bool is_checked_;  ///< run() calls check(), which refuses the truth path's f64 tensors
  std::vector<Allocation> allocations_;
  std::size_t held_ = 0, peak_ = 0;
  WorkLog log_;
};

}  // namespace fp8lab
