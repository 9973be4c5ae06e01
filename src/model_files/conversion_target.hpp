// The words of `fp8lab convert --to`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/model/dialects/weight_layout.hpp"

namespace fp8lab {

/// What a model is converted to: values of one type, or quantized weights in a layout.
struct ConversionTarget {
  StoredType dtype = StoredType::bf16;  ///< without a layout: bf16, f16 or f32
  std::optional<WeightLayout> layout;
};

/// One dialect and what `--to` accepts of it, for help and documents.
struct TargetWords {
  std::string dialect;
  std::vector<std::string> schemes;  ///< the first is the default; "RxC" stands for any block
  std::vector<std::string> changes;  ///< further words
};

const std::vector<TargetWords>& target_words();

/// Parses "bf16", "f16", "f32" or "DIALECT[:SCHEME][:CHANGE]": "fp8", "fp8:128x128:ue8m0",
/// "compressed-tensors:nvfp4", "modelopt:mxfp8", "torchao:tensor". Schemes: a block such as
/// 128x128, "channel" (one scale a row), "tensor", "mxfp8", "mxfp4", "nvfp4". Changes: "ue8m0"
/// powers of two held in F32, "e8m0" powers of two held in F8_E8M0, "fnuz" E4M3FNUZ codes. Throws
/// Error that says what is accepted.
ConversionTarget parse_target(const std::string& words);

}  // namespace fp8lab
