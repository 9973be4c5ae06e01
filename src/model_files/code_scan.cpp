#include "src/model_files/code_scan.hpp"

#include <algorithm>
#include <array>

namespace fp8lab {
namespace {

/// For each byte the larger magnitude code of its numbers, and whether it is NaN or infinite.
struct ByteTables {
  std::array<std::uint8_t, 256> magnitude{};
  std::array<std::uint8_t, 256> is_special{};

  explicit ByteTables(const WeightLayout& layout) {
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      if (layout.is_packed()) {
        magnitude[byte] = static_cast<std::uint8_t>(std::max(byte & 7u, byte >> 4 & 7u));
        continue;
      }
      const bool special = layout.format.is_nan(byte) || layout.format.is_infinity(byte);
      is_special[byte] = special ? 1 : 0;
      magnitude[byte] = special ? 0 : static_cast<std::uint8_t>(byte & 127u);
    }
  }
};

}  // namespace

std::int64_t CodeScan::special_blocks() const {
  return std::count(has_special.begin(), has_special.end(), true);
}

std::int64_t CodeScan::nonzero_blocks() const {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < largest.size(); ++i) count += largest[i] != 0 || has_special[i];
  return count;
}

CodeScan scan_codes(const StoredWeight& weight, const ScaleGrid& grid) {
  const ByteTables tables(weight.layout);
  const std::int64_t per_byte = weight.layout.is_packed() ? 2 : 1;
  const std::int64_t cols = grid.cols() / per_byte;
  const std::int64_t width = std::max<std::int64_t>(grid.tile_width() / per_byte, 1);
  CodeScan scan;
  scan.largest.assign(grid.values().size(), 0);
  scan.has_special.assign(grid.values().size(), false);
  visit_data(
      *weight.codes, 0, weight.codes->bytes(),
      [&](std::size_t first, std::span<const std::byte> piece) {
        for (std::size_t i = 0; i < piece.size();) {
          const auto at = static_cast<std::int64_t>(first + i);
          const std::int64_t row = at / cols, col = at % cols;
          const std::int64_t run = std::min({cols - col, (col / width + 1) * width - col,
                                             static_cast<std::int64_t>(piece.size() - i)});
          const std::size_t block = grid.index(row, col * per_byte);
          std::uint8_t largest = scan.largest[block], special = 0;
          for (std::int64_t j = 0; j < run; ++j) {
            const auto byte = static_cast<std::uint8_t>(piece[i + static_cast<std::size_t>(j)]);
            ++scan.histogram[byte];
            largest = std::max(largest, tables.magnitude[byte]);
            special |= tables.is_special[byte];
          }
          scan.largest[block] = largest;
          for (std::int64_t j = 0; special != 0 && j < run; ++j) {
            const auto byte = static_cast<std::uint8_t>(piece[i + static_cast<std::size_t>(j)]);
            if (tables.is_special[byte] == 0) continue;
            scan.has_special[block] = true;
            if (scan.specials++ > 0) continue;
            scan.row = row;
            scan.col = col + j;
            scan.first_block = block;
          }
          i += static_cast<std::size_t>(run);
        }
      });
  return scan;
}

}  // namespace fp8lab
