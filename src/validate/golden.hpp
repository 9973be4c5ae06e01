// Replays vectors recorded on hardware through the scalar model and counts differences.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace fp8lab {

/// Outcome for one file. A case is one stored result: one output element, one converted value, or
/// (conv_hash.bin) one hash over 2^24 conversions. `cases` counts the checked ones only.
struct GoldenReport {
  std::string file;
  std::uint64_t cases = 0;
  std::uint64_t mismatches = 0;
  std::uint64_t unchecked = 0;  ///< results of an operation or mode that the model does not know
};

/// One difference between model and recording.
struct GoldenMismatch {
  std::string file;
  std::string where;  ///< record and element
  std::uint64_t expected = 0;
  std::uint64_t actual = 0;
};

struct GoldenOptions {
  /// Whether conv_hash.bin (18 conversions of all 2^32 floats, minutes) is replayed.
  bool conversion_hashes = true;
  int threads = 0;  ///< for conv_hash.bin; 0: as many as the processor has
  /// Called now and then, from one thread at a time, with the done fraction of a file.
  std::function<void(const std::string& file, double fraction)> progress;
  /// Called with the first difference of each file.
  std::function<void(const GoldenMismatch& mismatch)> first_mismatch;
};

/// Replays every known file in `directory` (conv_sample, conv_hash, conv_tab, mma, gemm and
/// gemm_edge .bin, little-endian; layout: tests/golden/README.md), one report each. Throws Error
/// naming file and byte offset when a file is truncated or malformed, and Error when no known file
/// is there. Other files are ignored.
std::vector<GoldenReport> validate_golden(const std::filesystem::path& directory,
                                          const GoldenOptions& options = {});

}  // namespace fp8lab
