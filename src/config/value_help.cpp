#include "src/config/value_help.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>

#include "emulation/numerics/format.hpp"
#include "emulation/spec/accumulator.hpp"
#include "emulation/spec/quant_spec.hpp"
#include "emulation/spec/tensor_core.hpp"
#include "src/config/key_help.hpp"

namespace fp8lab {
namespace {

/// What a word means as the value of keys whose path ends in `key`.
struct Meaning {
  std::string_view key, word, help;
};

constexpr Meaning kMeanings[] = {
    {"backend", "cpu", "bit-exact emulation on the processor"},
    {"backend", "truth", "double precision without quantization: what errors are measured against"},
    {"backend", "cuda", "kernels of an NVIDIA Hopper GPU, with the bits of cpu"},
    {"data.kind", "arithmetic", "the built-in generator of worded arithmetic; needs no file"},
    {"data.kind", "text", "plain text; blank lines separate documents"},
    {"data.kind", "jsonl", "JSON lines: questions and answers, chats, instructions or text"},
    {"data.kind", "tokens", "token shards of fp8lab.tokens, llm.c, llmq or Megatron"},
    {"form", "running_text", "every token is trained on"},
    {"form", "prompt_response", "responses are trained on, prompts are not"},
    {"stages.kind", "pretrain", "first training, from random weights"},
    {"stages.kind", "cpt", "continual pre-training of given weights on running text"},
    {"stages.kind", "sft", "supervised fine-tuning on prompts and responses"},
    {"objective.kind", "cross_entropy", "the likelihood of the next token"},
    {"objective.kind", "policy_gradient", "likelihood weighted by the advantages of the records"},
    {"learning_rate.kind", "wsd", "warm-up, stable, decay: the peak until the last decay_steps"},
    {"learning_rate.kind", "cosine", "warm-up, then half a cosine from peak to final"},
    {"learning_rate.kind", "linear", "warm-up, then a straight line from peak to final"},
    {"learning_rate.kind", "constant", "warm-up, then the peak"},
    {"learning_rate.decay", "cosine", "half a cosine"},
    {"learning_rate.decay", "linear", "a straight line"},
    {"learning_rate.decay", "1-sqrt", "1 - sqrt(share of the decay): fast first, then slow"},
    {"optimizer.kind", "adamw", "two moments and decoupled weight decay (arXiv:1711.05101)"},
    {"optimizer.kind", "lion", "the sign of one moment (arXiv:2302.06675)"},
    {"optimizer.kind", "sgd", "heavy ball with decoupled weight decay"},
    {"optimizer.kind", "madam", "multiplicative steps on weights in logarithms (LNS-Madam)"},
    {"optimizer.kind", "muon", "orthogonalized momentum of matrices (arXiv:2502.16982)"},
    {"update_moments", "rounded", "the update reads the moments as they are stored"},
    {"update_moments", "unrounded", "the update reads the moments before they are stored (MS-AMP)"},
    {"update_scale", "adamw_rms", "0.2 sqrt(max(rows, columns)): updates as large as AdamW's"},
    {"update_scale", "original", "sqrt(max(1, rows / columns))"},
    {"kind", "automatic", "muon for the weights of linear layers but the head's, else adamw"},
    {"group.kind", "adamw", "as optimizer.kind = \"adamw\""},
    {"group.kind", "muon", "as optimizer.kind = \"muon\" for matrices; adamw for vectors"},
    {"nonfinite", "stop", "the run ends at a loss or gradient norm that is not finite"},
    {"nonfinite", "keep_going", "the run records such a step and goes on"},
    {"growth.order", "interpose", "copies follow their layer: 0 0 1 1"},
    {"growth.order", "stack", "the whole stack is repeated: 0 1 0 1"},
    {"recompute", "none", "activations stay in memory until the backward pass"},
    {"recompute", "gate_up", "inputs of the activation function and of the norm before are remade"},
    {"recompute", "feed_forward", "all activations behind attention are remade"},
    {"recompute", "layer", "all of a layer but its input is remade"},
    {"weight_codes", "keep", "both orientations of a quantized weight stay for the whole step"},
    {"weight_codes", "remake", "a weight is quantized again for each product"},
    {"stress.kind", "outlier_channels", "scales channels of activations up; keeps the function"},
    {"stress.kind", "aligned_swiglu", "makes gates a multiple of their other half"},
    {"stress.kind", "spike", "large activations in one step, seen by quantizers only"},
    {"rope_type", "default", "frequencies as they are"},
    {"rope_type", "linear", "every frequency divided by the factor"},
    {"rope_type", "dynamic", "as default, up to the longest sequence that the model accepts"},
    {"rope_type", "yarn", "by parts, from beta_fast to beta_slow (arXiv:2309.00071)"},
    {"rope_type", "llama3", "by parts, from high_freq_factor to low_freq_factor"},
    {"norm", "rmsnorm", "division by the root mean square"},
    {"norm", "layernorm", "mean subtracted, then division by the deviation; with a bias"},
    {"norm_place", "pre", "x + f(norm(x)): GPT-2, Llama"},
    {"norm_place", "post", "x + norm(f(x)): OLMo 2"},
    {"norm_place", "both", "x + norm(f(norm(x))): Gemma 2"},
    {"norm_place", "none", "x + f(x)"},
    {"qk_norm_over", "head", "queries and keys are normalized within each head (Qwen3)"},
    {"qk_norm_over", "all_heads", "over all heads at once (OLMo 2)"},
    {"qk_norm_over", "elements", "no norm: tanh(alpha x) of each element, alpha trained (FOG)"},
    {"feed_forward", "swiglu", "down(silu(gate(x)) up(x)): Llama"},
    {"feed_forward", "geglu_tanh", "down(gelu(gate(x)) up(x)), gelu as in gelu_tanh: Gemma"},
    {"feed_forward", "gelu_tanh", "down(gelu(up(x))), by its formula with tanh: GPT-2"},
    {"feed_forward", "relu2", "down(max(up(x), 0)^2): Nemotron-4"},
    {"feed_forward", "xielu", "down(xielu(up(x))), with two trained numbers a layer: FOG"},
    {"linear_alpha", "one", "y = x W^T"},
    {"linear_alpha", "inverse_sqrt_in", "y = x W^T / sqrt(inputs)"},
    {"linear_alpha", "inverse_in", "y = x W^T / inputs"},
    {"head_alpha", "one", "y = x W^T"},
    {"head_alpha", "inverse_sqrt_in", "y = x W^T / sqrt(inputs)"},
    {"head_alpha", "inverse_in", "y = x W^T / inputs"},
    {"positions", "rope", "queries and keys are rotated by their position"},
    {"positions", "learned", "a learned vector for each position"},
    {"tile", "tensor", "one scale for the whole tensor"},
    {"tile", "row", "one scale for each row: a token or an output channel"},
    {"tile", "RxC", "one scale for R rows by C elements along K, such as 1x128 or 128x128"},
    {"tile", "mx32", "one e8m0 scale for 32 elements along K (OCP MX)"},
    {"tile", "nv16", "one scale of nv_two_level for 16 elements along K (NVFP4)"},
    {"scale_format", "fp32", "any FP32 value"},
    {"scale_format", "pow2", "a power of two, held in FP32"},
    {"scale_format", "e8m0", "a power of two from 2^-127 to 2^127, 8 bits (OCP MX)"},
    {"scale_format", "bf16", "a BF16 value (COAT)"},
    {"scale_format", "e4m3", "a positive E4M3 value, at most 448"},
    {"scale_format", "nv_two_level", "an E4M3 value for a tile times an FP32 factor of the tensor"},
    {"scale_rounding", "nearest", "log2(amax / largest code) to the nearest integer"},
    {"scale_rounding", "ceil", "log2(amax / largest code) rounded up (InfiR2, DeepSeek-V3)"},
    {"scale_rounding", "enc_floor", "mantissa of largest code / amax cleared (TransformerEngine)"},
    {"scale_rounding", "ocp_floor", "floor(log2 amax) less the format's largest exponent (OCP MX)"},
    {"scale_rounding", "rceil", "amax / largest code rounded up (TransformerEngine MXFP8)"},
    {"scale_rounding", "even", "amax rounded to the mantissa of the format, then ocp_floor"},
    {"scale_rounding", "floor", "log2(amax / largest code) rounded down (QuEST)"},
    {"scale_arithmetic", "enc_div", "codes are x times RN(largest code / amax)"},
    {"scale_arithmetic", "dec_div_recip", "codes are x times the reciprocal of the scale"},
    {"scale_arithmetic", "dec_div", "codes are x divided by the scale"},
    {"epsilon_mode", "floor", "the larger of amax and amax_epsilon"},
    {"epsilon_mode", "add", "amax plus amax_epsilon (COAT)"},
    {"encode_limit", "fp32", "the largest FP32 number"},
    {"encode_limit", "bf16", "the largest BF16 number"},
    {"scale_overflow", "saturate", "2^127"},
    {"scale_overflow", "nan", "NaN, which makes the tile NaN"},
    {"four_over_six", "none", "every tile maps its amax to the largest code"},
    {"four_over_six", "mae", "a tile takes the scale with the smaller sum of |error|"},
    {"four_over_six", "mse", "a tile takes the scale with the smaller sum of squared errors"},
    {"scale_source", "current", "the amax of the tile itself"},
    {"scale_source", "delayed", "amaxes of earlier steps, in a history; for tile = \"tensor\""},
    {"scale_source", "static", "static_scale, which the recipe gives"},
    {"scale_source", "none", "no scale: values are only cast"},
    {"scale_statistic", "amax", "the largest magnitude of the tile"},
    {"scale_statistic", "std", "std:C: C standard deviations of the tile's elements"},
    {"amax_algorithm", "max", "the largest amax of the history"},
    {"amax_algorithm", "most_recent", "the amax of the last step"},
    {"amax_algorithm", "window", "the largest, taken once every `history` steps, then forgotten"},
    {"rounding", "nearest", "to the nearest code, ties to the even one"},
    {"rounding", "ties_down", "to the nearest code, ties to the smaller magnitude"},
    {"rounding", "ties_positive", "to the nearest code, ties to the larger number"},
    {"rounding", "toward_zero", "magnitudes are cut"},
    {"rounding", "stochastic",
     "up with a probability that makes the mean exact; stochastic:N uses N random bits, so that "
     "the "
     "probability is cut to a multiple of 2^-N (cvt.rs of Blackwell: 8 or 16)"},
    {"via", "fp32", "directly: scaled values are FP32"},
    {"via", "bf16", "rounded to BF16 first, to nearest even; overflow becomes infinity"},
    {"via", "fp16", "rounded to FP16 first, to nearest even; overflow becomes infinity"},
    {"outer_scale", "tensor", "the whole tensor"},
    {"outer_scale", "row", "each row of the operand, so that no row depends on another one"},
    {"overflow", "saturate", "the largest code"},
    {"overflow", "special", "infinity, or NaN in formats without infinity"},
    {"transform", "none", "the operand as it is"},
    {"transform", "hadamard",
     "hadamard:BLOCK: blocks along K times a Hadamard matrix, which "
     "spreads outliers; undone in the product"},
    {"transform", "smooth",
     "smooth:STRENGTH: channels divided by factors that the other operand "
     "is multiplied by (SmoothQuant)"},
    {"transform", "expand", "a power of each tile, that its range fills the format (COAT)"},
    {"transform", "clamp",
     "clamp:QUANTILE: elements beyond the quantile are cut; compensated: "
     "their residual is added to the product"},
    {"orientation_source", "high_precision", "the unquantized tensor"},
    {"orientation_source", "requantized", "the first orientation, dequantized and quantized again"},
    {"orientation_source", "dequantized", "the first orientation, dequantized"},
    {"orientation_source", "transformed", "the first orientation, dequantized, still transformed"},
    {"weight_source", "bf16", "the working copy of the weight"},
    {"weight_source", "master", "the master weight of the optimizer"},
    {"estimator", "ste", "1 everywhere: gradients pass straight through"},
    {"estimator", "clip_mask", "1 within the range of the format, 0 outside"},
    {"estimator", "dge", "dge:K:CAP: the slope of a curve between two codes, at most CAP"},
    {"schedule", "fast", "one chain of the tensor core over all of K"},
    {"schedule", "promote", "promote:128: chains of 128 elements, added in FP32"},
    {"scale_order", "automatic", "as cuBLASLt, by the tiles of both operands"},
    {"scale_order", "epilogue", "once, at the end of the sum"},
    {"scale_order", "b_then_a", "each partial sum times the scale of B, then that of A"},
    {"scale_order", "a_then_b", "each partial sum times the scale of A, then that of B"},
    {"scale_order", "product_first", "each partial sum times the product of both scales"},
    {"scale_order", "in_instruction", "block scales inside the instruction (sm100)"},
};

/// Returns the word before the parameters: "hadamard" of "hadamard:16".
std::string_view stem(std::string_view word) { return word.substr(0, word.find(':')); }

bool is_of(const std::string& path, std::string_view key) {
  return path == key || path.ends_with("." + std::string(key));
}

/// Returns "largest 448, smallest normal 0.015625 (2^-6) and subnormal 0.00195312 (2^-9)".
std::string range_of(const numerics::FormatSpec& format) {
  const float largest = numerics::max_finite(format);
  if (format.encoding == numerics::Encoding::twos_complement) {
    return fmt::format("integers from -{0:g} to {0:g}", largest);
  }
  std::string text = fmt::format("largest {:g}", largest);
  const int exponent = format.min_exponent(), last = exponent - format.mantissa_bits;
  if (format.exponent_bits > 0) {
    text += fmt::format(", smallest normal {:g} (2^{})", std::ldexp(1.0, exponent), exponent);
  }
  if (format.has_subnormals && format.mantissa_bits > 0) {
    text +=
        fmt::format("{} {:g} (2^{})", format.exponent_bits > 0 ? " and subnormal" : ", smallest",
                    std::ldexp(1.0, last), last);
  }
  return text;
}

/// Returns "8 bits, of them 4 of exponent (bias 7) and 3 of mantissa; largest 448, ...".
std::string facts_of(const numerics::FormatSpec& format) {
  using numerics::Encoding;
  if (format.encoding == Encoding::twos_complement) {
    return fmt::format("a number format: {} bits; {}, no special values", format.bits(),
                       range_of(format));
  }
  if (format.encoding != Encoding::floating) {
    return fmt::format("a number format: {} bits, logarithmic", format.bits());
  }
  const char* special = format.has_infinity() ? "infinity and NaN"
                        : format.has_nan()    ? "NaN, no infinity"
                                              : "neither infinity nor NaN";
  const std::string fields =
      format.exponent_bits == 0
          ? fmt::format("a sign and {} of magnitude, fixed point", format.mantissa_bits)
          : fmt::format("{} of exponent (bias {}) and {} of mantissa{}", format.exponent_bits,
                        format.bias, format.mantissa_bits, format.has_sign ? "" : ", no sign");
  return fmt::format("a number format: {} bits, of them {}; {}; {}", format.bits(), fields,
                     range_of(format), special);
}

/// Returns the names in recipes of the number formats that `word` may mean.
std::vector<std::string> formats_meant(const std::string& word) {
  if (word == "e4m3") return {"e4m3fn", "e4m3_240"};  // OCP's, which most mean, and the IEEE-like
  return format_by_name(word) ? std::vector{word} : std::vector<std::string>();
}

/// Explains the value `word` of `key`; empty if nothing is known of it.
std::string meaning_of(const KeyHelp& key, const std::string& word) {
  constexpr std::string_view kSources = "sources.";  // keys of one source and of several
  std::string path = key.path;
  if (const std::size_t at = path.find(kSources); at != std::string::npos) {
    path.erase(at, kSources.size());
  }
  for (const Meaning& meaning : kMeanings) {
    if (is_of(path, meaning.key) && meaning.word == stem(word)) return std::string(meaning.help);
  }
  if (is_of(key.path, "accumulator")) {
    for (const TensorCoreProfile& profile : tensor_core_profiles()) {
      if (profile.name != word) continue;
      return fmt::format("an accumulator: {} (fp8lab info --accumulators)",
                         describe(profile.accumulator));
    }
  }
  const auto format = format_by_name(word);
  return format ? facts_of(*format) : std::string();
}

std::vector<KeyHelp> keys_with_values() {
  std::vector<KeyHelp> keys = run_keys();
  for (KeyHelp& key : recipe_keys()) keys.push_back(std::move(key));
  return keys;
}

/// Keys whose words take parameters, such as transform, list none: theirs are in kMeanings.
bool accepts(const KeyHelp& key, const std::string& word) {
  if (key.names.empty()) {
    return std::any_of(std::begin(kMeanings), std::end(kMeanings), [&](const Meaning& meaning) {
      return meaning.word == word && is_of(key.path, meaning.key);
    });
  }
  return std::any_of(key.names.begin(), key.names.end(), [&](const std::string& name) {
    return name == word || (name != "RxC" && stem(name) == word);
  });
}

}  // namespace

std::string value_help(const std::string& word) {
  std::vector<std::pair<std::string, std::string>> found;  // meaning, and the keys that have it
  std::string only;
  for (const KeyHelp& key : keys_with_values()) {
    if (accepts(key, word)) {
      const std::string meaning = meaning_of(key, word);
      const auto same = std::find_if(found.begin(), found.end(),
                                     [&](const auto& one) { return one.first == meaning; });
      if (same == found.end()) {
        found.emplace_back(meaning, key.path);
      } else {
        same->second += ", " + key.path;
      }
    }
    if (key.needs.find("\"" + word + "\"") != std::string::npos) {
      only += (only.empty() ? "" : ", ") + key.path;
    }
  }
  std::string text;
  for (const auto& [meaning, keys] : found) {
    text += fmt::format("{}: {}\n    a value of {}\n", word, meaning, keys);
  }
  // Formats of scales have the names of formats of elements.
  std::string formats;
  for (const std::string& name : formats_meant(word)) {
    const std::string facts = facts_of(*format_by_name(name));
    const bool is_said = std::any_of(found.begin(), found.end(),
                                     [&](const auto& one) { return one.first == facts; });
    if (!is_said) formats += fmt::format("{}: {}\n    a value of format\n", name, facts);
  }
  text.insert(0, formats);
  if (!text.empty() && !only.empty()) text += fmt::format("    matters to {}\n", only);
  return text;
}

std::vector<std::string> value_words() {
  std::vector<std::string> words;
  for (const KeyHelp& key : keys_with_values()) {
    for (const std::string& name : key.names) words.emplace_back(stem(name));
  }
  for (const Meaning& meaning : kMeanings) words.emplace_back(meaning.word);
  return words;
}

std::vector<std::string> unexplained_values() {
  std::vector<std::string> missing;
  for (const KeyHelp& key : keys_with_values()) {
    for (const std::string& name : key.names) {
      if (meaning_of(key, name).empty()) missing.push_back(key.path + " = " + name);
    }
  }
  return missing;
}

}  // namespace fp8lab
