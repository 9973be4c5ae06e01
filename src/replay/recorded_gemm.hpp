// A GEMM of another program, as fp8lab.recorder wrote it.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// One operand: the codes of its first rows, and the scales of all its tiles.
struct RecordedOperand {
  numerics::FormatSpec format;
  TileShape tile;
  std::int64_t rows = 0;  ///< recorded rows
  std::int64_t k = 0;
  std::vector<std::uint8_t> codes;  ///< (rows, k)
  std::int64_t scale_rows = 0, scale_cols = 0;
  std::vector<float> scales;  ///< decode scales, (scale_rows, scale_cols)

  /// Returns the index of the scale of an element.
  std::size_t scale_index(std::int64_t row, std::int64_t column) const;
  float scale_at(std::int64_t row, std::int64_t column) const {
    return scales[scale_index(row, column)];
  }
};

/// D = A B^T with scales; D has a.rows x b.rows recorded elements.
struct RecordedGemm {
  std::string file, api, device, step;
  std::int64_t m = 0, n = 0, k = 0;  ///< of the whole GEMM
  bool fast = false;                 ///< accumulation without promotion was requested
  RecordedOperand a, b;
  numerics::FormatSpec d_format;
  std::vector<std::uint32_t> d;  ///< codes of d_format
  std::vector<float> bias;       ///< one for each column, or empty
  float d_scale = 1.0f;          ///< factor of FP8 results before their cast
  /// First scales of A and B in earlier calls at the same place, newest last.
  std::vector<std::array<float, 2>> earlier_scales;

  std::uint32_t at(std::int64_t row, std::int64_t col) const {
    return d[static_cast<std::size_t>(row * b.rows + col)];
  }
};

/// Reads a file of fp8lab.recorder. Throws Error that names the file and the tensor or the key if
/// it is none, or its parts do not fit together.
RecordedGemm read_recorded_gemm(const std::filesystem::path& path);

}  // namespace fp8lab
