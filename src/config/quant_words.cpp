// "FORMAT[/WORD...]" and "RECIPE:SLOT": a quantizer in a few words.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "emulation/spec/spec_fields.hpp"
#include "src/config/config.hpp"
#include "src/config/nearest_name.hpp"
#include "src/config/recipe_draft.hpp"
#include "src/config/spec_words.hpp"
#include "src/config/words.hpp"

namespace fp8lab {
namespace {

/// "history" and "16" of "history:16"; the value is empty where there is no colon.
std::pair<std::string, std::string> split_at_colon(const std::string& word) {
  const std::size_t colon = word.find(':');
  if (colon == std::string::npos) return {word, ""};
  return {word.substr(0, colon), word.substr(colon + 1)};
}

/// What a word about `key` needs to have an effect.
std::string_view needed_words(std::string_view key) {
  if (key == "scale_rounding") return "pow2, e8m0 or mx32";
  if (key == "scale_overflow") return "e8m0 or mx32";
  if (key == "four_over_six") return "nv16 or nv_two_level";
  if (key == "epsilon_mode") return "amax_epsilon:NUMBER above 0";
  if (key == "encode_limit") return "enc_div and fp32, bf16 or e4m3 scales";
  if (key == "history" || key == "amax_algorithm" || key == "warmup_steps") return "delayed";
  return "current or delayed scales, other than of two levels or of a codebook";
}

/// A quantizer while its words are read. Every word is about one key of a recipe's slot table.
class QuantWords {
 public:
  explicit QuantWords(const std::string& text)
      : text_(text), said_(fmt::format("quantizer '{}'", text)) {}
  QuantSpec read();

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw Error(fmt::format("quantizer '{}': {}", text_, message));
  }
  void read_format(const std::string& word);
  void read_word(const std::string& word);
  bool take_scale_word(const std::string& word);
  bool take_pair(const std::string& word);
  void resolve();
  void check_effects() const;
  template <class T, std::size_t N>
  void choose(std::string_view key, const std::array<Named<T>, N>& names, const std::string& word,
              const std::string& name, T& value);
  template <class Number>
  Number number(std::string_view key, const std::string& word, const std::string& digits,
                Number least, Number most);

  const std::string& text_;
  QuantSpec spec_;
  bool is_ocp_ = false;
  SettledOnce said_;  ///< by key
};

template <class T, std::size_t N>
void QuantWords::choose(std::string_view key, const std::array<Named<T>, N>& names,
                        const std::string& word, const std::string& name, T& value) {
  std::string accepted;
  for (const Named<T>& entry : names) {
    if (entry.name == name) {
      said_.settle(key, word);
      value = entry.value;
      return;
    }
    accepted += fmt::format("{}{}:{}", accepted.empty() ? "" : ", ", key, entry.name);
  }
  fail(fmt::format("unknown word '{}'{}; accepted: {}", word, did_you_mean(word, accepted),
                   accepted));
}

template <class Number>
Number QuantWords::number(std::string_view key, const std::string& word, const std::string& digits,
                          Number least, Number most) {
  const std::optional<Number> value = number_of<Number>(digits);
  if (!value || !(*value >= least && *value <= most)) {
    fail(fmt::format("'{}'; accepted: {}:NUMBER from {} to {}", word, key, least, most));
  }
  said_.settle(key, word);
  return *value;
}

void QuantWords::read_format(const std::string& word) {
  const std::optional<numerics::FormatSpec> format = format_by_name(word);
  if (!format || word == "e4m3") {
    constexpr std::string_view kFormats =
        "e4m3fn, e5m2, e3m4, e2m3, e3m2, e2m1, e4m3_240, int8, int4, mxint8, lns8, bf16, fp32, or "
        "eXmY such as e5m1, intN, lnsBgG such as lns8g16, logfmtN; or RECIPE:SLOT such as "
        "infir2:fprop.x";
    fail(fmt::format("unknown format '{}'{}; accepted: {}", word, did_you_mean(word, kFormats),
                     kFormats));
  }
  spec_.format = *format;
}

bool QuantWords::take_scale_word(const std::string& word) {
  numerics::ScaleRule& scale = spec_.scale;
  if (word == "mx32" || word == "nv16") {
    is_ocp_ = word == "mx32";
    said_.settle("tile", word);
    said_.settle("scale_format", word);
    spec_.tile = {1, is_ocp_ ? 32 : 16};
    scale.format = is_ocp_ ? numerics::ScaleFormat::e8m0 : numerics::ScaleFormat::nv_two_level;
    return true;
  }
  if (const std::optional<TileShape> tile = tile_from_name(word)) {
    said_.settle("tile", word);
    spec_.tile = *tile;
    return true;
  }
  if (word == "delayed") {
    said_.settle("scale_source", word);
    spec_.scale_source = ScaleSource::delayed;
    return true;
  }
  return said_.take("scale_format", kScaleFormatNames, word, scale.format) ||
         (word != "nearest" &&
          said_.take("scale_rounding", kScaleRoundingNames, word, scale.rounding)) ||
         said_.take("scale_arithmetic", kScaleArithmeticNames, word, scale.arithmetic) ||
         (word != "none" &&
          said_.take("four_over_six", kFourOverSixNames, word, scale.four_over_six));
}

// KEY:VALUE for what has no word of its own.
bool QuantWords::take_pair(const std::string& word) {
  const auto [key, value] = split_at_colon(word);
  numerics::ScaleRule& scale = spec_.scale;
  if (key == "static") {
    const std::optional<float> given = number_of<float>(value);
    if (!given || !(*given > 0.0f && std::isfinite(*given))) {
      fail(fmt::format("'{}'; accepted: static:NUMBER, finite and above 0", word));
    }
    said_.settle("scale_source", word);
    spec_.scale_source = ScaleSource::static_scale;
    spec_.static_scale = *given;
  } else if (key == "scale_rounding") {
    choose("scale_rounding", kScaleRoundingNames, word, value, scale.rounding);
  } else if (key == "epsilon_mode") {
    choose("epsilon_mode", kEpsilonModeNames, word, value, scale.epsilon_mode);
  } else if (key == "encode_limit") {
    choose("encode_limit", kEncodeLimitNames, word, value, scale.encode_limit);
  } else if (key == "scale_overflow") {
    choose("scale_overflow", kScaleOverflowNames, word, value, scale.scale_overflow);
  } else if (key == "amax_algorithm") {
    choose("amax_algorithm", kAmaxAlgorithmNames, word, value, spec_.amax_algorithm);
  } else if (key == "overflow") {
    choose("overflow", kOverflowNames, word, value, spec_.overflow);
  } else if (key == "amax_epsilon") {
    scale.amax_epsilon = number<float>("amax_epsilon", word, value, 0.0f, 1.0f);
  } else if (key == "margin") {
    scale.margin = number<int>("margin", word, value, 0, 16);
  } else if (key == "history") {
    spec_.history_length = number<int>("history", word, value, 1, 65536);
  } else if (key == "warmup_steps") {
    spec_.warmup_steps = number<int>("warmup_steps", word, value, 0, 65536);
  } else {
    return false;
  }
  return true;
}

void QuantWords::read_word(const std::string& word) {
  if (word == "nearest") {
    fail(
        "'nearest': elements are rounded to nearest where no other rounding is given; accepted for "
        "a power-of-two scale: scale_rounding:nearest");
  }
  if (take_scale_word(word) || take_pair(word)) return;
  if (said_.take("rounding", kRoundingNames, word, spec_.rounding)) return;
  if (const std::optional<Transform> transform = transform_from_name(word);
      transform && *transform) {
    said_.settle("transform", word);
    spec_.transform = *transform;
    return;
  }
  constexpr std::string_view kWords =
      "tensor, row, RxC, mx32, nv16, fp32, pow2, e8m0, bf16, e4m3, nv_two_level, mae, mse, "
      "ceil, enc_floor, ocp_floor, rceil, even, scale_rounding:nearest, enc_div, "
      "dec_div_recip, dec_div, amax_epsilon:NUMBER, epsilon_mode:add, margin:N, "
      "encode_limit:bf16, scale_overflow:nan, delayed, history:N, "
      "amax_algorithm:most_recent, amax_algorithm:window, warmup_steps:N, static:NUMBER, "
      "ties_down, ties_positive, toward_zero, stochastic, overflow:special, "
      "hadamard:BLOCK[:SIGNS[:after]], smooth:STRENGTH[:static], expand, "
      "clamp:QUANTILE[:compensated]";
  fail(fmt::format("unknown word '{}'{}; accepted: {}", word, did_you_mean(word, kWords), kWords));
}

void QuantWords::resolve() {
  if (spec_.scale_source == ScaleSource::none) {
    bool is_scaled = spec_.has_codebooks();
    for (const char* key :
         {"tile", "scale_format", "scale_rounding", "scale_arithmetic", "four_over_six",
          "amax_epsilon", "epsilon_mode", "margin", "encode_limit", "scale_overflow"}) {
      is_scaled = is_scaled || said_.has(key);
    }
    if (is_scaled) spec_.scale_source = ScaleSource::current;
  }
  if (!spec_.is_quantized() && spec_.has_scale()) {
    fail(format_name(spec_.format) + " has more than 8 bits and takes no scale");
  }
  const bool single =
      spec_.scale_source == ScaleSource::static_scale || spec_.scale_source == ScaleSource::delayed;
  if (single && !spec_.tile.is_tensor()) {
    const bool delayed = spec_.scale_source == ScaleSource::delayed;
    fail(fmt::format("a {} scale is one number for the tensor; accepted: tile tensor",
                     delayed ? "delayed" : "static"));
  }
  if (!said_.has("scale_rounding")) {
    spec_.scale.rounding = default_scale_rounding(spec_.scale.format, is_ocp_);
  }
}

void QuantWords::check_effects() const {
  SlotDraft said;
  said.spec = spec_;
  const QuantSpec meant = effective(spec_);
  for (const auto& [key, word] : said_.words()) {
    if (has_effect(std::string(key), meant, said)) continue;
    fail(fmt::format("'{}' has no effect; accepted with {}", word, needed_words(key)));
  }
}

QuantSpec QuantWords::read() {
  const std::vector<std::string> words = split_at_slashes(text_);
  read_format(words.front());
  if (!spec_.is_cast() && words.size() > 1) {
    fail(words.front() + " is passed through; accepted: no further words");
  }
  for (std::size_t i = 1; i < words.size(); ++i) read_word(words[i]);
  resolve();
  check_effects();
  return effective(spec_);
}

QuantSpec quantizer_of(const RecipeSlot& choice, const std::string& text) {
  const LinearRecipe recipe = load_recipe(choice.recipe).linear;
  QuantSpec spec = recipe.slot(choice.slot);
  const OrientationSource source = spec.orientation_source;
  // The quantizer alone: what it is applied to is the caller's matrix.
  spec.orientation_source = OrientationSource::high_precision;
  spec.weight_source = WeightSource::bf16;
  if (source == OrientationSource::high_precision) return spec;
  throw Error(
      fmt::format("quantizer '{}': this slot is {} from the codes of the other orientation; "
                  "accepted: fp8lab quantize --recipe {} --slot {}, or the last step alone, {}",
                  text, word_for(kOrientationSourceNames, source), choice.recipe,
                  slot_name(choice.slot), label(spec)));
}

}  // namespace

std::optional<RecipeSlot> recipe_slot_from_text(const std::string& text) {
  // "hadamard:16" holds a colon as well; a recipe's comes before any slash of a spec.
  const std::size_t colon = text.rfind(':');
  const bool is_words = format_by_name(text.substr(0, text.find('/'))).has_value();
  if (is_words || colon == std::string::npos) return std::nullopt;
  const std::string word = text.substr(colon + 1);
  std::string names;
  for (const Slot slot : kSlots) {
    if (word == slot_name(slot)) return RecipeSlot{text.substr(0, colon), slot};
    names += (names.empty() ? "" : ", ") + slot_name(slot);
  }
  // A path may hold slashes, but so do words after a mistyped format.
  if (text.find('/') != std::string::npos) return std::nullopt;
  throw Error(fmt::format("quantizer '{}': unknown slot '{}'{}; accepted: {}", text, word,
                          did_you_mean(word, names), names));
}

QuantSpec parse_quant_spec(const std::string& text) {
  if (const std::optional<RecipeSlot> choice = recipe_slot_from_text(text)) {
    return quantizer_of(*choice, text);
  }
  return QuantWords(text).read();
}

}  // namespace fp8lab
