// Models as folders that transformers and inference engines load.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "emulation/spec/recipe.hpp"
#include "src/config/config.hpp"
#include "src/io/tensors/safetensors.hpp"
#include "src/model/part_report.hpp"
#include "src/model/weights/model_tensors.hpp"

namespace fp8lab {

struct ExportOptions {
  StoredType dtype = StoredType::bf16;        ///< bf16, f16 or f32: of what is not quantized
  std::uint64_t shard_bytes = 5'000'000'000;  ///< as transformers divides models
  /// Weights of linear layers as their fprop.w operands, each tensor of the file by itself
  /// (export_notes).
  std::optional<Recipe> recipe;
  std::uint64_t seed = 0;           ///< of stochastic rounding
  std::filesystem::path tokenizer;  ///< folder whose tokenizer files are copied; or empty
  /// Which tokenizer the weights are of, "bytes" or a hash (kTokenizerField); empty: not known.
  std::string tokenizer_name = {};
};

/// Writes config.json, the tensors and the tokenizer into `folder`, which appears complete or not
/// at all. Values are those of files (as_in_files), rounded to nearest even. The lock of `folder`
/// (FileLock) is held meanwhile, and what a killed process left of an earlier attempt removed.
/// Throws Error when the folder exists and is not empty, when another process writes it, for values
/// too large for `dtype`, for models and quantizers that no convention of files has
/// (hugging_face_config, layout_of_spec), for layers quantized in different tiles, and for a
/// tokenizer that is not the weights' own.
void export_model(Backend& backend, const ModelTensors& weights, const ModelConfig& model,
                  const ExportOptions& options, const std::filesystem::path& folder,
                  const PartReport& report = {});

/// What a user should know of the files that export_model writes: how many weights have other tiles
/// than training gives them, which quantizes q, k and v, and gate and up, as one matrix each.
std::vector<std::string> export_notes(const ModelConfig& model, const ExportOptions& options);

/// The weight of a linear layer in backend memory as training quantizes it by `spec`: bf16 or f32,
/// as spec.weight_source says.
TensorView upload_weight(Backend& backend, const ModelTensors& tensors, std::size_t index,
                         const QuantSpec& spec);

/// upload_weight as the operand of fprop.w. Stochastic rounding draws from seed + index.
QuantizedOperand quantize_weight(Backend& backend, const ModelTensors& tensors, std::size_t index,
                                 const QuantSpec& spec, std::uint64_t seed);

/// The largest magnitude of a weight as quantize_weight quantizes it.
float weight_amax(const ModelTensors& tensors, std::size_t index, const QuantSpec& spec);

/// The bytes of a tensor in the type of `header`, rounded to nearest even. Throws Error naming the
/// tensor for a value too large for that type.
TensorBytes rounded_values(const ModelTensors& tensors, std::size_t index,
                           const TensorHeader& header);

}  // namespace fp8lab
