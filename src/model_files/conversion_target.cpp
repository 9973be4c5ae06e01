#include "src/model_files/conversion_target.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"

namespace fp8lab {
namespace {

constexpr const char* kBlock = "RxC";

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  std::size_t first = 0;
  for (std::size_t at = text.find(':'); at != std::string::npos; at = text.find(':', first)) {
    words.push_back(text.substr(first, at - first));
    first = at + 1;
  }
  words.push_back(text.substr(first));
  return words;
}

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

Dialect dialect_of(const std::string& name) {
  for (const Dialect dialect :
       {Dialect::fine_grained, Dialect::compressed_tensors, Dialect::modelopt, Dialect::torchao}) {
    if (dialect_name(dialect) == name) return dialect;
  }
  FP8LAB_ASSERT(false);
  return Dialect::fine_grained;
}

std::string accepted_text() {
  std::string text = "bf16, f16, f32";
  for (const TargetWords& words : target_words()) {
    text += fmt::format(", {}[:{}]", words.dialect, fmt::join(words.schemes, "|"));
    if (!words.changes.empty()) text += fmt::format("[:{}]", fmt::join(words.changes, "|"));
  }
  return text;
}

/// Returns false for a word that names no scheme.
bool set_scheme(const std::string& word, WeightLayout& layout) {
  const bool of_torchao = layout.dialect == Dialect::torchao;
  if (word == "tensor") {
    layout.tile = {0, 0};
  } else if (word == "channel") {
    layout.tile = {1, 0};
  } else if (word == "mxfp8" || word == "mxfp4") {
    layout.tile = {1, 32};
    layout.scale_type = of_torchao ? StoredType::f8_e8m0 : StoredType::u8;
    if (word == "mxfp4") layout.format = numerics::kE2M1;
  } else if (word == "nvfp4") {
    layout.tile = {1, 16};
    layout.scale_type = StoredType::f8_e4m3;
    layout.format = numerics::kE2M1;
  } else {
    const std::optional<TileShape> tile = tile_from_name(word);
    if (!tile || tile->rows < 2 || tile->cols < 2) return false;
    layout.tile = {tile->rows, tile->cols};
  }
  return true;
}

bool is_accepted(const TargetWords& words, const std::string& scheme) {
  if (contains(words.schemes, scheme)) return true;
  const std::optional<TileShape> tile = tile_from_name(scheme);
  return tile && tile->rows > 1 && tile->cols > 1 && contains(words.schemes, kBlock);
}

}  // namespace

const std::vector<TargetWords>& target_words() {
  static const std::vector<TargetWords> kWords = {
      {"fp8", {"128x128", kBlock, "tensor"}, {"ue8m0", "e8m0", "fnuz"}},
      {"compressed-tensors", {"channel", "tensor", kBlock, "mxfp8", "mxfp4", "nvfp4"}, {}},
      {"modelopt", {"tensor", "channel", "128x128", "mxfp8", "nvfp4"}, {}},
      {"torchao", {"channel", "tensor", "mxfp8", "nvfp4"}, {}}};
  return kWords;
}

ConversionTarget parse_target(const std::string& text) {
  if (text == "bf16") return {StoredType::bf16, std::nullopt};
  if (text == "f16") return {StoredType::f16, std::nullopt};
  if (text == "f32") return {StoredType::f32, std::nullopt};
  const std::vector<std::string> words = split(text);
  const auto& known = target_words();
  const auto found = std::find_if(known.begin(), known.end(),
                                  [&](const TargetWords& one) { return one.dialect == words[0]; });
  const auto refuse = [&](const std::string& word) {
    std::vector<std::string> spelled;  // "nvfp4" alone is a scheme of several tools
    for (const TargetWords& one : known) {
      if (is_accepted(one, word)) spelled.push_back(fmt::format("'{}:{}'", one.dialect, word));
    }
    throw InputError(
        {.key = "--to",
         .found = text,
         .nearest =
             spelled.empty() ? "" : fmt::format(" (did you mean {}?)", fmt::join(spelled, " or ")),
         .reason = fmt::format(": unknown word '{}'", word),
         .accepted = accepted_text()});
  };
  if (found == known.end()) refuse(words[0]);
  WeightLayout layout;
  layout.dialect = dialect_of(found->dialect);
  std::size_t next = 1;
  std::string scheme = found->schemes.front();
  if (words.size() > 1 && !contains(found->changes, words[1])) scheme = words[next++];
  if (!is_accepted(*found, scheme) || !set_scheme(scheme, layout)) refuse(scheme);
  bool has_powers = false;
  for (; next < words.size(); ++next) {
    if (!contains(found->changes, words[next])) refuse(words[next]);
    if (words[next] == "fnuz" && layout.format != numerics::kE4M3Fnuz) {
      layout.format = numerics::kE4M3Fnuz;
    } else if (words[next] != "fnuz" && !has_powers && layout.tile.is_block()) {
      has_powers = true;
      layout.scales_are_powers = words[next] == "ue8m0";
      if (words[next] == "e8m0") layout.scale_type = StoredType::f8_e8m0;
    } else {
      throw Error(
          fmt::format("--to {}: '{}' is given twice, beside another word for scales, or "
                      "without blocks",
                      text, words[next]));
    }
  }
  return {StoredType::bf16, layout};
}

}  // namespace fp8lab
