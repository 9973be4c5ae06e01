// `validate kernels` notices an operation with one wrong bit.
#include <catch2/catch.hpp>

#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

#include "emulation/cases/list.hpp"
#include "emulation/cpu/cpu_backend.hpp"
#include "emulation/recording/stand_in.hpp"
#include "src/validate/kernels.hpp"

using namespace fp8lab;

namespace {

enum class Flip { first, last };

/// The CPU backend, but of one operation a bit of the first or the last byte that it changes is
/// wrong.
class WrongBitBackend final : public StandIn {
 public:
  WrongBitBackend(cpu::CpuBackend& original, std::string_view operation, Flip flip)
      : StandIn(original), original_(original), operation_(operation), flip_(flip) {}

  TensorView allocate(DType dtype, std::int64_t rows, std::int64_t cols) override {
    memory_.push_back(original_.allocate(dtype, rows, cols));
    return memory_.back();
  }
  std::size_t memory_mark() const override { return original_.memory_mark(); }
  void release_to(std::size_t mark) override {
    memory_.resize(memory_.size() - (original_.memory_mark() - mark));
    original_.release_to(mark);
  }
  std::size_t memory_bytes() const override { return original_.memory_bytes(); }
  void upload(const TensorView& destination, const void* source) override {
    original_.upload(destination, source);
  }
  void download_all(std::span<const Download> downloads) override {
    original_.download_all(downloads);
  }
  void fill_zero(const TensorView& view) override { original_.fill_zero(view); }
  void synchronize() override {}

#define FP8LAB_OPERATION(Name) \
  void run(const ops::Name& op) override { run_wrongly(op); }
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

 private:
  using Bytes = std::vector<std::byte>;

  static std::size_t size_in_bytes(const TensorView& view) {
    return static_cast<std::size_t>(view.size()) * size_of(view.dtype);
  }

  template <class Op>
  void run_wrongly(const Op& op) {
    if (Op::kName != operation_) return original_.run(op);
    std::vector<Bytes> before;
    for (const TensorView& view : memory_) {
      const auto* const bytes = static_cast<const std::byte*>(view.data);
      before.emplace_back(bytes, bytes + size_in_bytes(view));
    }
    original_.run(op);
    std::byte* changed = nullptr;
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      auto* const bytes = static_cast<std::byte*>(memory_[i].data);
      for (std::size_t at = 0; at < before[i].size(); ++at) {
        if (bytes[at] == before[i][at]) continue;
        if (flip_ == Flip::last || changed == nullptr) changed = &bytes[at];
      }
    }
    if (changed != nullptr) *changed ^= std::byte{1};
  }

  cpu::CpuBackend& original_;
  std::string_view operation_;
  Flip flip_;
  std::vector<TensorView> memory_;
};

/// Cases of `source` in the smallest round that differ where `broken` has a wrong bit.
int mismatches(const CaseSource& source, std::string_view broken, Flip flip) {
  cpu::CpuBackend expected(0), original(0);
  WrongBitBackend tested(original, broken, flip);
  int found = 0;
  std::uint64_t compared = 0;
  for_each_case(source, 1, 0, [&](const OperationCase& drawn) {
    if (compare_case(drawn, expected, tested, {}, 1, compared)) ++found;
  });
  CHECK(compared > 0);
  return found;
}

}  // namespace

TEST_CASE("the cases of every operation notice one wrong bit of it") {
  for (const CaseSource& source : kCaseSources) {
    INFO(source.operation);
    CHECK(mismatches(source, source.operation, Flip::first) > 0);
    CHECK(mismatches(source, source.operation, Flip::last) > 0);
  }
}

TEST_CASE("a backend without wrong bits passes, and one with a wrong bit is named") {
  KernelOptions options;
  options.rounds = 1;
  options.outputs = 1;
  options.repeats = 1;
  options.only = "norm_";
  cpu::CpuBackend expected(0), original(0);
  WrongBitBackend good(original, "", Flip::first);
  CHECK(validate_kernels(expected, good, options).good());
  WrongBitBackend bad(original, ops::LayerNormBackward::kName, Flip::last);
  // Said with the case, for whoever breaks the comparison off.
  int cases = 0;
  options.progress = [&](const std::string& kernel, const KernelOutcome& so_far) {
    if (kernel == "layernorm_backward" && ++cases == 1) CHECK(so_far.mismatches.size() == 1);
  };
  const KernelOutcome outcome = validate_kernels(expected, bad, options);
  CHECK(cases > 0);
  REQUIRE(outcome.mismatches.size() == 1);
  CHECK(outcome.mismatches[0].kernel == "layernorm_backward");
  CHECK_FALSE(outcome.mismatches[0].guard);
  options.only = "no such kernel";
  CHECK_THROWS_WITH(validate_kernels(expected, good, options),
                    "validate kernels: no kernel is called 'no such kernel'");
}
