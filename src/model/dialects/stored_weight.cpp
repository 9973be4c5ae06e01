#include "src/model/dialects/stored_weight.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "emulation/numerics/codec.hpp"

namespace fp8lab {
namespace {

constexpr std::string_view kPacked = "_packed", kTorchao = "_qdata";

using Shape = std::vector<std::int64_t>;

/// "X.weight" of "X._weight_qdata"; empty for other names.
std::string weight_of_torchao(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  const std::size_t leaf = dot == std::string::npos ? 0 : dot + 1;
  if (!name.ends_with(kTorchao) || leaf + 1 + kTorchao.size() >= name.size() || name[leaf] != '_') {
    return {};
  }
  return name.substr(0, leaf) + name.substr(leaf + 1, name.size() - kTorchao.size() - leaf - 1);
}

std::int64_t product(const Shape& shape, std::size_t first, std::size_t last) {
  std::int64_t result = 1;
  for (std::size_t i = first; i < last; ++i) result *= shape[i];
  return result;
}

/// Rows and columns of one matrix, and the number of matrices; a vector is one row.
std::array<std::int64_t, 3> extents(const Shape& shape) {
  if (shape.empty()) return {1, 1, 1};
  if (shape.size() == 1) return {1, 1, shape[0]};
  return {product(shape, 0, shape.size() - 2), shape[shape.size() - 2], shape.back()};
}

bool fits_tile(const Shape& weight, const Shape& scales, const StoredScaleTile& tile) {
  const auto [matrices, rows, cols] = extents(weight);
  const std::int64_t down = tile.rows_of(rows), across = tile.cols_of(cols);
  if (product(scales, 0, scales.size()) != matrices * down * across) return false;
  Shape expected(weight.begin(), weight.end() - 2);
  if (tile.is_tensor()) return true;
  if (tile.cols == 0) {
    Shape vector = expected;
    vector.push_back(down);
    if (scales == vector) return true;
  }
  Shape four = expected;
  four.insert(four.end(), {down, 1, across, 1});  // ModelOpt's blocks
  expected.insert(expected.end(), {down, across});
  return scales == expected || scales == four;
}

/// Values of the scales as they are stored. Bytes of type U8 are E8M0.
std::vector<float> scale_values(StoredType type, std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / size_of(type));
  decode_elements(type == StoredType::u8 ? StoredType::f8_e8m0 : type, bytes, values);
  return values;
}

}  // namespace

Shape StoredWeight::shape() const {
  Shape shape = codes->shape;
  if (layout.is_packed() && !shape.empty()) shape.back() *= 2;
  return shape;
}

bool is_zero_point(const std::string& name) { return name.ends_with("weight_zero_point"); }

bool holds_only(const StoredTensor& tensor, float value) {
  if (!is_decodable(tensor.type)) return false;
  std::vector<float> values(static_cast<std::size_t>(tensor.size()));
  read_elements(tensor, 0, values);
  return std::all_of(values.begin(), values.end(), [&](float one) { return one == value; });
}

std::optional<StoredWeight> weight_of_codes(const StoredTensor& tensor, const FindTensor& find,
                                            std::optional<Dialect> claimed) {
  StoredWeight weight;
  weight.codes = &tensor;
  weight.name = tensor.name;
  WeightLayout& layout = weight.layout;
  const std::optional<numerics::FormatSpec> format = code_format(tensor.type);
  if (const std::string name = weight_of_torchao(tensor.name); !name.empty()) {
    weight.name = name;
    layout.dialect = Dialect::torchao;
  } else if (tensor.type == StoredType::u8 && tensor.name.ends_with(kPacked)) {
    weight.name.resize(tensor.name.size() - kPacked.size());
    layout.dialect = Dialect::compressed_tensors;
  } else if (tensor.type == StoredType::u8) {
    const StoredTensor* const scales = find(tensor.name + "_scale");
    const bool has_codes = find(tensor.name + "_scale_2") != nullptr ||
                           (scales != nullptr && scales->type == StoredType::f8_e4m3);
    if (!has_codes) return std::nullopt;
    layout.dialect = Dialect::modelopt;
  } else if (format) {
    if (tensor.name.ends_with("_scale")) return std::nullopt;  // of two levels
    if (is_zero_point(tensor.name)) return std::nullopt;
    const bool has_scale = find(tensor.name + "_scale") != nullptr;
    if (find(tensor.name + "_scale_inv") != nullptr) {
      layout.dialect = Dialect::fine_grained;
    } else if (claimed && (*claimed == Dialect::modelopt || !has_scale)) {
      layout.dialect = *claimed == Dialect::torchao ? Dialect::compressed_tensors : *claimed;
    } else {
      layout.dialect = Dialect::compressed_tensors;
    }
  } else {
    return std::nullopt;
  }
  layout.format = format.value_or(numerics::kE2M1);
  const auto name_of_scales = [&] { return layout_names(layout, weight.name).scales; };
  weight.scales = find(name_of_scales());
  if (weight.scales != nullptr) layout.scale_type = weight.scales->type;
  if (layout.is_packed() && weight.scales == nullptr) layout.scale_type = StoredType::f8_e4m3;
  const std::string global = layout_names(layout, weight.name).global;
  if (!global.empty()) weight.global = find(global);
  return weight;
}

std::optional<StoredScaleTile> tile_of_shapes(const Shape& weight, const Shape& scales,
                                              const std::optional<StoredScaleTile>& claimed) {
  if (weight.size() < 2) return std::nullopt;
  if (claimed && fits_tile(weight, scales, *claimed)) return claimed;
  const auto [matrices, rows, cols] = extents(weight);
  const std::int64_t count = product(scales, 0, scales.size());
  if (count == matrices) return StoredScaleTile{0, 0};
  if (fits_tile(weight, scales, {1, 0})) return StoredScaleTile{1, 0};
  for (const std::int64_t group : {16, 32, 64, 128}) {
    if (cols % group == 0 && fits_tile(weight, scales, {1, group})) {
      return StoredScaleTile{1, group};
    }
  }
  constexpr StoredScaleTile kColumn{0, 1};  // of experts as (in, out)
  if (weight.size() > 2 && fits_tile(weight, scales, kColumn)) return kColumn;
  return std::nullopt;
}

ScaleGrid::ScaleGrid(const Shape& shape, const StoredScaleTile& tile) {
  const auto [matrices, rows, cols] = extents(shape);
  matrices_ = matrices;
  rows_ = rows;
  cols_ = cols;
  grid_rows_ = tile.rows_of(rows);
  grid_cols_ = tile.cols_of(cols);
  tile_height_ = std::max<std::int64_t>(tile.rows == 0 ? rows : tile.rows, 1);
  tile_width_ = std::max<std::int64_t>(tile.cols == 0 ? cols : tile.cols, 1);
  values_.assign(static_cast<std::size_t>(matrices_ * grid_rows_ * grid_cols_), 1.0f);
}

ScaleGrid ScaleGrid::from_bytes(const WeightLayout& layout, const Shape& shape,
                                std::span<const std::byte> scales,
                                std::span<const std::byte> global) {
  ScaleGrid grid(shape, layout.tile);
  std::vector<float> stored = scale_values(layout.scale_type, scales);
  FP8LAB_ASSERT(stored.size() == grid.values_.size());
  if (layout.has_two_levels() && !global.empty()) {
    std::vector<float> tensor = scale_values(StoredType::f32, global);
    for (std::size_t i = 0; i < stored.size(); ++i) {
      const std::size_t matrix = i * tensor.size() / stored.size();
      stored[i] = layout.global_divides() ? stored[i] / tensor[matrix] : stored[i] * tensor[matrix];
    }
  }
  grid.values_ = std::move(stored);
  return grid;
}

ScaleGrid ScaleGrid::read(const StoredWeight& weight) {
  const StoredTensor& scales = *weight.scales;
  if (!is_decodable(scales.type) && scales.type != StoredType::u8) {
    throw InputError({.noun = "tensor",
                      .key = scales.name,
                      .found = shape_text(scales),
                      .accepted = "F32, BF16, F16, F8_E8M0, F8_E4M3, U8"});
  }
  TensorBytes bytes = read_bytes(scales);
  if (weight.is_swizzled) {
    const ScaleGrid grid(weight.shape(), weight.layout.tile);
    TensorBytes ordered(grid.values_.size());
    for (std::size_t i = 0; i < ordered.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      ordered[i] =
          bytes[swizzled_index(at / grid.grid_cols_, at % grid.grid_cols_, grid.grid_cols_)];
    }
    bytes = std::move(ordered);
  }
  const TensorBytes global = weight.global == nullptr ? TensorBytes{} : read_bytes(*weight.global);
  WeightLayout layout = weight.layout;
  layout.scale_type = scales.type;
  return from_bytes(layout, weight.shape(), bytes, global);
}

std::size_t ScaleGrid::index(std::int64_t row, std::int64_t col) const {
  const std::int64_t matrix = row / rows_, local = row % rows_;
  return static_cast<std::size_t>((matrix * grid_rows_ + local / tile_height_) * grid_cols_ +
                                  col / tile_width_);
}

Shape ScaleGrid::indices(std::size_t index) const {
  const auto at = static_cast<std::int64_t>(index);
  const std::int64_t block = at % (grid_rows_ * grid_cols_);
  Shape place = {block / grid_cols_, block % grid_cols_};
  if (matrices_ > 1) place.insert(place.begin(), at / (grid_rows_ * grid_cols_));
  return place;
}

std::string ScaleGrid::place(std::size_t index) const {
  return fmt::format("block ({})", fmt::join(indices(index), ", "));
}

void ScaleGrid::multiply(std::int64_t first, std::span<float> values) const {
  const std::int64_t end = first + static_cast<std::int64_t>(values.size());
  for (std::int64_t at = first; at < end;) {
    const std::int64_t row = at / cols_, col = at % cols_;
    const std::int64_t run_end =
        std::min({end, (row + 1) * cols_, row * cols_ + (col / tile_width_ + 1) * tile_width_});
    const float scale = values_[index(row, col)];
    for (; at < run_end; ++at) values[static_cast<std::size_t>(at - first)] *= scale;
  }
}

void decode_codes(const WeightLayout& layout, std::span<const std::byte> codes, std::int64_t first,
                  std::span<float> values) {
  if (!layout.is_packed()) {
    return decode_elements(code_type(layout),
                           codes.subspan(static_cast<std::size_t>(first), values.size()), values);
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t element = static_cast<std::size_t>(first) + i;
    const auto byte = static_cast<std::uint32_t>(codes[element / 2]);
    values[i] = numerics::decode(layout.format, element % 2 == 0 ? byte & 15u : byte >> 4);
  }
}

void read_codes(const StoredWeight& weight, std::int64_t first, std::span<float> values) {
  const bool packed = weight.layout.is_packed();
  const auto begin = static_cast<std::uint64_t>(first), end = begin + values.size();
  const std::uint64_t from = packed ? begin / 2 : begin, to = packed ? (end + 1) / 2 : end;
  TensorBytes bytes(to - from);
  visit_data(*weight.codes, from, to, [&](std::size_t at, std::span<const std::byte> piece) {
    std::copy(piece.begin(), piece.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at - from));
  });
  decode_codes(weight.layout, bytes, packed ? first % 2 : 0, values);
}

void read_weight(const StoredWeight& weight, const ScaleGrid& scales, std::int64_t first,
                 std::span<float> values) {
  read_codes(weight, first, values);
  scales.multiply(first, values);
}

std::size_t swizzled_index(std::int64_t row, std::int64_t col, std::int64_t cols) {
  const std::int64_t across = (cols + 3) / 4;
  const std::int64_t tile = row / 128 * across + col / 4;
  return static_cast<std::size_t>(tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + col % 4);
}

}  // namespace fp8lab
