#include "emulation/reference/quantize_codebook.hpp"

#include <algorithm>

#include "emulation/numerics/philox.hpp"
#include "emulation/numerics/tile_codebook.hpp"

namespace fp8lab::reference {
namespace {

using numerics::float_bits;

/// One tile in the operand's orientation: rows [row_begin, row_end), columns of K likewise.
struct Tile {
  std::int64_t row_begin, row_end, col_begin, col_end;
};

template <class Book>
class CodebookQuantizer {
 public:
  CodebookQuantizer(const TensorView& source, bool transpose, const QuantizedOperand& operand)
      : source_(source), transpose_(transpose), operand_(operand) {}

  void run() {
    const QuantSpec& spec = operand_.spec;
    const std::int64_t height = spec.tile.rows == 0 ? operand_.rows : spec.tile.rows;
    const std::int64_t width = spec.tile.cols == 0 ? operand_.k : spec.tile.cols;
    const std::int64_t high = spec.tile_rows(operand_.rows);
    const std::int64_t wide = spec.tile_cols(operand_.k);
#pragma omp parallel for schedule(static) collapse(2) if (high * wide > 1)
    for (std::int64_t i = 0; i < high; ++i) {
      for (std::int64_t j = 0; j < wide; ++j) {
        const Tile tile{i * height, std::min((i + 1) * height, operand_.rows), j * width,
                        std::min((j + 1) * width, operand_.k)};
        const Book book = codebook_of(tile);
        book.store(operand_.scales.row<float>(i) + j, wide);
        encode(tile, book);
      }
    }
  }

 private:
  float value_at(std::int64_t r, std::int64_t c) const {
    const std::int64_t row = transpose_ ? c : r, col = transpose_ ? r : c;
    return source_.dtype == DType::bf16 ? numerics::from_bf16(source_.row<std::uint16_t>(row)[col])
                                        : source_.row<float>(row)[col];
  }

  Book codebook_of(const Tile& tile) const {
    std::uint32_t largest = 0, smallest = ~0u;
    for (std::int64_t r = tile.row_begin; r < tile.row_end; ++r) {
      for (std::int64_t c = tile.col_begin; c < tile.col_end; ++c) {
        const std::uint32_t magnitude = float_bits(value_at(r, c)) & 0x7FFFFFFFu;
        largest = std::max(largest, magnitude);
        if (magnitude != 0) smallest = std::min(smallest, magnitude);
      }
    }
    return Book::of(operand_.spec.format, numerics::bits_float(largest),
                    numerics::bits_float(smallest));
  }

  void encode(const Tile& tile, const Book& book) {
    const numerics::ElementCast cast = operand_.spec.cast();
    const RandomKey& key = operand_.key;
    for (std::int64_t r = tile.row_begin; r < tile.row_end; ++r) {
      std::uint8_t* codes = operand_.codes.row<std::uint8_t>(r);
      for (std::int64_t c = tile.col_begin; c < tile.col_end; ++c) {
        std::uint32_t random = 0;
        if (cast.is_random()) {
          const std::int64_t index = transpose_ ? c * source_.cols + r : r * source_.cols + c;
          random = numerics::random_bits(key.seed, key.step_number(), key.tensor, key.orientation,
                                         static_cast<std::uint64_t>(index));
        }
        codes[c] = static_cast<std::uint8_t>(book.encode(cast, value_at(r, c), random));
      }
    }
  }

  const TensorView& source_;
  bool transpose_;
  const QuantizedOperand& operand_;
};

}  // namespace

void quantize_codebooks(const TensorView& source, bool transpose, const QuantizedOperand& operand) {
  if (operand.spec.transform.is<RangeExpansion>()) {
    CodebookQuantizer<numerics::ExpandedTile>(source, transpose, operand).run();
  } else {
    CodebookQuantizer<numerics::LogarithmTile>(source, transpose, operand).run();
  }
}

}  // namespace fp8lab::reference
