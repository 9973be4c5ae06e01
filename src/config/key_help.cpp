#include "src/config/key_help.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <utility>

#include "emulation/spec/spec_fields.hpp"
#include "src/architecture/layer_names.hpp"
#include "src/config/reading/examples.hpp"
#include "src/config/recipe/attention_table.hpp"
#include "src/config/recipe/recipe_fields.hpp"
#include "src/config/recipe/saved_activations.hpp"
#include "src/config/tables/run_tables.hpp"

namespace fp8lab {
namespace {

constexpr std::size_t kLineWidth = 100;

/// Wraps `text` into lines indented by `indent` blanks.
std::string wrapped(const std::string& text, std::size_t indent) {
  std::string result, line;
  const auto end_line = [&] {
    result += std::string(indent, ' ') + line + "\n";
    line.clear();
  };
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && indent + line.size() + 1 + word.size() > kLineWidth) end_line();
    line += (line.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  end_line();
  return result;
}

std::string facts_of(const KeyHelp& key) {
  std::string facts = key.accepted;
  if (!key.usual.empty()) facts += "; " + key.usual;
  if (!key.needs.empty()) facts += "; only with " + key.needs;
  return facts;
}

std::string page_of(const std::vector<KeyHelp>& keys) {
  std::string text;
  for (const KeyHelp& key : keys) {
    if (key.is_table) {
      text += fmt::format("\n{}\n{}", key.path, wrapped(key.help, 4));
      continue;
    }
    text += "  " + key.path.substr(key.path.rfind('.') + 1) + "\n" + wrapped(key.help, 4);
    text += wrapped(facts_of(key), 8);
  }
  return text;
}

/// Returns "parallel.shards" of "[parallel]" or "parallel.shards".
std::string plain_path(const KeyHelp& key) {
  std::string path = key.path;
  std::erase_if(path, [](char c) { return c == '[' || c == ']'; });
  return path;
}

/// Returns true if `path` ends in `word`, leaving out parts that stand for names, such as VALUE.
bool ends_in(const std::string& path, const std::string& word) {
  const auto is_placeholder = [](const std::string& part) {
    return !part.empty() && std::all_of(part.begin(), part.end(),
                                        [](unsigned char c) { return std::isupper(c) != 0; });
  };
  std::string end = path;
  while (true) {
    if (end == word || end.ends_with("." + word)) return true;
    const std::size_t dot = end.rfind('.');
    if (dot == std::string::npos || !is_placeholder(end.substr(dot + 1))) return false;
    end.erase(dot);
  }
}

std::vector<std::pair<const char*, std::vector<KeyHelp>>> all_keys() {
  return {{"run", run_keys()}, {"recipe", recipe_keys()}, {"study", study_keys()}};
}

std::string with_example(const std::string& keys, const std::string& kind,
                         const std::string& example) {
  return fmt::format("{}\nA complete file, which fp8lab init {} FILE.toml writes:\n\n{}", keys,
                     kind, example);
}

KeyHelp patterns_key(const std::string& path, const std::string& accepted,
                     const std::string& help) {
  return {path, accepted, "", "", help + " of layers; a run accepts the names of its model"};
}

}  // namespace

std::vector<KeyHelp> run_keys() {
  std::vector<KeyHelp> keys;
  list_table(run_table(), "", keys);
  return keys;
}

std::vector<KeyHelp> recipe_keys() {
  std::vector<KeyHelp> keys;
  list_fields(recipe_fields(), "", keys);
  keys.push_back({"base", "a recipe's name or file", "", "",
                  "recipe whose keys hold where this file says nothing; lists are replaced whole"});
  list_heading(
      "axis.NAME.VALUE",
      "one file for several recipes: the keys of a recipe that this value of axis NAME "
      "sets. Each combination of values is a recipe; 'name' contains {NAME} for each axis, "
      "and 'summary' may. At most 64",
      false, keys);
  keys.push_back({"axis.NAME.VALUE.summary", "a string", "the value", "",
                  "what replaces {NAME} in 'summary'"});
  list_heading("slots.OPERAND",
               "how an operand is quantized. OPERAND is default, x, w, dy or one alone, such as "
               "wgrad.x; the most specific table that has a key wins",
               false, keys);
  list_fields(quant_fields(), "slots.OPERAND", keys);
  list_heading("gemm", "how all GEMMs accumulate; [gemm.fprop], [gemm.dgrad], [gemm.wgrad]: one",
               false, keys);
  list_fields(gemm_fields(), "gemm", keys);
  list_heading("keep_high_precision", "layers that are computed in the type of the activations",
               false, keys);
  const LayerNames& names = layer_names_of_any_model();
  keys.push_back(
      patterns_key("keep_high_precision.modules", names.accepted_modules(), "a list of patterns"));
  const SavedNames& saved = saved_names_of_any_model();
  list_heading(
      "saved_activations",
      "how the forward pass saves the activations that the backward pass of a layer reads. "
      "It reads them unrounded itself. Rows of /tensors have their statistics",
      false, keys);
  keys.push_back({"saved_activations.default", accepted_saved_activation(), "", "",
                  "of every activation of a layer without a key of its own"});
  keys.push_back(
      {"saved_activations.ACTIVATION", accepted_saved_activation(), "", "",
       fmt::format("of one: {}. input and middle: the residual stream before each block; "
                   "attention.qkv: queries, keys and values as attention reads them, or "
                   "before the norms of queries and keys, attention.qk; mlp.inner: "
                   "outputs of gate and up; mlp.activated: the input of down. An input of "
                   "a linear layer whose codes the layer keeps is not saved besides",
                   fmt::join(saved.all, ", "))});
  list_heading(
      "attention",
      "how attention quantizes what it multiplies. head: one scale for a sequence and head, block: "
      "for a tile of queries or keys and a head, token: for a token and head. Products of two "
      "operands in e4m3fn or e5m2 are those of the FP8 tensor core. Without do and ds the backward "
      "pass reads the unquantized tensors. Rows of /tensors have the statistics of q, k, v and do",
      false, keys);
  const std::pair<AttentionSlot, const char*> slots[] = {
      {AttentionSlot::q, "queries; a Hadamard transform is that of k, and undone in q k^T"},
      {AttentionSlot::k, "keys; also those of a key-value cache"},
      {AttentionSlot::v, "values; also those of a key-value cache"},
      {AttentionSlot::p, "weights, at most 1"},
      {AttentionSlot::dout, "gradient of the output"},
      {AttentionSlot::ds, "gradient of the scores"}};
  for (const auto& [slot, help] : slots) {
    keys.push_back({fmt::format("attention.{}", name_of(slot)), accepted_attention_quantizer(slot),
                    "", "", help});
  }
  list_heading("override",
               "slots and gemm tables for some layers; the first that matches a layer wins", true,
               keys);
  keys.push_back(patterns_key("override.match", names.accepted_linears(), "one pattern"));
  return keys;
}

std::string key_help(const std::string& word) {
  std::string text;
  for (const auto& [kind, keys] : all_keys()) {
    for (const KeyHelp& key : keys) {
      const std::string path = plain_path(key);
      if (!ends_in(path, word)) continue;
      text += fmt::format("{}: {} of a {} file (fp8lab help {})\n{}", path,
                          key.is_table ? "a table" : "a key", kind,
                          kind == std::string("run") ? "config" : kind, wrapped(key.help, 4));
      if (!key.is_table) text += wrapped(facts_of(key), 8);
    }
  }
  return text;
}

std::vector<std::string> key_words() {
  std::vector<std::string> words;
  for (const auto& [kind, keys] : all_keys()) {
    for (const KeyHelp& key : keys) {
      const std::string path = plain_path(key);
      words.push_back(path.substr(path.rfind('.') + 1));
    }
  }
  return words;
}

std::string run_key_list() {
  return "Keys of a run file (TOML), in their tables. Paths are relative to the working directory, "
         "that of\nbase to its file. --set KEY=VALUE sets one on the command line: --set seed=2,\n"
         "--set optimizer.beta1=0.8, --set stages.NAME.steps=50, and stages.*.steps for all "
         "stages.\n\n" +
         page_of(run_keys());
}

std::string recipe_key_list() {
  return "Keys of a recipe file (TOML), in their tables.\n\n" + page_of(recipe_keys());
}

std::string study_key_list() {
  return "Keys of a study file (TOML), in their tables.\n\n" + page_of(study_keys());
}

std::string run_key_page() { return with_example(run_key_list(), "run", run_example()); }
std::string recipe_key_page() {
  return with_example(recipe_key_list(), "recipe", recipe_example());
}
std::string study_key_page() { return with_example(study_key_list(), "study", study_example()); }

}  // namespace fp8lab
