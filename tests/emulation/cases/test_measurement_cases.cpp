// Cases of the statistics of operands: which shapes and values they meet.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "emulation/cpu/cpu_backend.hpp"
#include "emulation/ops/quantize/operand_statistics.hpp"
#include "tests/emulation/cases/drawn_cases.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

void for_each_measurement(const CaseVisitor& visit) {
  for_each_case(source_of(ops::MeasureOperand::kName), 1, 0, visit);
}

/// The record that a case writes on the CPU.
OperandStatistics measured(const OperationCase& drawn) {
  cpu::CpuBackend backend(0);
  const std::vector<HostTensor> after = run_on_host(drawn, backend);
  OperandStatistics record;
  REQUIRE(after.back().data.size() == sizeof record);
  std::memcpy(&record, after.back().data.data(), sizeof record);
  return record;
}

}  // namespace

TEST_CASE("statistics are validated for few, odd, even and many columns in both orientations") {
  for (const bool transposed : {false, true}) {
    std::set<std::int64_t> columns;
    for_each_measurement([&](const OperationCase& drawn) {
      const bool turned = drawn.what.find("transposed") != std::string::npos;
      if (turned == transposed) columns.insert(drawn.tensors[0].cols);
    });
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
  for_each_measurement([&](const OperationCase& drawn) {
    const OperandStatistics s = measured(drawn);
    const auto elements = static_cast<double>(drawn.tensors[0].rows * drawn.tensors[0].cols);
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
  });
  CHECK(zero >= 20);
  CHECK(tied >= 10);
  CHECK(some_nonfinite >= 10);
  CHECK(all_nonfinite >= 20);
  CHECK(different >= 20);
}
