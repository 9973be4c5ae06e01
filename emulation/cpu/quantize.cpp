#include "emulation/cpu/quantize.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "emulation/cpu/clamp.hpp"
#include "emulation/cpu/operand_decode.hpp"
#include "emulation/cpu/quantize_checks.hpp"
#include "emulation/cpu/quantize_codebook.hpp"
#include "emulation/cpu/simd/quantize_kernels.hpp"
#include "emulation/cpu/transform.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/scale_steps.hpp"
#include "emulation/numerics/scaling.hpp"

namespace fp8lab::cpu {
namespace {

using numerics::bits_float;
using numerics::float_bits;
using numerics::TileScale;

/// Elements of one unit of work: small enough to stay in the second-level cache between the amax
/// and the encoding pass.
constexpr std::int64_t kUnitElements = 64 * 1024;
constexpr std::int64_t kUnitRows = 64;  ///< a cache line of transposed codes
constexpr std::int64_t kChunkColumns = 256;

/// Half-open ranges of source rows and columns.
struct Rectangle {
  std::int64_t row_begin, row_end, col_begin, col_end;
  std::int64_t prefetch = 0;  ///< bytes from this rectangle to the one that is read next
};

/// Factors applied before the cast: tile (i, j) counted from the corner of a rectangle uses
/// data[i * stride + j]; tiles are height x width source elements.
struct Factors {
  const float* data;
  std::int64_t stride, height, width;
  bool finite;  ///< the rectangle is known to hold neither infinity nor NaN
};

bool is_two_level(const QuantSpec& spec) {
  return spec.has_scale() && spec.scale.format == numerics::ScaleFormat::nv_two_level;
}

/// The scale of a tile by its amax: by one addition for powers of two and by two divisions for FP32
/// scales, where the amax is an ordinary one. For the others with a memory of the last results. The
/// amaxes of BF16 tiles of one tensor take few values, mostly of two binades, which is what the low
/// bits of the index tell apart.
class TileScales {
 public:
  /// `tensor_factor` matters for two-level scales only.
  TileScales(const QuantSpec& spec, float tensor_factor)
      : spec_(spec),
        tensor_factor_(tensor_factor),
        steps_(numerics::scale_steps(spec.scale, spec.format)),
        target_(numerics::target_maximum(spec.scale, spec.format)),
        divided_(spec.scale.format == numerics::ScaleFormat::fp32) {}

  TileScale of(std::uint32_t amax) {
    if (steps_.holds_for(amax)) return steps_.scale(amax);
    if (divided_ && amax - 1u < numerics::kF32Infinity - 1u) {
      const float raised = numerics::raised_amax(spec_.scale, bits_float(amax));
      return numerics::fp32_scale(spec_.scale, target_, raised);
    }
    Entry& entry = entries_[(amax >> 16) % kEntries];
    if (entry.amax != amax) entry = {amax, compute(bits_float(amax))};
    return entry.scale;
  }

 private:
  static constexpr std::uint32_t kEntries = 256;
  struct Entry {
    std::uint32_t amax = ~0u;  ///< not the bits of a magnitude
    TileScale scale;
  };

  TileScale compute(float amax) const {
    return is_two_level(spec_) ? numerics::nv_tile_scale(spec_.format, tensor_factor_, amax)
                               : numerics::tile_scale(spec_.scale, spec_.format, amax);
  }

  const QuantSpec& spec_;
  float tensor_factor_;
  numerics::ScaleSteps steps_;
  float target_;
  bool divided_;
  std::array<Entry, kEntries> entries_;
};

/// One call of quantize, with everything in the orientation of the source.
class Quantizer {
 public:
  Quantizer(const TensorView& source, bool transpose, const RandomKey& key,
            QuantizedOperand& operand)
      : source_(source),
        transpose_(transpose),
        operand_(operand),
        spec_(operand.spec),
        kernels_(quantize_kernels()),
        random_{key.seed, key.step, key.tensor, key.orientation},
        divide_(spec_.has_scale() && spec_.scale.divides()) {
    const TileShape& tile = spec_.tile;
    const std::int64_t height = transpose ? tile.cols : tile.rows;
    const std::int64_t width = transpose ? tile.rows : tile.cols;
    tile_height_ = height == 0 ? source.rows : std::min(height, source.rows);
    tile_width_ = width == 0 ? source.cols : std::min(width, source.cols);
    rule_ = {spec_.format.exponent_bits,
             spec_.format.mantissa_bits,
             spec_.format.bias,
             static_cast<std::int32_t>(spec_.format.specials),
             static_cast<std::int32_t>(spec_.format.encoding),
             static_cast<std::int32_t>(spec_.rounding),
             static_cast<std::int32_t>(spec_.overflow),
             divide_};
  }

  void quantize_tiles();
  /// One scale for the whole tensor, known beforehand; `finite` as in Factors.
  void quantize_with(const TileScale& scale, bool finite) { run(scale, finite, false); }
  /// The same, and returns the amax bits of the tensor.
  std::uint32_t quantize_and_measure(const TileScale& scale) { return run(scale, false, true); }
  std::uint32_t tensor_amax() const;

 private:
  /// Rows and columns of the source that lie in one row of tiles.
  SourceBlock block(const Rectangle& area, std::int64_t tile_width) const {
    const auto offset =
        static_cast<std::size_t>(area.row_begin * source_.row_stride + area.col_begin);
    return {static_cast<const std::byte*>(source_.data) + offset * size_of(source_.dtype),
            source_.dtype == DType::bf16,
            false,
            area.row_end - area.row_begin,
            source_.row_stride,
            area.col_end - area.col_begin,
            tile_width,
            nullptr,
            static_cast<std::uint64_t>(area.row_begin * source_.cols + area.col_begin),
            static_cast<std::uint64_t>(source_.cols),
            area.prefetch};
  }
  std::uint32_t run(const TileScale& scale, bool finite, bool measure);
  std::vector<Rectangle> units(std::int64_t height, std::int64_t width) const;
  std::uint32_t amax_of(const Rectangle& area) const;
  void quantize_unit(const Rectangle& area, TileScales& scales, std::vector<std::uint32_t>& amax,
                     std::vector<float>& factors) const;
  void encode(const Rectangle& area, const Factors& factors) const;
  void encode_transposed(const Rectangle& area, const Factors& factors) const;
  TileScale better_of_two(const Rectangle& tile, const TileScale& usual, std::uint32_t amax) const;
  float error_of(const Rectangle& tile, const TileScale& scale) const;
  float value_at(std::int64_t row, std::int64_t col) const {
    return source_.dtype == DType::bf16 ? numerics::from_bf16(source_.row<std::uint16_t>(row)[col])
                                        : source_.row<float>(row)[col];
  }
  float factor_of(const TileScale& scale) const {
    return divide_ ? scale.decode : scale.multiplier;
  }

  const TensorView& source_;
  bool transpose_;
  QuantizedOperand& operand_;
  const QuantSpec& spec_;
  const QuantizeKernels& kernels_;
  RandomStream random_;
  bool divide_;
  EncodeRule rule_{};
  float tensor_factor_ = 1.0f;  ///< of two-level scales
  std::int64_t tile_height_ = 0, tile_width_ = 0;
};

/// Cuts the source into rectangles of whole tiles of height x width, in the order of memory.
std::vector<Rectangle> Quantizer::units(std::int64_t height, std::int64_t width) const {
  const std::int64_t wanted_height =
      transpose_ ? kUnitRows : std::max<std::int64_t>(1, kUnitElements / source_.cols);
  const std::int64_t unit_height = (wanted_height + height - 1) / height * height;
  const std::int64_t wanted_width = std::max(kUnitRows, kUnitElements / unit_height);
  const std::int64_t unit_width = std::max<std::int64_t>(1, wanted_width / width) * width;
  std::vector<Rectangle> areas;
  for (std::int64_t r = 0; r < source_.rows; r += unit_height) {
    for (std::int64_t c = 0; c < source_.cols; c += unit_width) {
      areas.push_back(
          {r, std::min(r + unit_height, source_.rows), c, std::min(c + unit_width, source_.cols)});
    }
  }
  for (std::size_t i = 0; i + 1 < areas.size(); ++i) {
    const std::int64_t elements =
        (areas[i + 1].row_begin - areas[i].row_begin) * source_.row_stride +
        areas[i + 1].col_begin - areas[i].col_begin;
    areas[i].prefetch = elements * static_cast<std::int64_t>(size_of(source_.dtype));
  }
  return areas;
}

void Quantizer::quantize_tiles() {
  if (is_two_level(spec_)) {
    tensor_factor_ =
        numerics::nv_tensor_factor(spec_.scale, spec_.format, bits_float(tensor_amax()));
  }
  const std::vector<Rectangle> areas = units(tile_height_, tile_width_);
  const auto count = static_cast<std::int64_t>(areas.size());
#pragma omp parallel if (count > 1)
  {
    TileScales scales(spec_, tensor_factor_);
    std::vector<std::uint32_t> amax;
    std::vector<float> factors;
#pragma omp for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) {
      quantize_unit(areas[static_cast<std::size_t>(i)], scales, amax, factors);
    }
  }
}

void Quantizer::quantize_unit(const Rectangle& area, TileScales& scales,
                              std::vector<std::uint32_t>& amax, std::vector<float>& factors) const {
  const std::int64_t high = (area.row_end - area.row_begin + tile_height_ - 1) / tile_height_;
  const std::int64_t wide = (area.col_end - area.col_begin + tile_width_ - 1) / tile_width_;
  amax.assign(static_cast<std::size_t>(high * wide), 0u);
  factors.resize(amax.size());
  for (std::int64_t i = 0; i < high; ++i) {
    const std::int64_t begin = area.row_begin + i * tile_height_;
    const SourceBlock tiles = block({begin, std::min(begin + tile_height_, area.row_end),
                                     area.col_begin, area.col_end, area.prefetch},
                                    tile_width_);
    kernels_.amax(&tiles, amax.data() + i * wide);
  }
  const std::int64_t first_row = area.row_begin / tile_height_;
  const std::int64_t first_col = area.col_begin / tile_width_;
  for (std::int64_t i = 0; i < high; ++i) {
    for (std::int64_t j = 0; j < wide; ++j) {
      const auto at = static_cast<std::size_t>(i * wide + j);
      TileScale scale = scales.of(amax[at]);
      if (spec_.scale.four_over_six != numerics::FourOverSix::none) {
        const std::int64_t row = area.row_begin + i * tile_height_;
        const std::int64_t col = area.col_begin + j * tile_width_;
        scale = better_of_two({row, std::min(row + tile_height_, area.row_end), col,
                               std::min(col + tile_width_, area.col_end)},
                              scale, amax[at]);
      }
      factors[at] = factor_of(scale);
      const std::int64_t row = transpose_ ? first_col + j : first_row + i;
      const std::int64_t col = transpose_ ? first_row + i : first_col + j;
      operand_.scales.row<float>(row)[col] = scale.decode;
    }
  }
  const bool finite = *std::max_element(amax.begin(), amax.end()) < numerics::kF32Infinity;
  encode(area, {factors.data(), wide, tile_height_, tile_width_, finite});
}

/// The usual scale of a tile, or the one 1.5 times as large if that gives a smaller error.
TileScale Quantizer::better_of_two(const Rectangle& tile, const TileScale& usual,
                                   std::uint32_t amax) const {
  const TileScale enlarged =
      numerics::nv_tile_scale(spec_.format, tensor_factor_, bits_float(amax), true);
  return error_of(tile, enlarged) < error_of(tile, usual) ? enlarged : usual;
}

float Quantizer::error_of(const Rectangle& tile, const TileScale& scale) const {
  float sum = 0.0f;
  for (std::int64_t r = tile.row_begin; r < tile.row_end; ++r) {
    float row_sum = 0.0f;
    for (std::int64_t c = tile.col_begin; c < tile.col_end; ++c) {
      row_sum += numerics::four_over_six_error(spec_.scale.four_over_six, spec_.format, scale,
                                               value_at(r, c));
    }
    sum += row_sum;
  }
  return sum;
}

std::uint32_t Quantizer::amax_of(const Rectangle& area) const {
  std::uint32_t amax = 0;
  const SourceBlock all = block(area, std::max<std::int64_t>(source_.cols, 2));
  kernels_.amax(&all, &amax);
  return amax;
}

std::uint32_t Quantizer::tensor_amax() const {
  const std::vector<Rectangle> areas = units(1, 1);
  const auto count = static_cast<std::int64_t>(areas.size());
  std::uint32_t amax = 0;
#pragma omp parallel for schedule(static) reduction(max : amax) if (count > 1)
  for (std::int64_t i = 0; i < count; ++i) {
    amax = std::max(amax, amax_of(areas[static_cast<std::size_t>(i)]));
  }
  return amax;
}

std::uint32_t Quantizer::run(const TileScale& scale, bool finite, bool measure) {
  if (spec_.has_scale()) operand_.scales.row<float>(0)[0] = scale.decode;
  const float factor = factor_of(scale);
  const std::vector<Rectangle> areas = units(1, 1);
  const auto count = static_cast<std::int64_t>(areas.size());
  std::uint32_t amax = 0;
#pragma omp parallel for schedule(static) reduction(max : amax) if (count > 1)
  for (std::int64_t i = 0; i < count; ++i) {
    const Rectangle& area = areas[static_cast<std::size_t>(i)];
    bool area_finite = finite;
    if (measure) {
      const std::uint32_t area_amax = amax_of(area);
      area_finite = area_amax < numerics::kF32Infinity;
      amax = std::max(amax, area_amax);
    }
    encode(area, {&factor, 1, source_.rows, source_.cols, area_finite});
  }
  return amax;
}

void Quantizer::encode(const Rectangle& area, const Factors& factors) const {
  if (transpose_) return encode_transposed(area, factors);
  const float* row_factors = factors.data;
  for (std::int64_t r = area.row_begin; r < area.row_end; r += factors.height) {
    SourceBlock tiles = block({r, std::min(r + factors.height, area.row_end), area.col_begin,
                               area.col_end, area.prefetch},
                              factors.width);
    tiles.factors = row_factors;
    tiles.finite = factors.finite;
    kernels_.encode(&rule_, &random_, &tiles, operand_.codes.row<std::uint8_t>(r) + area.col_begin,
                    operand_.codes.row_stride);
    row_factors += factors.stride;
  }
}

/// Encodes blocks of at most 64 rows by 256 columns into a buffer and transposes the codes. A block
/// holds whole tiles across, or lies within one wide tile.
void Quantizer::encode_transposed(const Rectangle& area, const Factors& factors) const {
  alignas(64) std::uint8_t buffer[kUnitRows * kChunkColumns];
  std::int64_t c = area.col_begin;
  while (c < area.col_end) {
    const std::int64_t tile = (c - area.col_begin) / factors.width;
    const std::int64_t tile_end = area.col_begin + (tile + 1) * factors.width;
    const std::int64_t whole = kChunkColumns / factors.width * factors.width;
    const std::int64_t end =
        std::min(area.col_end, whole > 0 ? c + whole : std::min(c + kChunkColumns, tile_end));
    for (std::int64_t r = area.row_begin; r < area.row_end; r += kUnitRows) {
      const std::int64_t rows = std::min(kUnitRows, area.row_end - r);
      for (std::int64_t i = 0; i < rows;) {
        const std::int64_t tile_row = (r + i - area.row_begin) / factors.height;
        const std::int64_t tile_row_end = area.row_begin + (tile_row + 1) * factors.height;
        const std::int64_t stop = std::min(r + rows, tile_row_end);
        SourceBlock tiles = block({r + i, stop, c, end, area.prefetch}, factors.width);
        tiles.factors = factors.data + tile_row * factors.stride + tile;
        tiles.finite = factors.finite;
        kernels_.encode(&rule_, &random_, &tiles, buffer + i * kChunkColumns, kChunkColumns);
        i = stop - r;
      }
      kernels_.transpose_bytes(buffer, kChunkColumns, rows, end - c,
                               operand_.codes.row<std::uint8_t>(c) + r, operand_.codes.row_stride);
    }
    c = end;
  }
}

TileScale scale_in_force(const TensorView& state) {
  const float* values = state.row<float>(0);
  if (values[DelayedState::kScale] == 0.0f) return {};
  return {values[DelayedState::kScale], values[DelayedState::kMultiplier], false};
}

/// Counts one more step in the window; after `length` steps starts again from none.
bool window_is_full(float& steps, int length) {
  steps += 1.0f;
  if (steps < static_cast<float>(length)) return false;
  steps = 0.0f;
  return true;
}

void raise_amax(const TensorView& state, std::uint32_t amax) {
  float& running = state.row<float>(0)[DelayedState::kAmax];
  running = bits_float(std::max(float_bits(running), amax));
}

void write_bounds(const TensorView& source, QuantizedOperand& operand) {
  clamp_bounds_of(operand);  // there is memory for them
  const numerics::ClampBounds bounds = clamp_bounds(source, operand.spec.transform.quantile);
  float* const values = operand.clamp_bounds.row<float>(0);
  values[0] = bounds.lower;
  values[1] = bounds.upper;
}

/// quantize of the source itself.
void quantize_as_is(const TensorView& source, bool transpose, const RandomKey& key,
                    const TensorView& state, QuantizedOperand& operand) {
  if (!operand.spec.is_quantized()) return cast_operand(source, transpose, key, operand);
  if (operand.spec.has_codebooks()) return quantize_codebooks(source, transpose, key, operand);
  Quantizer quantizer(source, transpose, key, operand);
  const QuantSpec& spec = operand.spec;
  switch (spec.scale_source) {
    case ScaleSource::none: quantizer.quantize_with({}, false); return;
    case ScaleSource::static_scale:
      quantizer.quantize_with(
          {spec.static_scale, numerics::bounded_quotient(1.0f, spec.static_scale), false}, false);
      return;
    case ScaleSource::delayed:
      raise_amax(state, quantizer.quantize_and_measure(scale_in_force(state)));
      return;
    case ScaleSource::current:
      if (!spec.tile.is_tensor()) return quantizer.quantize_tiles();
      const std::uint32_t amax = quantizer.tensor_amax();
      quantizer.quantize_with(numerics::tile_scale(spec.scale, spec.format, bits_float(amax)),
                              amax < numerics::kF32Infinity);
      return;
  }
}

}  // namespace

void quantize(const TensorView& source, bool transpose, const RandomKey& key,
              const TensorView& state, QuantizedOperand& operand) {
  check_quantize(source, transpose, state, operand);
  operand.key = key;
  const Transform& transform = operand.spec.transform;
  if (!transform || transform.is_expansion()) {
    return quantize_as_is(source, transpose, key, state, operand);
  }
  if (transform.is_clamp()) write_bounds(source, operand);
  FloatMatrix values = transformed(source, transpose, operand);
  quantize_as_is(values.view(), transpose, key, state, operand);
}

void update_delayed_scale(const QuantSpec& spec, const TensorView& state) {
  check_delayed_state(spec, state);
  float* const values = state.row<float>(0);
  const bool window = spec.amax_algorithm == AmaxAlgorithm::window;
  if (values[DelayedState::kAmax] == 0.0f && !window) return;
  float* const history = values + DelayedState::kHistory;
  std::copy_backward(history, history + spec.history_length - 1, history + spec.history_length);
  history[0] = values[DelayedState::kAmax];
  values[DelayedState::kAmax] = 0.0f;
  if (window && !window_is_full(history[spec.history_length], spec.history_length)) return;

  std::uint32_t amax = float_bits(history[0]);
  if (spec.amax_algorithm != AmaxAlgorithm::most_recent) {
    for (int i = 1; i < spec.history_length; ++i) amax = std::max(amax, float_bits(history[i]));
  }
  if ((amax == 0 && !window) || amax >= numerics::kF32Infinity) return;
  const TileScale scale = numerics::tile_scale(spec.scale, spec.format, bits_float(amax));
  values[DelayedState::kScale] = scale.decode;
  values[DelayedState::kMultiplier] = scale.multiplier;
}

}  // namespace fp8lab::cpu
