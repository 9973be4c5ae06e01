// Experts in MXFP4 as gpt-oss has them, and packed codes that no quantization_config explains.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/model_files/model_folder.hpp"

namespace fp8lab {

/// `X_blocks` U8 (experts, N, K / 32, 16), two codes in a byte, the even column in the low half,
/// and `X_scales` U8 (experts, N, K / 32), 2^(byte - 127). The model reads the values of X as
/// (experts, K, N).
struct PackedExperts {
  std::string name;  ///< X
  const StoredTensor* blocks = nullptr;
  const StoredTensor* scales = nullptr;

  std::vector<std::int64_t> shape() const;  ///< (experts, K, N)
};

/// The bytes of both tensors.
struct PackedExpertBytes {
  TensorBytes blocks, scales;
};

/// True for experts whose quantization_config says that they are in MXFP4.
bool claims_packed_experts(const ModelFolder& folder);

/// Returns the experts in MXFP4. Appends an error for codes without scales, scales without codes,
/// shapes and types that do not fit, and for packed codes of other names or without a
/// quantization_config that explains them. The doctor and the conversion call this one function.
std::vector<PackedExperts> find_packed_experts(const ModelFolder& folder,
                                               std::vector<ModelFinding>& findings);

PackedExpertBytes read_bytes(const PackedExperts& experts);

/// Reads destination.size() values of X from element `first` on, in the order (experts, K, N). A
/// scale of NaN, or too large a product, is no finite number.
void read_experts(const PackedExperts& experts, const PackedExpertBytes& bytes, std::int64_t first,
                  std::span<float> destination);

}  // namespace fp8lab
