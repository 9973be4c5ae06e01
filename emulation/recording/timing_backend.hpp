// A backend with a stop watch.
#pragma once

#include "emulation/recording/stand_in.hpp"
#include "emulation/recording/work_log.hpp"

namespace fp8lab {

/// Runs everything on `original`, waits for the end of each operation, and logs its work and time.
class TimingBackend final : public StandIn {
 public:
  /// `original` must outlive this.
  explicit TimingBackend(Backend& original);

  TensorView allocate(DType dtype, std::int64_t rows, std::int64_t cols) override {
    return timed_.allocate(dtype, rows, cols);
  }
  std::size_t memory_mark() const override { return timed_.memory_mark(); }
  void release_to(std::size_t mark) override { timed_.release_to(mark); }
  std::size_t memory_bytes() const override { return timed_.memory_bytes(); }
  void upload(const TensorView& destination, const void* source) override {
    timed_.upload(destination, source);
  }
  void download_all(std::span<const Download> downloads) override {
    timed_.download_all(downloads);
  }
  void fill_zero(const TensorView& view) override;
  void synchronize() override { timed_.synchronize(); }

#define FP8LAB_OPERATION(Name) void run(const ops::Name& op) override;
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

  const WorkLog& log() const { return log_; }
  void clear_log() { log_.clear(); }

 private:
  template <class Op, class Call>
  void time(const Op& op, const Call& call);

  Backend& timed_;
  WorkLog log_;
};

}  // namespace fp8lab
