#include "src/config/reading/nearest_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <utility>

namespace fp8lab {
namespace {

constexpr std::size_t kLongestWord = 64;  ///< longer words are not taken for mistyped names
constexpr std::size_t kShortestPrefix = 3;

std::string folded(std::string_view word) {
  std::string result(word);
  for (char& c : result) {
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

/// Optimal string alignment distance (Damerau and Levenshtein; no substring is edited twice).
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

/// Names that transformers, TransformerEngine and Megatron-LM have for keys and options of ours.
constexpr std::pair<std::string_view, std::string_view> kElsewhere[] = {
    {"lr", "learning_rate"},
    {"max_lr", "peak"},
    {"min_lr", "final"},
    {"batch_size", "batch_sequences"},
    {"batch_size", "sequences_together"},
    {"batch_size", "together"},
    {"global_batch_size", "batch_sequences"},
    {"train_batch_size", "batch_sequences"},
    {"micro_batch_size", "micro_batch_sequences"},
    {"per_device_train_batch_size", "micro_batch_sequences"},
    {"gradient_accumulation_steps", "micro_batch_sequences"},
    {"seq_len", "sequence_length"},
    {"seq_length", "sequence_length"},
    {"max_seq_length", "sequence_length"},
    {"max_length", "sequence_length"},
    {"block_size", "sequence_length"},
    {"max_steps", "steps"},
    {"train_iters", "steps"},
    {"epochs", "steps"},
    {"num_epochs", "steps"},
    {"num_train_epochs", "steps"},
    {"max_grad_norm", "clip_norm"},
    {"max_tokens", "max_new_tokens"},
    {"output", "out"},
    {"output_dir", "out"},
    {"save_dir", "out"},
    {"dtype", "recipe"},
    {"torch_dtype", "recipe"},
    {"precision", "recipe"},
    {"device", "backend"},
    {"model", "init_from"},
    {"model", "source"},
    {"model", "run"},
    {"model_name_or_path", "init_from"},
    {"model_name_or_path", "model"},
    {"model_name_or_path", "source"},
    {"dataset", "data"},
    {"optim", "optimizer"},
    {"save_steps", "checkpoint_every_steps"},
    {"logging_steps", "every_steps"},
};

/// True for two words of at most three letters of which one is another letter: gpu and cpu are two
/// words, not one mistyped.
bool are_other_short_words(const std::string& a, const std::string& b) {
  constexpr std::size_t kShortWord = 3;
  return a.size() <= kShortWord && a.size() == b.size() &&
         !std::is_permutation(a.begin(), a.end(), b.begin());
}

}  // namespace

std::string name_elsewhere(std::string_view word, const std::vector<std::string>& names) {
  const std::string wanted = folded(word);
  for (const auto& [theirs, ours] : kElsewhere) {
    if (theirs != wanted) continue;
    const auto found = std::find_if(names.begin(), names.end(),
                                    [key = ours](const auto& name) { return folded(name) == key; });
    if (found != names.end()) return *found;
  }
  return {};
}

std::vector<std::string> nearest_names(std::string_view word,
                                       const std::vector<std::string>& names) {
  if (word.empty() || word.size() > kLongestWord) return {};
  const std::string wanted = folded(word);
  if (std::string ours = name_elsewhere(wanted, names); !ours.empty()) return {std::move(ours)};
  std::vector<std::string> nearest;
  std::string longer;
  std::size_t least = 0;
  for (const std::string& name : names) {
    if (name.size() > 2 * kLongestWord) continue;
    const std::string candidate = folded(name);
    const std::size_t distance = edit_distance(wanted, candidate);
    const std::size_t allowed = (std::max(wanted.size(), candidate.size()) + 1) / 3;
    const bool is_near = distance <= allowed && !are_other_short_words(wanted, candidate);
    if (is_near && (nearest.empty() || distance <= least)) {
      if (distance < least) nearest.clear();
      const bool is_known = std::find(nearest.begin(), nearest.end(), name) != nearest.end();
      if (!is_known) nearest.push_back(name);
      least = distance;
    }
    const bool begins = wanted.size() >= kShortestPrefix && candidate.starts_with(wanted);
    if (begins && (longer.empty() || name.size() < longer.size())) longer = name;
  }
  // Omitting an ending of up to two letters counts as one mistake, and so does all that follows a
  // beginning of five letters: batch is batch_sequences, not match.
  constexpr std::size_t kShortEnd = 2, kLongBeginning = 5;
  const bool lacks_its_end =
      longer.size() <= word.size() + kShortEnd || word.size() >= kLongBeginning;
  if (!longer.empty() && (nearest.empty() || (lacks_its_end && least > 0))) return {longer};
  return nearest;
}

std::string nearest_name(std::string_view word, const std::vector<std::string>& names) {
  const std::vector<std::string> nearest = nearest_names(word, names);
  return nearest.empty() ? std::string() : nearest.front();
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& names) {
  constexpr std::size_t kMostNames = 5;
  std::vector<std::string> nearest = nearest_names(word, names);
  if (nearest.empty()) return {};
  if (nearest.size() > kMostNames) nearest.resize(kMostNames);
  return fmt::format(" (did you mean '{}'?)", fmt::join(nearest, "' or '"));
}

std::string did_you_mean(std::string_view word, std::string_view accepted) {
  std::vector<std::string> names;
  while (!accepted.empty()) {
    const std::size_t comma = std::min(accepted.find(", "), accepted.size());
    const std::string_view name = accepted.substr(0, comma);
    if (name.find(' ') == std::string_view::npos) names.emplace_back(name);
    accepted.remove_prefix(std::min(comma + 2, accepted.size()));
  }
  return did_you_mean(word, names);
}

}  // namespace fp8lab
