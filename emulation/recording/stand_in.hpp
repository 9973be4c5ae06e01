// Base classes of backends that wrap another backend.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "emulation/backend.hpp"

namespace fp8lab {

/// Answers every query as the wrapped backend does.
class StandIn : public Backend {
 public:
  std::string name() const override { return original_.name(); }
  std::string device() const override { return original_.device(); }
  bool is_on_host() const override { return original_.is_on_host(); }
  std::optional<std::size_t> free_bytes() const override { return original_.free_bytes(); }
  DType storage(DType wanted) const override { return original_.storage(wanted); }
  std::size_t allocation_bytes(DType dtype, std::int64_t rows, std::int64_t cols) const override {
    return original_.allocation_bytes(dtype, rows, cols);
  }
#define FP8LAB_OPERATION(Name) \
  Support supports(const ops::Name& op) const override { return original_.supports(op); }
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

 protected:
  /// `original` must outlive this.
  explicit StandIn(const Backend& original) : original_(original) {}

 private:
  const Backend& original_;
};

/// Uses the memory, the copies and the labels of the wrapped backend. Derived classes handle the
/// operations.
class PassThrough : public StandIn {
 public:
  TensorView allocate(DType dtype, std::int64_t rows, std::int64_t cols) override {
    return original_.allocate(dtype, rows, cols);
  }
  void reserve(std::size_t bytes) override { original_.reserve(bytes); }
  std::size_t memory_mark() const override { return original_.memory_mark(); }
  void release_to(std::size_t mark) override { original_.release_to(mark); }
  std::size_t memory_bytes() const override { return original_.memory_bytes(); }
  void upload(const TensorView& destination, const void* source) override {
    original_.upload(destination, source);
  }
  void download_all(std::span<const Download> downloads) override {
    original_.download_all(downloads);
  }
  void fill_zero(const TensorView& view) override { original_.fill_zero(view); }
  void discard(const TensorView& view) override { original_.discard(view); }
  void synchronize() override { original_.synchronize(); }

 protected:
  /// `original` must outlive this.
  explicit PassThrough(Backend& original) : StandIn(original), original_(original) {}

  Backend& original() { return original_; }

 private:
  void label_changed() override { original_.enter(label()); }

  Backend& original_;
};

}  // namespace fp8lab
