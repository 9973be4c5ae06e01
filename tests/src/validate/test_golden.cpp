// Replays the committed vectors, shows that wrong models fail on them, and that damaged files are
// refused.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "emulation/base/error.hpp"
#include "src/validate/golden.hpp"
#include "src/validate/golden_conversions.hpp"
#include "src/validate/golden_file.hpp"

namespace {

using namespace fp8lab;
namespace fs = std::filesystem;
using numerics::EpilogueScales;
using numerics::OutputKind;
using numerics::ScaleOrder;

const fs::path kData = fs::path(FP8LAB_TEST_DATA) / "golden";

GoldenOptions without_hashes() {
  GoldenOptions options;
  options.conversion_hashes = false;
  return options;
}

// A directory of our own that disappears with the test.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string pattern = (fs::temp_directory_path() / "fp8lab_golden_XXXXXX").string();
    const char* made = mkdtemp(pattern.data());
    REQUIRE(made != nullptr);
    path_ = made;
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  void write(const char* file, const std::string& bytes) const {
    std::ofstream(path_ / file, std::ios::binary) << bytes;
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string read_file(const char* file) {
  std::ifstream stream(kData / file, std::ios::binary);
  REQUIRE(stream.good());
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void put_u32(std::string& bytes, std::size_t offset, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) bytes[offset + i] = static_cast<char>(value >> (8 * i));
}

TEST_CASE("every committed vector is reproduced") {
  std::vector<GoldenReport> reports;
  std::vector<std::string> differences;
  GoldenOptions options = without_hashes();
  options.first_mismatch = [&](const GoldenMismatch& m) {
    differences.push_back(m.file + ": " + m.where);
  };
  REQUIRE_NOTHROW(reports = validate_golden(kData, options));
  CHECK(differences.empty());
  const std::vector<std::pair<std::string, std::uint64_t>> expected = {
      {"conv_sample.bin", 18 * 16384},
      {"mma.bin", 196 * 512},
      {"gemm.bin", 3704},
      {"gemm_edge.bin", 13191},
  };
  REQUIRE(reports.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(reports[i].file);
    CHECK(reports[i].file == expected[i].first);
    CHECK(reports[i].cases == expected[i].second);
    CHECK(reports[i].mismatches == 0);
    CHECK(reports[i].unchecked == 0);
  }
}

TEST_CASE("the hash of one chunk of each conversion is reproduced") {
  GoldenReader samples(kData / "conv_sample.bin");
  samples.expect_magic("CONV");
  samples.read_many<std::uint32_t>(2);
  const auto seed = samples.read<std::uint32_t>();
  GoldenReader hashes(kData / "conv_hash.bin");
  const auto recorded = hashes.read_many<std::uint64_t>(kGoldenConversions * 256);
  const std::uint32_t chunk = 0x43;  // 128 to 512: crosses the maximum of e4m3fn
  for (int c = 0; c < kGoldenConversions; ++c) {
    CAPTURE(c);
    if (golden_conversion_alias(c) != c) continue;
    CHECK(golden_conversion_hash(c, chunk, seed) ==
          recorded[static_cast<std::size_t>(c) * 256 + chunk]);
  }
}

// --- wrong models -------------------------------------------------------------------------------

using MmaMutation = std::function<void(MmaModel&)>;

std::uint64_t mma_mismatches(const std::vector<std::uint32_t>& ops, const MmaMutation& mutate) {
  std::uint64_t mismatches = 0;
  read_mma_records(kData / "mma.bin", [&](const MmaRecord& record) {
    if (std::find(ops.begin(), ops.end(), record.op) == ops.end()) return;
    MmaModel model = mma_model(record);
    mutate(model);
    for (const MmaTile& tile : record.tiles) {
      for (std::size_t i = 0; i < tile.d.size(); ++i) {
        const std::uint32_t* a = tile.a.data() + i / 8 * record.k;
        const std::uint32_t* b = tile.b.data() + i % 8 * record.k;
        mismatches += mma_element(model, record, a, b, tile.c[i]) != tile.d[i] ? 1u : 0u;
      }
    }
  });
  return mismatches;
}

TEST_CASE("wrong models of the fused group fail on the vectors") {
  for (std::uint32_t op = 0; op < 10; ++op) {
    CAPTURE(op);
    CHECK(mma_mismatches({op}, [](MmaModel&) {}) == 0);
    if (op == 2 || op == 3) continue;  // fixed composition of the models of ops 7 and 9
    CHECK(mma_mismatches({op}, [](MmaModel& m) { --m.group.fraction_bits; }) > 100);
    CHECK(mma_mismatches({op}, [](MmaModel& m) { ++m.group.fraction_bits; }) > 100);
    CHECK(mma_mismatches({op}, [](MmaModel& m) {
            m.group.alignment = numerics::Alignment::nearest_even;
          }) > 100);
    CHECK(mma_mismatches({op}, [](MmaModel& m) { m.group.normalize_products = true; }) > 100);
    if (op > 7) continue;  // the rounding to f16 hides it in these vectors
    CHECK(mma_mismatches({op}, [](MmaModel& m) { m.group.zero_products_count = true; }) > 0);
  }
  const std::vector<std::uint32_t> f32_fp8 = {0};
  const std::vector<std::uint32_t> f32_wide = {4, 5, 6, 7};
  CHECK(mma_mismatches(f32_fp8, [](MmaModel& m) { m.group.output_mantissa_bits = 12; }) > 100);
  CHECK(mma_mismatches(f32_fp8, [](MmaModel& m) { m.group.output_mantissa_bits = 14; }) > 100);
  CHECK(mma_mismatches(f32_wide, [](MmaModel& m) { m.group.output_mantissa_bits = 22; }) > 100);
  CHECK(mma_mismatches({4}, [](MmaModel& m) { m.group.min_exponent = -126; }) > 0);
  // One 32-product group with C inside it, as mma.sync FP8 has been described.
  CHECK(mma_mismatches({2}, [](MmaModel& m) {
          m.mma_sync_fp8 = false;
          m.group.products = 32;
        }) > 100);
}

using GemmFilter = std::function<bool(const GemmRecord&)>;
using GemmMutation = std::function<void(GemmModel&, GemmRecord&)>;

std::uint64_t gemm_mismatches(const GemmFilter& filter, const GemmMutation& mutate) {
  std::uint64_t mismatches = 0;
  for (const char* file : {"gemm.bin", "gemm_edge.bin"}) {
    read_gemm_records(kData / file, [&](const GemmRecord& stored) {
      if (!filter(stored)) return;
      GemmRecord record = stored;
      GemmModel model = gemm_model(record);
      mutate(model, record);
      for (std::size_t i = 0; i < record.d.size(); ++i) {
        const std::size_t columns = record.cols.size();
        const std::uint32_t actual = gemm_element(model, record, i / columns, i % columns);
        mismatches += actual != record.d[i] ? 1u : 0u;
      }
    });
  }
  return mismatches;
}

GemmFilter mode(std::uint32_t a, std::uint32_t b) {
  return [a, b](const GemmRecord& r) {
    return r.format_a < 2 && r.scale_mode_a == a && r.scale_mode_b == b;
  };
}

bool is_fp8(const GemmRecord& record) { return record.format_a < 2; }
bool is_square(const GemmRecord& record) {
  return record.scale_mode_a == 5 || record.scale_mode_b == 5;
}

void rotate_scales(std::vector<float>& scales, std::size_t per_row) {
  for (std::size_t start = 0; start < scales.size(); start += per_row) {
    const auto first = scales.begin() + static_cast<std::ptrdiff_t>(start);
    std::rotate(first, first + 1, first + static_cast<std::ptrdiff_t>(per_row));
  }
}

TEST_CASE("the unchanged GEMM model fits") {
  CHECK(gemm_mismatches([](const GemmRecord&) { return true; }, [](GemmModel&, GemmRecord&) {}) ==
        0);
}

TEST_CASE("wrong accumulators fail on recorded GEMMs") {
  for (const int change : {-1, 1}) {
    const auto mutate = [change](GemmModel& m, GemmRecord&) {
      m.element.group.fraction_bits += change;
    };
    CHECK(gemm_mismatches(is_fp8, mutate) > 100);
    CHECK(gemm_mismatches([](const GemmRecord& r) { return !is_fp8(r); }, mutate) > 10);
  }
  CHECK(gemm_mismatches(is_fp8, [](GemmModel& m, GemmRecord&) {
          m.element.group.alignment = numerics::Alignment::nearest_even;
        }) > 100);
  for (const numerics::ChainUnit unit :
       {numerics::ChainUnit::mma_sync_fp8, numerics::ChainUnit::ideal_fp32,
        numerics::ChainUnit::ideal_exact}) {
    CHECK(gemm_mismatches(is_fp8, [unit](GemmModel& m, GemmRecord&) { m.element.unit = unit; }) >
          100);
  }
}

TEST_CASE("wrong schedules fail on recorded GEMMs") {
  const auto promoted = [](const GemmRecord& r) { return is_fp8(r) && r.fast == 0 && r.k > 128; };
  const auto promoted_later = [&](const GemmRecord& r) {
    return promoted(r) && r.scale_mode_a < 4;
  };
  const auto fast = [](const GemmRecord& r) { return is_fp8(r) && r.fast == 1 && r.k > 128; };
  for (const std::int64_t interval : {0, 64, 256}) {  // 0: no promotion
    CAPTURE(interval);
    CHECK(gemm_mismatches(promoted_later, [interval](GemmModel& m, GemmRecord&) {
            m.element.promote_interval = interval;
          }) > 100);
  }
  CHECK(gemm_mismatches(fast, [](GemmModel& m, GemmRecord&) { m.element.promote_interval = 128; }) >
        100);
  // The K tail beyond the last whole block of 128 left out.
  CHECK(gemm_mismatches([](const GemmRecord& r) { return r.k % 128 != 0; },
                        [](GemmModel&, GemmRecord& r) {
                          for (std::size_t i = 0; i < r.a.size(); ++i) {
                            if (i % r.k >= r.k / 128 * 128) r.a[i] = 0;
                          }
                        }) > 100);
  // Split-K left out; and its ranges without the multiple-of-4 rule.
  const auto split = [](const GemmRecord& r) { return r.split_k > 1; };
  CHECK(gemm_mismatches(split, [](GemmModel& m, GemmRecord&) { m.element.range_width = 0; }) > 0);
  CHECK(gemm_mismatches([&](const GemmRecord& r) { return split(r) && is_square(r); },
                        [](GemmModel& m, GemmRecord& r) {
                          m.element.range_width =
                              numerics::split_range_width(r.k, 128, r.split_k, false);
                        }) > 0);
}

TEST_CASE("wrong scale arithmetic fails on recorded GEMMs") {
  const auto promotion = [](ScaleOrder wrong) {
    return [wrong](GemmModel& m, GemmRecord&) { m.element.order = wrong; };
  };
  CHECK(gemm_mismatches(mode(4, 4), promotion(ScaleOrder::product_first)) > 10);
  CHECK(gemm_mismatches(mode(4, 4), promotion(ScaleOrder::a_then_b)) > 10);
  CHECK(gemm_mismatches(mode(4, 5), promotion(ScaleOrder::b_then_a)) > 10);
  CHECK(gemm_mismatches(mode(5, 4), promotion(ScaleOrder::a_then_b)) > 10);
  const auto blocks = [](const GemmRecord& r) { return r.scales_a > 1; };
  CHECK(gemm_mismatches(blocks,
                        [](GemmModel&, GemmRecord& r) { rotate_scales(r.sa, r.scales_a); }) > 100);
  CHECK(gemm_mismatches(blocks,
                        [](GemmModel&, GemmRecord& r) { rotate_scales(r.sb, r.scales_b); }) > 100);
  // alpha folded into the outer scales.
  CHECK(gemm_mismatches(mode(3, 3), [](GemmModel& m, GemmRecord& r) {
          for (float& scale : r.sa) scale *= m.epilogue.alpha;
          m.epilogue.alpha = 1.0f;
        }) > 10);
  CHECK(gemm_mismatches(mode(3, 3), [](GemmModel& m, GemmRecord&) {
          m.epilogue.scales = EpilogueScales::scalar;
        }) > 10);
  CHECK(gemm_mismatches(mode(0, 0), [](GemmModel& m, GemmRecord&) {
          m.epilogue.scales = EpilogueScales::outer;
        }) > 10);
}

TEST_CASE("wrong epilogues fail on recorded GEMMs") {
  const auto swap_form = [](GemmModel& m, GemmRecord&) {
    m.epilogue.split_k = !m.epilogue.split_k;
  };
  CHECK(gemm_mismatches([](const GemmRecord& r) { return r.split_k == 1; }, swap_form) > 10);
  CHECK(gemm_mismatches([](const GemmRecord& r) { return r.split_k > 1; }, swap_form) > 0);
  CHECK(gemm_mismatches([](const GemmRecord& r) { return r.has_bias != 0; },
                        [](GemmModel&, GemmRecord& r) {
                          for (float& b : r.bias) b = 0.0f;
                        }) > 100);
  CHECK(gemm_mismatches([](const GemmRecord& r) { return r.out > 2; },
                        [](GemmModel& m, GemmRecord&) { m.epilogue.output_scale = 1.0f; }) > 100);
}

// --- damaged files ------------------------------------------------------------------------------

TEST_CASE("one wrong bit is one mismatch") {
  std::string bytes = read_file("mma.bin");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  const ScratchDirectory scratch;
  scratch.write("mma.bin", bytes);
  scratch.write("notes.txt", "ignored");
  std::string where;
  GoldenOptions options;
  options.first_mismatch = [&](const GoldenMismatch& m) { where = m.where; };
  const auto reports = validate_golden(scratch.path(), options);
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].mismatches == 1);
  CHECK(reports[0].cases == 196 * 512);
  CHECK_THAT(where, Catch::Contains("row 63, column 7"));
}

TEST_CASE("truncated and malformed files are errors that name file and offset") {
  using Catch::Contains;
  for (const char* file : {"conv_sample.bin", "mma.bin", "gemm.bin", "gemm_edge.bin"}) {
    const std::string whole = read_file(file);
    for (const std::size_t length :
         {std::size_t{0}, std::size_t{3}, std::size_t{30}, std::size_t{2000}, whole.size() - 1}) {
      CAPTURE(file, length);
      const ScratchDirectory scratch;
      scratch.write(file, whole.substr(0, length));
      CHECK_THROWS_WITH(validate_golden(scratch.path()), Contains(file) && Contains("offset"));
    }
    const ScratchDirectory scratch;
    scratch.write(file, "XXXX" + whole.substr(4));
    CHECK_THROWS_WITH(validate_golden(scratch.path()), Contains("offset 0"));
  }
  // Sizes that would need more memory than any machine has.
  std::string gemm = read_file("gemm.bin");
  put_u32(gemm, 8 + 8, 0xFFFFFFFFu);   // K
  put_u32(gemm, 8 + 44, 0xFFFFFFFFu);  // R
  const ScratchDirectory scratch;
  scratch.write("gemm.bin", gemm);
  CHECK_THROWS_AS(validate_golden(scratch.path()), Error);
  const ScratchDirectory empty;
  CHECK_THROWS_WITH(validate_golden(empty.path()), Contains("no recorded vectors"));
  CHECK_THROWS_AS(validate_golden(empty.path() / "missing"), Error);
}

TEST_CASE("what the model does not know is counted, not skipped") {
  std::string mma = read_file("mma.bin");
  put_u32(mma, 8 + 40, 99);  // op of the first record, 7 tiles
  std::string gemm = read_file("gemm.bin");
  put_u32(gemm, 8 + 32, 1);  // fast accumulation of the first record, scalar: known
  put_u32(gemm, 8 + 20, 9);  // but an unknown output type; 16 x 8 outputs
  std::string conversions = read_file("conv_sample.bin");
  put_u32(conversions, 4, 19);
  conversions += std::string(2 * 16384, '\0');
  const ScratchDirectory scratch;
  scratch.write("mma.bin", mma);
  scratch.write("gemm.bin", gemm);
  scratch.write("conv_sample.bin", conversions);
  const auto reports = validate_golden(scratch.path());
  REQUIRE(reports.size() == 3);
  CHECK(reports[0].unchecked == 16384);
  CHECK(reports[1].unchecked == 7 * 512);
  CHECK(reports[1].cases == 189 * 512);
  CHECK(reports[2].unchecked == 128);
  CHECK(reports[2].cases == 3704 - 128);
  for (const GoldenReport& report : reports) CHECK(report.mismatches == 0);

  const ScratchDirectory hashes_only;
  hashes_only.write("conv_hash.bin", std::string(18 * 256 * 8, '\0'));
  const auto unseeded = validate_golden(hashes_only.path());
  REQUIRE(unseeded.size() == 1);
  CHECK(unseeded[0].unchecked == 18 * 256);
}

}  // namespace
