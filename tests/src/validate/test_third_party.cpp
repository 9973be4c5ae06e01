// Tensor cores of other chips: recorded products are replayed, and rules that are wrong in one
// parameter fail, on vectors of our own and on the recorded ones.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/spec/tensor_core.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/validate/gemm_cases.hpp"
#include "src/validate/scalar_arithmetic.hpp"
#include "src/validate/third_party.hpp"
#include "tests/scratch_directory.hpp"
#include "tests/src/io/zip_file.hpp"

namespace {

using namespace fp8lab;  // NOLINT: the subject of every line below
using numerics::Alignment;
using numerics::GroupModel;
using numerics::OutputKind;

struct Change {
  const char* name;
  std::function<void(GroupModel&)> change;
};

/// Rules beside that of `group`, each wrong in one parameter. Terms far below an FP16 accumulator
/// show at ties alone, of which random products have few (test_tensor_core has made ones).
std::vector<Change> wrong_rules(const GroupModel& group) {
  if (group.output == OutputKind::f16_nearest && group.fraction_bits > 20) {
    return {{"five fraction bits less", [](GroupModel& g) { g.fraction_bits -= 5; }},
            {"no fraction bits", [](GroupModel& g) { g.fraction_bits = 10; }}};
  }
  std::vector<Change> changes = {
      {"one fraction bit less", [](GroupModel& g) { --g.fraction_bits; }},
      {"one fraction bit more", [](GroupModel& g) { ++g.fraction_bits; }},
      {"terms to nearest", [](GroupModel& g) { g.alignment = Alignment::nearest_even; }},
  };
  if (group.output == OutputKind::f32_truncated) {
    changes.push_back({"other output rounding", [](GroupModel& g) {
                         g.output_rounding = g.output_rounding == Alignment::truncate
                                                 ? Alignment::nearest_even
                                                 : Alignment::truncate;
                       }});
    changes.push_back({"one mantissa bit less", [](GroupModel& g) { --g.output_mantissa_bits; }});
  }
  return changes;
}

/// The records of the folder that the environment names, or nothing after saying so.
const char* records_folder() {
  const char* const folder = std::getenv("FP8LAB_THIRD_PARTY_RECORDS");
  if (folder == nullptr) WARN("skipped: FP8LAB_THIRD_PARTY_RECORDS names no folder");
  return folder;
}

std::uint64_t mismatches(const Accumulator& accumulator, const numerics::FormatSpec& operand,
                         const RecordedProducts& products,
                         const std::vector<std::uint32_t>& recorded, bool with_addend) {
  const numerics::FormatSpec format = numerics::accumulator_format(accumulator.group.output);
  std::uint64_t count = 0;
  for (std::int64_t row = 0; row < products.rows; ++row) {
    const std::uint32_t result = recorded_result(accumulator, operand, products, row, with_addend);
    count += result != canonical_result(format, recorded[static_cast<std::size_t>(row)]);
  }
  return count;
}

template <class T>
std::string npy(const char* descr, std::int64_t rows, std::int64_t cols,
                const std::vector<T>& data) {
  std::string header = "{'descr': '" + std::string(descr) + "', 'fortran_order': False, 'shape': (";
  if (rows > 0) header += std::to_string(rows) + ", ";
  header += std::to_string(cols) + (rows > 0 ? ")" : ",)") + ", }\n";
  std::string bytes = "\x93NUMPY";
  bytes += {1, 0, static_cast<char>(header.size()), 0};
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(T));
  return bytes;
}

/// Two products of FP16: 1 + 2^-24 x (1, and 2) on top of C = 1 and 0, as sm_70 and sm_80 see them.
test::ZipMembers small_products(std::uint32_t first_result) {
  using U16 = std::vector<std::uint16_t>;
  using U32 = std::vector<std::uint32_t>;
  return {{"a.npy", npy("<u2", 2, 2, U16{0x3C00, 0x0400, 0x3C00, 0x0000})},
          {"b.npy", npy("<u2", 2, 2, U16{0x3C00, 0x1400, 0x4000, 0x3C00})},
          {"c_fp32.npy", npy("<u4", 0, 2, U32{0x3F800000, 0xFFC00001})},
          {"d_fp32.npy", npy("<u4", 0, 2, U32{first_result, 0x7FC00000})},
          {"d_fp16.npy", npy("<u2", 0, 2, U16{0x4000, 0x7E00})}};
}

}  // namespace

TEST_CASE("wrong rules of other chips fail on the vectors of the conformance pack") {
  CaseGenerator cases(11);
  const auto failures = [](const std::vector<ExpectedGroup>& groups, const auto& change) {
    int count = 0;
    for (const ExpectedGroup& one : groups) {
      GroupProblem problem = one.problem();
      change(problem.model.group);
      count += scalar_group(problem) != one.result;
    }
    return count;
  };
  for (const Instruction& instruction : kOtherInstructions) {
    INFO(instruction.name);
    const std::vector<ExpectedGroup> groups =
        draw_groups(instruction, scalar_implementation(), cases);
    CHECK(failures(groups, [](GroupModel&) {}) == 0);
    std::vector<Change> changes = wrong_rules(instruction.group);
    if (instruction.group.late_fraction_bits > 0) {
      changes.push_back({"one sum", [](GroupModel& g) { g.partial_sums = 1; }});
      changes.push_back({"the accumulator in the group", [](GroupModel& g) {
                           g.late_fraction_bits = 0;
                           g.partial_sums = 1;
                         }});
      changes.push_back({"few late bits", [](GroupModel& g) { g.late_fraction_bits = 24; }});
    }
    for (const Change& change : changes) {
      INFO(change.name);
      CHECK(failures(groups, change.change) > 0);
    }
  }
}

TEST_CASE("a product of CDNA3 is rounded down where it meets the accumulator") {
  const GroupModel& model = numerics::kCdna3Fp8F32;
  const auto sum = [&](std::vector<float> a, std::vector<float> b, float c) {
    const auto codes = [](const std::vector<float>& values) {
      std::vector<std::uint32_t> result;
      for (const float x : values) {
        result.push_back(numerics::encode(numerics::kE5M2Fnuz, numerics::float_bits(x)));
        REQUIRE(numerics::decode(numerics::kE5M2Fnuz, result.back()) == x);
      }
      return result;
    };
    const std::vector<std::uint32_t> x = codes(a), y = codes(b);
    return numerics::bits_float(
        numerics::fused_group(model, numerics::kE5M2Fnuz, numerics::kE5M2Fnuz, x.data(), y.data(),
                              static_cast<int>(x.size()), numerics::float_bits(c)));
  };
  CHECK(sum({1, 2}, {3, 0.5f}, 0.25f) == 4.25f);
  // Both even: below 2^(15 + 15 - 24) the product of 2^5 is cut toward zero. One odd: kept whole
  // in its own sum, which is then rounded down on the grid of the other.
  CHECK(sum({0x1p15f, 0, -4}, {0x1p15f, 0, 8}, -0x1p30f) == 0.0f);
  CHECK(sum({0x1p15f, -4, 0}, {0x1p15f, 8, 0}, -0x1p30f) == -0x1p6f);
  CHECK(sum({0x1p15f, 4, 0}, {0x1p15f, 8, 0}, -0x1p30f) == 0.0f);
  // The sum of the products keeps 31 bits below c, c itself 24 below a larger product.
  CHECK(sum({0x1p-15f}, {0x1p-15f}, 2.0f) == 2.0f);
  CHECK(sum({-0x1p-15f}, {0x1p-15f}, 0x1p0f) == 1.0f);  // 1 - 2^-30, to nearest even
  CHECK(sum({1}, {1}, -0x1p-25f) == 1.0f - 0x1p-24f);   // -2^-25 down to -2^-24
  CHECK(sum({1}, {1}, -0x1p-26f) == 1.0f);              // left out: below 2^-25
  CHECK(sum({0}, {0}, -0x1p-140f) == -0x1p-140f);
  CHECK(sum({0}, {0}, -0.0f) == 0.0f);
  CHECK(std::isnan(sum({1}, {1}, numerics::bits_float(numerics::kF32NaN))));
  CHECK(sum({57344}, {57344}, -numerics::bits_float(numerics::kF32Infinity)) ==
        -numerics::bits_float(numerics::kF32Infinity));
}

TEST_CASE("recorded products are compared, and what has no rule is counted") {
  const ScratchDirectory scratch;
  const auto write = [&](const std::string& name, const test::ZipMembers& members, bool deflated) {
    write_file_atomically(scratch / name, test::zip_file(members, deflated));
  };
  // 1 * 1 + 2^-14 * 2^-10 + 1: both chips cut 2^-24. NaN payloads are equal.
  write("V100_fp16.npz", small_products(0x40000000), true);
  write("A100_fp16.npz", small_products(0x40000001), false);
  write("Z9_fp16.npz", small_products(0), true);
  test::ZipMembers more = small_products(0x40000000);
  more.push_back({"d_fp64.npy", npy("<f8", 0, 2, std::vector<double>{1, 2})});
  write("B200_fp16.npz", more, true);
  write("B200_bf16.npz", {}, true);
  std::filesystem::remove(scratch / "B200_bf16.npz");
  std::vector<GoldenMismatch> found;
  const auto reports = validate_third_party(
      scratch.path(), [&](const GoldenMismatch& one) { found.push_back(one); });
  REQUIRE(reports.size() == 4);
  const auto counts = [&](std::size_t i) {
    return std::vector<std::uint64_t>{reports[i].counts.cases, reports[i].counts.mismatches,
                                      reports[i].counts.unchecked};
  };
  CHECK(reports[0].counts.file == "A100_fp16.npz");
  CHECK(counts(0) == std::vector<std::uint64_t>{4, 1, 0});
  CHECK(reports[0].rule == "sm80_f16, sm80_f16_f16acc");
  CHECK(counts(1) == std::vector<std::uint64_t>{4, 0, 2});
  CHECK_THAT(reports[1].rule, Catch::Contains("sm100_f16_f16acc, no rule for results other"));
  CHECK(counts(2) == std::vector<std::uint64_t>{4, 0, 0});
  CHECK(counts(3) == std::vector<std::uint64_t>{0, 0, 4});
  CHECK(reports[3].rule == "no profile for chip 'Z9' and format 'fp16'");
  REQUIRE(found.size() == 1);
  CHECK(found[0].where == "d_fp32, row 0");
  CHECK(found[0].expected == 0x40000001);
  CHECK(found[0].actual == 0x40000000);
}

TEST_CASE("recorded products of other shapes and types are refused") {
  const auto message = [](const test::ZipMembers& members) {
    const ScratchDirectory scratch;
    write_file_atomically(scratch / "V100_fp16.npz", test::zip_file(members, false));
    try {
      validate_third_party(scratch.path());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const test::ZipMembers good = small_products(0x40000000);
  CHECK(message(good) == "accepted");
  for (std::size_t i = 0; i < 3; ++i) {
    test::ZipMembers less = good;
    less.erase(less.begin() + static_cast<std::ptrdiff_t>(i));
    CHECK_THAT(message(less), Catch::Contains("is missing"));
  }
  for (std::size_t i = 0; i < good.size(); ++i) {
    INFO(good[i].first);
    test::ZipMembers other = good;
    other[i].second = npy("<f4", 2, 3, std::vector<float>(6));
    CHECK_THAT(message(other), Catch::Contains("V100_fp16.npz: array '"));
  }
  const ScratchDirectory empty;
  CHECK_THROWS_WITH(validate_third_party(empty.path()), Catch::Contains("no recorded products"));
  CHECK_THROWS_AS(validate_third_party(empty / "none"), Error);
}

TEST_CASE("every recorded unit has a profile that says replayed or measured") {
  std::set<std::string_view> used;
  for (const RecordedUnit& unit : recorded_units()) {
    INFO(unit.chip << " " << unit.format);
    CHECK(recorded_unit(unit.chip, unit.format) == &unit);
    for (const std::string_view name : {unit.with_fp32, unit.with_fp16}) {
      if (name.empty()) continue;
      used.insert(name);
      REQUIRE(accumulator_by_name(name).has_value());
      CHECK(accumulator_by_name(name)->carrier(unit.operand) == unit.operand);
    }
  }
  for (const TensorCoreProfile& profile : tensor_core_profiles()) {
    INFO(profile.name);
    if (profile.evidence == Evidence::replayed) CHECK(used.count(profile.name) == 1);
    if (profile.evidence == Evidence::published) CHECK(used.count(profile.name) == 0);
  }
}

TEST_CASE("recorded products of eight GPUs are reproduced, and neighbours of their rules are not") {
  const char* const folder = records_folder();
  if (folder == nullptr) return;
  const auto reports = validate_third_party(folder);
  CHECK(reports.size() == recorded_units().size());
  for (const ThirdPartyReport& report : reports) {
    INFO(report.counts.file << " " << report.rule);
    CHECK(report.counts.cases > 0);
    CHECK(report.counts.mismatches == 0);
    CHECK(report.counts.unchecked == 0);
  }
  for (const RecordedUnit& unit : recorded_units()) {
    const std::string file = std::string(unit.chip) + "_" + std::string(unit.format) + ".npz";
    const RecordedProducts products =
        read_recorded_products(std::filesystem::path(folder) / file, unit.operand);
    const auto check = [&](std::string_view name, const std::vector<std::uint32_t>& recorded,
                           bool with_addend) {
      if (recorded.empty()) return;
      const Accumulator right = *accumulator_by_name(name);
      // The parts of mma_sync_fp8 are no parameters.
      if (right.unit != numerics::ChainUnit::fused_group) return;
      for (const Change& change : wrong_rules(right.group)) {
        Accumulator wrong = right;
        change.change(wrong.group);
        INFO(file << " " << name << ": " << change.name);
        CHECK(mismatches(wrong, unit.operand, products, recorded, with_addend) > 0);
      }
    };
    check(unit.with_fp32, products.d32, !unit.fp32_without_addend);
    check(unit.with_fp16, products.d16, true);
  }
  // What MMA-Sim says of mma on Blackwell is not what a B200 returned.
  std::uint64_t differences = 0;
  for (const char* format : {"E4M3", "E5M2"}) {
    const RecordedUnit& unit = *recorded_unit("B200", format);
    const RecordedProducts products = read_recorded_products(
        std::filesystem::path(folder) / ("B200_" + std::string(format) + ".npz"), unit.operand);
    differences +=
        mismatches(Accumulator::sm100_f8f6f4, unit.operand, products, products.d32, true);
  }
  CHECK(differences == 3557);
}
