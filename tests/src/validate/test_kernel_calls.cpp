// What `validate kernels` draws for the statistics of operands, on the CPU backend alone.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "emulation/cpu/cpu_backend.hpp"
#include "emulation/ops/operand_statistics.hpp"
#include "src/validate/kernels.hpp"

namespace fp8lab {
namespace {

std::vector<KernelCall> statistics_calls(int round) {
  std::vector<KernelCall> calls = quantization_calls(1, round);
  std::erase_if(calls, [](const KernelCall& call) {
    return call.kernel.find("operand_statistics") == std::string::npos;
  });
  return calls;
}

/// The record that a call writes on the CPU.
OperandStatistics record_of(KernelCall call) {
  cpu::CpuBackend backend(0);
  std::vector<TensorView> views;
  for (HostTensor& tensor : call.tensors) {
    views.push_back({tensor.data.data(), tensor.dtype, tensor.rows, tensor.cols, tensor.cols});
  }
  call.run(backend, views);
  OperandStatistics record;
  REQUIRE(call.tensors.back().data.size() == sizeof record);
  std::memcpy(&record, call.tensors.back().data.data(), sizeof record);
  return record;
}

}  // namespace

TEST_CASE("statistics are validated for few, odd, even and many columns in both orientations") {
  for (const bool transposed : {false, true}) {
    std::set<std::int64_t> columns;
    for (const KernelCall& call : statistics_calls(0)) {
      const bool turned = call.what.find("transposed") != std::string::npos;
      if (turned == transposed) columns.insert(call.tensors[0].cols);
    }
    for (const std::int64_t few : {1, 2, 7, 8, 9}) CHECK(columns.count(few) == 1);
    const auto some = [&](std::int64_t above, std::int64_t upto, std::int64_t remainder) {
      return std::any_of(columns.begin(), columns.end(), [=](std::int64_t cols) {
        return cols > above && cols <= upto && cols % 2 == remainder;
      });
    };
    CHECK(some(9, 1002, 0));
    CHECK(some(9, 1002, 1));
    CHECK((some(999, 9000, 0) || some(999, 9000, 1)));
    CHECK(some(65536, 100000, 0));
    CHECK(some(65536, 100000, 1));
  }
}

TEST_CASE("statistics are validated for zeros, ties, infinities, and nothing but NaN") {
  int zero = 0, tied = 0, some_nonfinite = 0, all_nonfinite = 0, different = 0;
  for (const KernelCall& call : statistics_calls(0)) {
    const OperandStatistics s = record_of(call);
    const auto elements = static_cast<double>(call.tensors[0].rows * call.tensors[0].cols);
    if (s.nonfinite_count == elements) {
      ++all_nonfinite;
    } else if (s.nonfinite_count > 0) {
      ++some_nonfinite;
    } else if (s.amax == 0) {
      ++zero;
    } else if (s.top_channel_amax[1] == s.amax) {
      ++tied;
    } else {
      ++different;
    }
  }
  CHECK(zero >= 20);
  CHECK(tied >= 10);
  CHECK(some_nonfinite >= 10);
  CHECK(all_nonfinite >= 20);
  CHECK(different >= 20);
}

}  // namespace fp8lab
