// Replays vectors recorded on hardware through the scalar model and counts differences.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace fp8lab {

/// Result for one file. A case is one stored result: one output element, one converted value, or
/// (conv_hash.bin) one hash over 2^24 conversions. `cases` counts only the checked ones.
struct GoldenReport {
  std::string file;
  std::uint64_t cases = 0;
  std::uint64_t mismatches = 0;
  std::uint64_t unchecked = 0;  ///< results of operations or modes that the model does not cover
};

/// One difference between model and recording.
struct GoldenMismatch {
  std::string file;
  std::string where;  ///< record and element
  std::uint64_t expected = 0;
  std::uint64_t actual = 0;
};

struct GoldenOptions {
  /// Replays conv_hash.bin too (18 conversions of all 2^32 floats; takes minutes).
  bool conversion_hashes = true;
  int threads = 0;  ///< threads for conv_hash.bin; 0: all of the processor
  /// Called occasionally, by one thread at a time, with the completed fraction of a file.
  std::function<void(const std::string& file, double fraction)> progress;
  /// Called with the first difference in each file.
  std::function<void(const GoldenMismatch& mismatch)> first_mismatch;
};

/// Replays every known file in `directory` (conv_sample, conv_hash, conv_tab, mma, gemm and
/// gemm_edge .bin, little-endian; layout: tests/golden/README.md) and returns one report for each.
/// Throws Error that names file and byte offset if a file is truncated or malformed, and Error if
/// the folder contains no known file. Ignores other files.
std::vector<GoldenReport> validate_golden(const std::filesystem::path& directory,
                                          const GoldenOptions& options = {});

}  // namespace fp8lab
