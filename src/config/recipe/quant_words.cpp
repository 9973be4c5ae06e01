// Parses "FORMAT[/WORD...]" and "RECIPE:SLOT", the short notation of a quantizer.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "emulation/spec/spec_fields.hpp"
#include "emulation/spec/state_rules.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/nearest_name.hpp"
#include "src/config/reading/words.hpp"
#include "src/config/recipe/recipe_draft.hpp"
#include "src/config/recipe/spec_words.hpp"

namespace fp8lab {
namespace {

using Row = Field<QuantSpec>;

/// Returns the value that a word gives to a field: a number if the word is one.
FieldValue value_of_word(const Row& field, const std::string& word) {
  if (field.is_text) return word;
  if (const std::optional<std::int64_t> integer = number_of<std::int64_t>(word)) return *integer;
  if (const std::optional<double> number = number_of<double>(word)) return *number;
  return word;
}

/// Returns true for words that, without a key, refer to the elements or to nothing.
bool is_ambiguous(const std::string& word) { return word == "nearest" || word == "none"; }

/// Returns true for fields that can be given as a value alone or as KEY:VALUE (the latter if the
/// value alone is ambiguous).
bool has_words(const Row& field) {
  for (const char* other : {"format", "scale_source", "static_scale"}) {
    if (field.word == other) return false;
  }
  return describes_one_operand(field.word);
}
bool has_pairs(const Row& field) {
  return has_words(field) && (!field.stands_alone || field.word == "scale_rounding");
}

/// 'scale_format = "pow2" or "e8m0"' as words: "pow2 or e8m0".
std::string as_words(std::string text) {
  for (std::size_t at = text.find(" = "); at != std::string::npos; at = text.find(" = ")) {
    const std::size_t before = text.rfind(' ', at - 1);
    const std::size_t begin = before == std::string::npos ? 0 : before + 1;
    text.erase(begin, at + 3 - begin);
  }
  text.erase(std::remove(text.begin(), text.end(), '"'), text.end());
  return text;
}

/// Returns the words that a key accepts without "none", which is no word of a quantizer.
std::string without_none(std::string accepted) {
  constexpr std::string_view kNone = "none, ";
  if (accepted.starts_with(kNone)) accepted.erase(0, kNone.size());
  return accepted;
}

/// Returns the list of all words, for messages.
const std::string& accepted_words() {
  static const std::string words = [] {
    std::string text;
    for (const Row& field : quant_fields()) {
      if (field.word == "scale_source") text += "delayed, static:NUMBER, ";
      if (!has_words(field)) continue;
      if (!field.stands_alone && field.names.empty()) text += field.word + ":NUMBER, ";
      if (field.stands_alone && field.names.empty()) text += without_none(field.accepted) + ", ";
      for (const std::string& name : field.names) {
        const bool pair = !field.stands_alone || (has_pairs(field) && is_ambiguous(name));
        const bool usual = !field.stands_alone && field.get(QuantSpec{}) == FieldValue(name);
        if (pair && !usual) text += field.word + ":" + name + ", ";
        if (!pair && !is_ambiguous(name)) text += name + ", ";
      }
    }
    return text.substr(0, text.size() - 2);
  }();
  return words;
}

enum class Of : std::uint8_t { operand, state };

/// The state of a quantizer while its words are read. Every word sets one key
/// of a recipe's slot table.
class QuantWords {
 public:
  QuantWords(const std::string& text, Of of)
      : text_(text), of_(of), said_(fmt::format("quantizer '{}'", text)) {}
  QuantSpec read();

 private:
  [[noreturn]] void fail(ErrorFields fields) const {
    fields.where = fmt::format("quantizer '{}'", text_);
    throw InputError(std::move(fields));
  }
  void read_format(const std::string& word);
  void read_word(const std::string& word);
  bool take_source(const std::string& word);
  bool take_pair(const std::string& word);
  bool take_alone(const std::string& word);
  bool asks_for_scale() const;
  void resolve();
  void check_effects() const;

  const std::string& text_;
  Of of_;
  QuantSpec spec_;
  bool is_ocp_ = false;
  SettledOnce said_;  ///< words read so far, by key
};

void QuantWords::read_format(const std::string& word) {
  const Row& field = *find_field(quant_fields(), "format");
  if (field.set(spec_, word)) return;
  if (is_builtin_recipe(word)) {
    fail({.key = word,
          .reason = "is a recipe, of six operands",
          .accepted = fmt::format("one of them, such as {}:fprop.x or {}:wgrad.dy", word, word)});
  }
  fail({.noun = "unknown format",
        .key = word,
        .nearest = did_you_mean(word, field.names),
        .accepted = field.accepted,
        .remedy = "or RECIPE:SLOT such as infir2:fprop.x"});
}

/// Reads "delayed" or "static:NUMBER": the source of the scale, and its value.
bool QuantWords::take_source(const std::string& word) {
  constexpr std::string_view kStatic = "static:";
  if (word == "delayed") {
    spec_.scale_source = ScaleSource::delayed;
  } else if (word.starts_with(kStatic)) {
    const Row& field = *find_field(quant_fields(), "static_scale");
    if (!field.set(spec_, value_of_word(field, word.substr(kStatic.size())))) {
      fail({.found = quoted_word(word),
            .accepted = fmt::format("static:NUMBER, {}", field.accepted)});
    }
    spec_.scale_source = ScaleSource::static_scale;
  } else {
    return false;
  }
  said_.settle("scale_source", word);
  return true;
}

/// Reads KEY:VALUE.
bool QuantWords::take_pair(const std::string& word) {
  const std::size_t colon = word.find(':');
  if (colon == std::string::npos) return false;
  const Row* const field = find_field(quant_fields(), word.substr(0, colon));
  if (field == nullptr || !has_pairs(*field)) return false;
  if (!field->set(spec_, value_of_word(*field, word.substr(colon + 1)))) {
    std::string accepted;
    for (const std::string& name : field->names) {
      accepted += fmt::format("{}{}:{}", accepted.empty() ? "" : ", ", field->word, name);
    }
    if (field->names.empty()) {
      fail({.found = quoted_word(word),
            .accepted = fmt::format("{}:NUMBER, {}", field->word, field->accepted)});
    }
    fail({.noun = "unknown word",
          .key = word,
          .nearest = did_you_mean(word, accepted),
          .accepted = accepted});
  }
  said_.settle(field->word, word);
  return true;
}

/// Reads a value without its key.
bool QuantWords::take_alone(const std::string& word) {
  if (is_ambiguous(word)) return false;
  for (const Row& field : quant_fields()) {
    if (!has_words(field) || !field.stands_alone || !field.set(spec_, word)) continue;
    said_.settle(field.word, word);
    if (word == "mx32" || word == "nv16") said_.settle("scale_format", word);
    is_ocp_ = is_ocp_ || word == "mx32";
    return true;
  }
  return false;
}

void QuantWords::read_word(const std::string& word) {
  if (word == "nearest") {
    fail({.key = word,
          .reason = ": elements are rounded to nearest where no other rounding is given",
          .accepted = "for a power-of-two scale, scale_rounding:nearest"});
  }
  if (word == "none") {
    fail({.key = word,
          .reason = ": what a quantizer does without has no word",
          .accepted = "the other words alone; a format alone is a cast without scales"});
  }
  if (take_source(word) || take_pair(word) || take_alone(word)) return;
  fail({.noun = "unknown word",
        .key = word,
        .nearest = did_you_mean(word, accepted_words()),
        .accepted = accepted_words()});
}

/// Returns true if some word requires a scale.
bool QuantWords::asks_for_scale() const {
  if (spec_.has_codebooks()) return true;
  for (const auto& [key, word] : said_.words()) {
    for (const Field<QuantSpec>& field : quant_fields()) {
      if (field.word == "scale_source") break;
      if (field.word == key) return true;
    }
  }
  return false;
}

void QuantWords::resolve() {
  if (spec_.scale_source == ScaleSource::none && asks_for_scale()) {
    spec_.scale_source = ScaleSource::current;
  }
  if (of_ == Of::operand && !spec_.is_quantized() && spec_.has_scale()) {
    fail({.found = format_name(spec_.format),
          .reason = "has more than 8 bits and takes no scale",
          .accepted = quantized_format_names()});
  }
  const bool single =
      spec_.scale_source == ScaleSource::static_scale || spec_.scale_source == ScaleSource::delayed;
  if (single && !spec_.tile.is_tensor()) {
    const bool delayed = spec_.scale_source == ScaleSource::delayed;
    fail({.reason = fmt::format("a {} scale is one number for the tensor",
                                delayed ? "delayed" : "static"),
          .accepted = "tile tensor"});
  }
  if (!said_.has("scale_rounding")) {
    spec_.scale.rounding = default_scale_rounding(spec_.scale.format, is_ocp_);
  }
}

void QuantWords::check_effects() const {
  const QuantSpec said = as_operand(spec_), meant = effective(said);
  for (const auto& [key, word] : said_.words()) {
    const Row& field = *find_field(quant_fields(), key);
    if (may_say(field, meant, said)) continue;
    fail({.key = word,
          .reason = "has no effect",
          .accepted = fmt::format("with {}", as_words(field.needs))});
  }
}

QuantSpec QuantWords::read() {
  const std::vector<std::string> words = split_at_slashes(text_);
  read_format(words.front());
  if (!spec_.is_cast() && words.size() > 1) {
    fail({.found = words.front(), .reason = "is passed through", .accepted = "no further words"});
  }
  for (std::size_t i = 1; i < words.size(); ++i) read_word(words[i]);
  resolve();
  check_effects();
  QuantSpec meant = effective(as_operand(spec_));
  meant.format = spec_.format;
  return meant;
}

QuantSpec quantizer_of(const RecipeSlot& choice, const std::string& text) {
  const LinearRecipe recipe = load_recipe(choice.recipe).linear;
  QuantSpec spec = recipe.slot(choice.slot);
  const OrientationSource source = spec.orientation_source;
  // The result describes the quantizer alone; the caller provides the matrix.
  spec.orientation_source = OrientationSource::high_precision;
  spec.weight_source = WeightSource::bf16;
  spec.estimator = {};
  if (source == OrientationSource::high_precision) return spec;
  throw InputError(
      {.where = fmt::format("quantizer '{}'", text),
       .reason = fmt::format("this slot is {} from the codes of the other orientation",
                             word_for(kOrientationSourceNames, source)),
       .accepted = fmt::format("fp8lab quantize --recipe {} --slot {}, or the last step alone, {}",
                               choice.recipe, slot_name(choice.slot), label(spec))});
}

}  // namespace

std::optional<RecipeSlot> recipe_slot_from_text(const std::string& text) {
  // "hadamard:16" contains a colon as well; the colon of a recipe precedes every slash of a spec.
  const std::size_t colon = text.rfind(':');
  const bool is_words = format_by_name(text.substr(0, text.find('/'))).has_value();
  if (is_words || colon == std::string::npos) return std::nullopt;
  const std::string word = text.substr(colon + 1);
  std::string names;
  for (const Slot slot : kSlots) {
    if (word == slot_name(slot)) return RecipeSlot{text.substr(0, colon), slot};
    names += (names.empty() ? "" : ", ") + slot_name(slot);
  }
  // A path may contain slashes, but so may the words after a mistyped format.
  if (text.find('/') != std::string::npos) return std::nullopt;
  throw InputError({.where = fmt::format("quantizer '{}'", text),
                    .noun = "unknown slot",
                    .key = word,
                    .nearest = did_you_mean(word, names),
                    .accepted = names});
}

QuantSpec parse_quant_spec(const std::string& text) {
  if (const std::optional<RecipeSlot> choice = recipe_slot_from_text(text)) {
    return quantizer_of(*choice, text);
  }
  return QuantWords(text, Of::operand).read();
}

QuantSpec parse_state_spec(const std::string& text) { return QuantWords(text, Of::state).read(); }

}  // namespace fp8lab
