// The conformance pack: inputs with expected results, for implementers in any language.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "src/validate/suite.hpp"

namespace fp8lab {

inline constexpr char kConformanceSchema[] = "fp8lab-conformance-3";

/// Counts of the written files and results.
struct ExportReport {
  std::uint64_t files = 0;  ///< .npy files
  std::uint64_t bytes = 0;
  std::uint64_t results = 0;  ///< codes, values, scales and output elements
};

/// Writes .npy files and manifest.json, which describes them and contains their SHA-256, into
/// `directory`. Sections: decode (every code), encode (codes, midpoints and their neighbours, every
/// rounding and overflow policy), through (conversions by way of a 16-bit format), scale (every
/// rule), e8m0 (the codes of power-of-two scales), quantize (tiles, both orientations), nvfp4, dot
/// (single instructions) and gemm. Entries with a "case" are known mistakes of libraries. Results
/// come from `expected`. Precondition: it offers every function except `element`. The same seed
/// gives the same bytes. The manifest is written last, so a folder without one is incomplete.
/// Throws Error if the folder exists and is not empty.
ExportReport export_vectors(const Implementation& expected, const std::filesystem::path& directory,
                            std::uint64_t seed, const std::string& code_version);

}  // namespace fp8lab
