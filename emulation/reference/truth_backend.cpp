#include "emulation/reference/truth_backend.hpp"

#include <cstring>
#include <vector>

#include <fmt/format.h>
#include <Eigen/Core>

#include "emulation/base/default_threads.hpp"
#include "emulation/base/error.hpp"
#include "emulation/base/machine.hpp"
#include "emulation/reference/start_threads.hpp"
#include "emulation/reference/truth/operations.hpp"

namespace fp8lab::reference {
namespace {

/// Recipes are not applied, so only operations that measure their effect are refused.
template <class Op>
Support refusal(const Op&) {
  return {};
}

Support refusal(const ops::MeasureOperand&) { return {truth::kNoStatistics}; }
Support refusal(const ops::PartialValues&) { return {truth::kNoStatistics}; }

class TruthBackend final : public Backend {
 public:
  using Backend::run;

  explicit TruthBackend(int threads) {
    if (checked_threads(threads, "threads") > 0) Eigen::setNbThreads(threads);
    start_threads(threads > 0 ? threads : default_threads());
  }

  std::string name() const override { return "truth"; }
  std::string device() const override { return "CPU, double precision"; }
  DType storage(DType wanted) const override {
    return wanted == DType::i32 ? DType::i32 : DType::f64;
  }
  bool is_on_host() const override { return true; }

  using Backend::supports;
#define FP8LAB_OPERATION(Name)                                                 \
  Support supports(const ops::Name& op) const override { return refusal(op); } \
  void run(const ops::Name& op) override { truth::run(op); }
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

  std::size_t allocation_bytes(DType dtype, std::int64_t rows, std::int64_t cols) const override {
    FP8LAB_ASSERT(rows >= 0 && cols >= 0);
    const auto bytes = static_cast<std::size_t>(rows * cols) * size_of(dtype);
    return (bytes + 7) / 8 * 8;
  }
  TensorView allocate(DType dtype, std::int64_t rows, std::int64_t cols) override {
    FP8LAB_ASSERT(rows >= 0 && cols >= 0);
    const double needed =
        static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(size_of(dtype));
    require_memory(needed, fmt::format("allocate: a tensor of shape ({}, {})", rows, cols));
    buffers_.emplace_back(allocation_bytes(dtype, rows, cols) / sizeof(double), 0.0);
    return {buffers_.back().data(), dtype, rows, cols, cols};
  }
  std::size_t memory_mark() const override { return buffers_.size(); }
  void release_to(std::size_t mark) override { buffers_.resize(mark); }
  std::size_t memory_bytes() const override {
    std::size_t total = 0;
    for (const auto& buffer : buffers_) total += buffer.size() * sizeof(double);
    return total;
  }
  void upload(const TensorView& destination, const void* source) override {
    const auto width = static_cast<std::size_t>(destination.cols) * size_of(destination.dtype);
    for (std::int64_t r = 0; r < destination.rows; ++r) {
      std::memcpy(row_bytes(destination, r),
                  static_cast<const std::byte*>(source) + static_cast<std::size_t>(r) * width,
                  width);
    }
  }
  void download_all(std::span<const Download> downloads) override {
    for (const auto& [destination, source] : downloads) {
      const auto width = static_cast<std::size_t>(source.cols) * size_of(source.dtype);
      for (std::int64_t r = 0; r < source.rows; ++r) {
        std::memcpy(static_cast<std::byte*>(destination) + static_cast<std::size_t>(r) * width,
                    row_bytes(source, r), width);
      }
    }
  }
  void fill_zero(const TensorView& view) override {
    for (std::int64_t r = 0; r < view.rows; ++r) {
      std::memset(row_bytes(view, r), 0, static_cast<std::size_t>(view.cols) * size_of(view.dtype));
    }
  }
  void synchronize() override {}

 private:
  static std::byte* row_bytes(const TensorView& view, std::int64_t r) {
    return static_cast<std::byte*>(view.data) +
           static_cast<std::size_t>(r * view.row_stride) * size_of(view.dtype);
  }

  std::vector<std::vector<double>> buffers_;
};

}  // namespace

std::unique_ptr<Backend> make_truth_backend(int threads) {
  return std::make_unique<TruthBackend>(threads);
}

}  // namespace fp8lab::reference
