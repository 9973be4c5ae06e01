// Names of operations in the terms of the documents, for messages.
#pragma once

#include <string>

namespace fp8lab {

/// Returns operation_name in words: "RMSNorm forward and quantization" for "rmsnorm_forward and
/// quantize". A name without words of its own is its parts: "weighted sum" for "weighted_sum".
/// Text in parentheses behind the name stays: "GEMM (fprop)" for "product (fprop)".
std::string operation_words(const std::string& name);

}  // namespace fp8lab
