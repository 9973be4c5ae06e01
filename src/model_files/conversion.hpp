// Converts the weights of a model's folder between BF16 and the dialects of quantized weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "src/model/part_report.hpp"
#include "src/model_files/conversion_target.hpp"
#include "src/model_files/model_folder.hpp"

namespace fp8lab {

struct ConversionOptions {
  ConversionTarget target;
  std::optional<QuantSpec> spec;     ///< instead of spec_of_layout
  std::vector<std::string> ignored;  ///< patterns of modules that stay in high precision
  std::optional<float> input_scale;  ///< of modules of a dialect that needs one
  std::uint64_t shard_bytes = 5'000'000'000;
  std::uint64_t seed = 0;  ///< of stochastic rounding
};

/// What happened to one tensor.
struct ConvertedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::string from, to;    ///< a layout in words, or a type
  bool is_copied = false;  ///< codes as they were; the scales' values too, or times 2 or 1/2
  double sqnr_db = 0;      ///< infinity: the same values
  double max_error = 0;    ///< largest |x - y| of the values read from the source and the result
  double largest = 0;      ///< largest |x|
};

struct Conversion {
  std::vector<ConvertedTensor> tensors;  ///< all but copies of unquantized ones
  std::size_t copied = 0;                ///< unquantized tensors written byte for byte
  std::vector<std::string> notes;
};

/// Writes `source` as `out`, which appears complete or not at all (write_model_folder), reading and
/// holding one tensor at a time.
///
/// The function quantizes every weight "X.weight" of two extents, except embeddings, heads, routers
/// and `ignored`, every stack of experts (stacked_experts.hpp), and every weight that was quantized
/// before. It keeps the codes of a weight if the target has the same tile and format and can hold
/// the scales. E4M3 and E4M3FNUZ count as one format: scales change by a factor of 2. Other weights
/// are dequantized (scale * code in FP32), and the emulator's quantizer quantizes them anew. The
/// loss of each tensor is measured on the bytes written, read back.
///
/// Throws Error naming the tensor if the source has errors that forbid reading it, for K that is no
/// multiple of a group, for stacks that the target has no files for, for values too large for the
/// type, for files that hold (in, out) weights, for two tensors of one name, and for inputs without
/// a scale where the dialect needs one.
Conversion convert_model(Backend& backend, const ModelFolder& source,
                         const ConversionOptions& options, const std::filesystem::path& out,
                         const PartReport& report);

}  // namespace fp8lab
