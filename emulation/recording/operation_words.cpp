#include "emulation/recording/operation_words.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace fp8lab {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;

/// Operations whose names are not the words of the documents.
constexpr Pair kNames[] = {
    {"accumulate_square_sum", "sum of squared gradients"},
    {"activation_backward", "activation function backward"},
    {"activation_forward", "activation function forward"},
    {"advance_moments", "update of the moments"},
    {"attention_cached", "attention with a cache"},
    {"begin_update", "gradient norm and clipping"},
    {"bias_backward", "gradient of the bias"},
    {"dequantize", "dequantization"},
    {"estimator_factor", "factor of the gradient estimator"},
    {"gated_backward", "gated activation backward"},
    {"gated_forward", "gated activation forward"},
    {"hash_tensors", "hash of tensors"},
    {"join_products", "sum of products"},
    {"load_state", "decoding of an optimizer state"},
    {"measure_both", "statistics of both orientations"},
    {"measure_operand", "statistics of an operand"},
    {"partial_values", "values with some errors"},
    {"product", "GEMM"},
    {"quantize", "quantization"},
    {"quantize_both", "quantization in both orientations"},
    {"quantized_attention_cached", "quantized attention with a cache"},
    {"rotate_back", "inverse Hadamard transform"},
    {"store_state", "encoding of an optimizer state"},
    {"update_delayed_scale", "update of the delayed scale"},
    {"update_weights", "update of the weights"},
};

/// Parts of names with a spelling of their own.
constexpr Pair kParts[] = {{"adamw", "AdamW"},     {"gemm", "GEMM"}, {"layernorm", "LayerNorm"},
                           {"rmsnorm", "RMSNorm"}, {"rope", "RoPE"}, {"xielu", "xIELU"}};

std::string_view known(const Pair* begin, const Pair* end, std::string_view name) {
  const Pair* const found =
      std::find_if(begin, end, [&](const Pair& one) { return one.first == name; });
  return found == end ? name : found->second;
}

std::string words_of(std::string_view name) {
  const std::string_view whole = known(std::begin(kNames), std::end(kNames), name);
  if (whole != name) return std::string(whole);
  std::string words;
  while (!name.empty()) {
    const std::size_t end = std::min(name.find('_'), name.size());
    words += words.empty() ? "" : " ";
    words += known(std::begin(kParts), std::end(kParts), name.substr(0, end));
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return words;
}

}  // namespace

std::string operation_words(const std::string& name) {
  constexpr std::string_view kAnd = " and ";  // an output that is quantized as it is computed
  const std::size_t gemm = std::min(name.find(" ("), name.size());  // "product (fprop)"
  if (gemm < name.size()) return operation_words(name.substr(0, gemm)) + name.substr(gemm);
  const std::size_t at = name.find(kAnd);
  if (at == std::string::npos) return words_of(name);
  return words_of(std::string_view(name).substr(0, at)) + std::string(kAnd) +
         words_of(std::string_view(name).substr(at + kAnd.size()));
}

}  // namespace fp8lab
