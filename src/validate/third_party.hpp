// Replays tensor-core products recorded by third parties (Khattak and Mikaitis) through the
// accumulators of recipes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/spec/accumulator.hpp"
#include "src/validate/golden.hpp"

namespace fp8lab {

/// The accumulator that produced the results of a file CHIP_FORMAT.npz.
struct RecordedUnit {
  std::string_view chip;    ///< first part of the file's name
  std::string_view format;  ///< last part of the name: bf16, fp16, tf32, E4M3, E5M2
  numerics::FormatSpec operand;
  std::string_view with_fp32;  ///< profile of the results with an FP32 accumulator; "": none
  std::string_view with_fp16;
  bool fp32_without_addend = false;  ///< the recorded addend was not used: C = +0
};

std::span<const RecordedUnit> recorded_units();
/// Returns null for chips and formats without a profile.
const RecordedUnit* recorded_unit(std::string_view chip, std::string_view format);

/// D = A B^T + C, one dot product per row.
struct RecordedProducts {
  std::int64_t rows = 0, k = 0;
  std::vector<std::uint32_t> a, b;      ///< (rows, k) codes
  std::vector<std::uint32_t> c;         ///< (rows) FP32 bits
  std::vector<std::uint32_t> d32, d16;  ///< (rows) bits for each accumulator; empty: none
  std::uint64_t unknown = 0;            ///< number of results in other arrays d_*
};

/// Reads the arrays a, b, c_fp32, d_fp32 and d_fp16 of an archive. Codes of tf32 are FP32 bits, of
/// which the instruction uses the upper 19. Throws Error for other shapes and types.
RecordedProducts read_recorded_products(const std::filesystem::path& path,
                                        const numerics::FormatSpec& format);

/// Returns the result bits of row `row` in the format of the accumulator, computed as a chain of
/// groups from C. An FP16 accumulator starts from C rounded to FP16.
std::uint32_t recorded_result(const Accumulator& accumulator, const numerics::FormatSpec& operand,
                              const RecordedProducts& products, std::int64_t row, bool with_addend);

/// Replaces every NaN by the canonical one of kFP32 or kFP16.
std::uint32_t canonical_result(const numerics::FormatSpec& format, std::uint32_t bits);

/// Result for one file. A case is one stored result.
struct ThirdPartyReport {
  GoldenReport counts;
  std::string rule;  ///< names of the profiles, or the reason why results are unchecked
};

/// Replays every file CHIP_FORMAT.npz in `directory`, in the order of their names. Calls
/// `first_mismatch` with the first difference of each array. Throws Error if there is no such file,
/// and for malformed files.
std::vector<ThirdPartyReport> validate_third_party(
    const std::filesystem::path& directory,
    const std::function<void(const GoldenMismatch&)>& first_mismatch = {});

}  // namespace fp8lab
