#include "src/validate/third_party.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/schedule.hpp"
#include "emulation/spec/tensor_core.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/tensors/npz.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;
using numerics::FormatSpec;
using numerics::kBF16;
using numerics::kE4M3;
using numerics::kE5M2;
using numerics::kFP16;
using numerics::kTF32;

// mma.sync on all chips. On H100 and H200 the FP32 results for FP8 equal those of wgmma with C = 0.
constexpr RecordedUnit kUnits[] = {
    {"V100", "fp16", kFP16, "sm70_f16", "sm70_f16_f16acc"},
    {"A100", "bf16", kBF16, "sm80_bf16", ""},
    {"A100", "fp16", kFP16, "sm80_f16", "sm80_f16_f16acc"},
    {"A100", "tf32", kTF32, "sm80_tf32", ""},
    {"A2", "bf16", kBF16, "sm80_bf16", ""},
    {"A2", "fp16", kFP16, "sm80_f16", "sm80_f16_f16acc"},
    {"A2", "tf32", kTF32, "sm80_tf32", ""},
    {"Ada", "bf16", kBF16, "sm89_bf16", ""},
    {"Ada", "fp16", kFP16, "sm89_f16", "sm89_f16_f16acc"},
    {"Ada", "tf32", kTF32, "sm89_tf32", ""},
    {"Ada", "E4M3", kE4M3, "sm89_mma_fp8", "sm89_mma_fp8_f16"},
    {"Ada", "E5M2", kE5M2, "sm89_mma_fp8", "sm89_mma_fp8_f16"},
    {"L40S", "bf16", kBF16, "sm89_bf16", ""},
    {"L40S", "fp16", kFP16, "sm89_f16", "sm89_f16_f16acc"},
    {"L40S", "tf32", kTF32, "sm89_tf32", ""},
    {"L40S", "E4M3", kE4M3, "sm89_mma_fp8", ""},
    {"L40S", "E5M2", kE5M2, "sm89_mma_fp8", ""},
    {"H100", "bf16", kBF16, "sm90_bf16", ""},
    {"H100", "fp16", kFP16, "sm90_f16", "sm90_f16_f16acc"},
    {"H100", "tf32", kTF32, "sm90_tf32", ""},
    {"H100", "E4M3", kE4M3, "sm90_wgmma_fp8", "sm90_mma_sync_fp8_f16", true},
    {"H100", "E5M2", kE5M2, "sm90_wgmma_fp8", "sm90_mma_sync_fp8_f16", true},
    {"H200", "bf16", kBF16, "sm90_bf16", ""},
    {"H200", "fp16", kFP16, "sm90_f16", "sm90_f16_f16acc"},
    {"H200", "tf32", kTF32, "sm90_tf32", ""},
    {"H200", "E4M3", kE4M3, "sm90_wgmma_fp8", "sm90_mma_sync_fp8_f16", true},
    {"H200", "E5M2", kE5M2, "sm90_wgmma_fp8", "sm90_mma_sync_fp8_f16", true},
    {"B200", "bf16", kBF16, "sm100_bf16", ""},
    {"B200", "fp16", kFP16, "sm100_f16", "sm100_f16_f16acc"},
    {"B200", "tf32", kTF32, "sm100_tf32", ""},
    {"B200", "E4M3", kE4M3, "sm100_mma_sync_fp8", "sm100_mma_sync_fp8_f16"},
    {"B200", "E5M2", kE5M2, "sm100_mma_sync_fp8", "sm100_mma_sync_fp8_f16"},
};

/// Returns the elements of an unsigned array, widened.
std::vector<std::uint32_t> widened(const NpyArray& array) {
  const std::size_t width = size_of(array.dtype);
  std::vector<std::uint32_t> values(array.data.size() / width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::memcpy(&values[i], array.data.data() + i * width, width);
  }
  return values;
}

DType stored_as(const FormatSpec& format) {
  if (format.bits() <= 8) return DType::u8;
  return format.bits() <= 16 ? DType::bf16 : DType::i32;
}

/// The expected array `name`: of `type` and rows x cols, or with
/// `dimensions` 1 and `cols` elements.
struct ArrayShape {
  DType type;
  int dimensions;
  std::int64_t rows, cols;
};

std::vector<std::uint32_t> codes_of(const NpzArchive& archive, const std::string& origin,
                                    std::string_view name, const ArrayShape& shape) {
  const NpyArray* const array = archive.find(name);
  if (array == nullptr) {
    throw InputError(
        {.where = origin, .noun = "array", .key = std::string(name), .reason = "is missing"});
  }
  if (array->dtype != shape.type || array->dimensions != shape.dimensions ||
      array->rows != shape.rows || array->cols != shape.cols) {
    throw InputError(
        {.where = origin,
         .noun = "array",
         .key = std::string(name),
         .found = fmt::format("{} ({}, {})", name_of(array->dtype), array->rows, array->cols),
         .accepted = fmt::format("{} ({}, {})", name_of(shape.type), shape.rows, shape.cols)});
  }
  return widened(*array);
}

std::uint64_t count_results(const NpzArchive& archive) {
  std::uint64_t results = 0;
  for (const auto& [name, array] : archive.arrays()) {
    if (name.starts_with("d_")) results += static_cast<std::uint64_t>(array.rows * array.cols);
  }
  return results;
}

Accumulator profile(std::string_view name) {
  const std::optional<Accumulator> found = accumulator_by_name(name);
  FP8LAB_ASSERT(found.has_value());
  return *found;
}

/// The results of one accumulator in a file.
struct RecordedArray {
  const char* name;
  const std::vector<std::uint32_t>& results;
  std::string_view profile;
  bool with_addend;
};

using FirstMismatch = std::function<void(const GoldenMismatch&)>;

/// Compares the results; results without a profile count as unchecked.
void check_results(const FormatSpec& operand, const RecordedProducts& products,
                   const RecordedArray& array, const FirstMismatch& first_mismatch,
                   ThirdPartyReport& report) {
  if (array.results.empty()) return;
  GoldenReport& counts = report.counts;
  report.rule += report.rule.empty() ? "" : ", ";
  if (array.profile.empty()) {
    counts.unchecked += array.results.size();
    report.rule += fmt::format("no profile for {}", array.name);
    return;
  }
  report.rule += fmt::format("{}{}", array.profile, array.with_addend ? "" : " from C = 0");
  const Accumulator accumulator = profile(array.profile);
  const FormatSpec format = numerics::accumulator_format(accumulator.group.output);
  bool first = true;
  for (std::int64_t row = 0; row < products.rows; ++row) {
    const std::uint32_t expected =
        canonical_result(format, array.results[static_cast<std::size_t>(row)]);
    const std::uint32_t actual =
        recorded_result(accumulator, operand, products, row, array.with_addend);
    ++counts.cases;
    if (expected == actual) continue;
    ++counts.mismatches;
    if (first && first_mismatch) {
      first_mismatch({counts.file, fmt::format("{}, row {}", array.name, row), expected, actual});
    }
    first = false;
  }
}

ThirdPartyReport check_file(const fs::path& path, const FirstMismatch& first_mismatch) {
  ThirdPartyReport report;
  report.counts.file = path.filename().string();
  const std::string stem = path.stem().string();
  const std::size_t split = stem.find('_');
  const std::string chip = stem.substr(0, split);
  const std::string format = split == std::string::npos ? "" : stem.substr(split + 1);
  const RecordedUnit* const unit = recorded_unit(chip, format);
  if (unit == nullptr) {
    report.counts.unchecked = count_results(read_npz(path));
    report.rule = fmt::format("no profile for chip '{}' and format '{}'", chip, format);
    return report;
  }
  const RecordedProducts products = read_recorded_products(path, unit->operand);
  const RecordedArray arrays[] = {
      {"d_fp32", products.d32, unit->with_fp32, !unit->fp32_without_addend},
      {"d_fp16", products.d16, unit->with_fp16, true}};
  for (const RecordedArray& array : arrays) {
    check_results(unit->operand, products, array, first_mismatch, report);
  }
  if (products.unknown > 0) {
    report.counts.unchecked += products.unknown;
    report.rule += ", no rule for results other than d_fp32 and d_fp16";
  }
  return report;
}

}  // namespace

std::span<const RecordedUnit> recorded_units() { return kUnits; }

const RecordedUnit* recorded_unit(std::string_view chip, std::string_view format) {
  for (const RecordedUnit& unit : kUnits) {
    if (unit.chip == chip && unit.format == format) return &unit;
  }
  return nullptr;
}

RecordedProducts read_recorded_products(const fs::path& path, const FormatSpec& format) {
  const NpzArchive archive = read_npz(path);
  const std::string origin = path.string();
  RecordedProducts products;
  const NpyArray* const a = archive.find("a");
  if (a == nullptr) {
    throw InputError({.where = origin, .noun = "array", .key = "a", .reason = "is missing"});
  }
  products.rows = a->rows;
  products.k = a->cols;
  const ArrayShape operand{stored_as(format), 2, products.rows, products.k};
  products.a = codes_of(archive, origin, "a", operand);
  products.b = codes_of(archive, origin, "b", operand);
  if (format.bits() > 16) {  // FP32 bits
    for (std::vector<std::uint32_t>* codes : {&products.a, &products.b}) {
      for (std::uint32_t& code : *codes) code >>= 32 - format.bits();
    }
  }
  products.c = codes_of(archive, origin, "c_fp32", {DType::i32, 1, 1, products.rows});
  for (const auto& [name, array] : archive.arrays()) {
    if (!name.starts_with("d_")) continue;
    if (name == "d_fp32") {
      products.d32 = codes_of(archive, origin, name, {DType::i32, 1, 1, products.rows});
    } else if (name == "d_fp16") {
      products.d16 = codes_of(archive, origin, name, {DType::bf16, 1, 1, products.rows});
    } else {
      products.unknown += static_cast<std::uint64_t>(array.rows * array.cols);
    }
  }
  return products;
}

std::uint32_t recorded_result(const Accumulator& accumulator, const FormatSpec& operand,
                              const RecordedProducts& products, std::int64_t row,
                              bool with_addend) {
  numerics::ElementGemm element;
  element.unit = accumulator.unit;
  element.group = accumulator.group;
  element.format_a = element.format_b = operand;
  const auto at = static_cast<std::size_t>(row);
  const std::uint32_t* const a = products.a.data() + row * products.k;
  const std::uint32_t* const b = products.b.data() + row * products.k;
  std::uint32_t sum = with_addend ? products.c[at] : 0u;
  if (numerics::accumulator_format(accumulator.group.output) == kFP16) {
    sum = numerics::encode(kFP16, sum, numerics::Rounding::nearest, numerics::Overflow::special);
  }
  const int step = accumulator.products();
  for (std::int64_t k = 0; k < products.k; k += step) {
    const int count = static_cast<int>(std::min<std::int64_t>(step, products.k - k));
    sum = numerics::chain_step(element, a, b, k, count, nullptr, nullptr, sum);
  }
  return sum;
}

std::uint32_t canonical_result(const FormatSpec& format, std::uint32_t bits) {
  return format.is_nan(bits) ? format.nan_code() : bits;
}

std::vector<ThirdPartyReport> validate_third_party(const fs::path& directory,
                                                   const FirstMismatch& first_mismatch) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".npz" && is_file(entry.path())) files.push_back(entry.path());
  }
  if (error) throw InputError({.where = directory.string(), .reason = error.message()});
  if (files.empty()) {
    throw InputError({.where = directory.string(),
                      .reason = "no recorded products",
                      .accepted = "files CHIP_FORMAT.npz such as A100_bf16.npz"});
  }
  std::sort(files.begin(), files.end());
  std::vector<ThirdPartyReport> reports;
  for (const fs::path& file : files) reports.push_back(check_file(file, first_mismatch));
  return reports;
}

}  // namespace fp8lab
