// How quantized weights lie in the files of the libraries that write and read them: which tensors
// hold the codes and the scales of a weight, of which types and shapes, and what they mean.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/numerics/format.hpp"
#include "emulation/spec/quant_spec.hpp"
#include "src/io/tensors/safetensors_header.hpp"

namespace fp8lab {

/// The elements of a (N, K) weight that share a scale; an extent of 0 is the whole one.
struct StoredScaleTile {
  std::int64_t rows = 0, cols = 0;
  bool operator==(const StoredScaleTile&) const = default;
  bool is_block() const { return rows > 0 && cols > 0; }
  bool is_tensor() const { return rows == 0 && cols == 0; }
  bool is_row() const { return rows == 1 && cols == 0; }
  bool is_column() const { return rows == 0 && cols == 1; }
  /// Returns the tiles of a matrix of these rows, and of these columns.
  std::int64_t rows_of(std::int64_t n) const { return rows == 0 ? 1 : (n + rows - 1) / rows; }
  std::int64_t cols_of(std::int64_t k) const { return cols == 0 ? 1 : (k + cols - 1) / cols; }
};

/// "128x128", "row", "column" or "tensor".
std::string tile_text(const StoredScaleTile& tile);

/// The conventions of names. What a file holds of the weight "X.weight":
/// - fine_grained (DeepSeek, transformers): X.weight and X.weight_scale_inv.
/// - compressed_tensors (llm-compressor, vLLM): X.weight and X.weight_scale. If a byte holds two
///   codes, X.weight_packed; if scales have two levels, also X.weight_global_scale.
/// - modelopt: X.weight and X.weight_scale; if scales have two levels, also X.weight_scale_2.
/// - torchao: X._weight_qdata and X._weight_scale; if scales have two levels, also
///   X._weight_per_tensor_scale.
enum class Dialect : std::uint8_t { fine_grained, compressed_tensors, modelopt, torchao };

/// "fp8", "compressed-tensors", "modelopt" or "torchao": the quant_method of config.json.
std::string_view dialect_name(Dialect dialect);

/// How one weight is stored.
struct WeightLayout {
  Dialect dialect = Dialect::fine_grained;
  numerics::FormatSpec format = numerics::kE4M3;
  StoredScaleTile tile{};
  StoredType scale_type = StoredType::f32;  ///< U8 and F8_E8M0 are powers of two, E4M3 two levels
  bool scales_are_powers = false;           ///< powers of two held in F32 ("ue8m0")

  bool operator==(const WeightLayout&) const = default;
  /// Returns true for two codes in a byte, the one of the even column in the low half.
  bool is_packed() const { return format.bits() == 4; }
  /// Returns true for E4M3 scales of the tiles and a further one of the tensor (NVFP4).
  bool has_two_levels() const { return scale_type == StoredType::f8_e4m3; }
  /// Returns true if scales are bytes of E8M0.
  bool has_e8m0_scales() const {
    return scale_type == StoredType::u8 || scale_type == StoredType::f8_e8m0;
  }
  /// Returns true if the tensor's scale divides: the tile's scale is its stored one / the tensor's.
  bool global_divides() const { return dialect == Dialect::compressed_tensors; }
};

/// The type of the codes in files: U8 for packed ones.
StoredType code_type(const WeightLayout& layout);
/// The format of codes of a stored type; empty if it holds none.
std::optional<numerics::FormatSpec> code_format(StoredType type);

/// "compressed-tensors e2m1/1x16, scales F8_E4M3 and F32".
std::string layout_text(const WeightLayout& layout);

/// Names of the tensors of one weight; `global` is empty without two levels.
struct LayoutNames {
  std::string codes, scales, global;
};

/// Returns the names for `weight`, "X.weight".
LayoutNames layout_names(const WeightLayout& layout, const std::string& weight);

/// Returns the tensors of a weight of `shape` (N, K): the codes, the scales, and of two levels the
/// tensor's scale. Throws Error naming the weight if K is no multiple of what the layout needs
/// (2 codes in a byte; whole groups where the dialect has no short ones).
std::vector<TensorHeader> layout_headers(const WeightLayout& layout, const std::string& weight,
                                         const std::vector<std::int64_t>& shape);

/// Returns the layout of operands of `spec` in the dialect that inference engines read for it:
/// blocks in that of transformers' fine-grained FP8, everything else in that of compressed-tensors.
/// `layer` is named in errors. Throws Error for formats, tiles and transforms that neither has.
WeightLayout layout_of_spec(const QuantSpec& spec, const std::string& layer);

/// Returns the quantizer of a layout with the arithmetic of the libraries that write it: scale =
/// RN(amax / Qmax) and q = cast(x / scale); powers of two rounded up (E8M0: rceil); two levels as
/// TransformerEngine.
QuantSpec spec_of_layout(const WeightLayout& layout);

/// Returns what of `spec` a layout cannot hold: its format, tile, kind of scale, transform; empty
/// if it can hold all.
std::string refuse_spec(const WeightLayout& layout, const QuantSpec& spec);

}  // namespace fp8lab
