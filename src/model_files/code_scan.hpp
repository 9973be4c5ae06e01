// One pass over the codes of a quantized weight.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "src/model/dialects/stored_weight.hpp"

namespace fp8lab {

/// What the codes of a weight are, and those of each block of its grid of scales.
struct CodeScan {
  /// Magnitude code of the largest number of each block; 0: all zero.
  std::vector<std::uint8_t> largest;
  /// Blocks with a code that is NaN or infinite.
  std::vector<bool> has_special;
  /// Bytes by value; of packed codes each holds two.
  std::array<std::int64_t, 256> histogram{};
  std::int64_t specials = 0;        ///< codes that are NaN or infinite
  std::int64_t row = -1, col = -1;  ///< of the first of them
  std::size_t first_block = 0;      ///< of the first of them

  std::int64_t special_blocks() const;
  std::int64_t nonzero_blocks() const;  ///< with a nonzero number or a special code
};

CodeScan scan_codes(const StoredWeight& weight, const ScaleGrid& grid);

}  // namespace fp8lab
