#include "src/model/weights/weight_names.hpp"

#include <string_view>
#include <utility>

#include "src/config/families/family.hpp"

namespace fp8lab {
namespace {

using Kind = WeightName::Kind;

constexpr std::string_view kNumber = "{}";

/// The number that stands for "{}" where `name` is `pattern`, as text; empty for a pattern without.
std::optional<std::string_view> number_in(std::string_view name, std::string_view pattern) {
  const std::size_t at = pattern.find(kNumber);
  if (at == std::string_view::npos) {
    return name == pattern ? std::optional<std::string_view>("") : std::nullopt;
  }
  const std::string_view before = pattern.substr(0, at);
  const std::string_view after = pattern.substr(at + kNumber.size());
  if (!name.starts_with(before) || !name.ends_with(after) ||
      name.size() <= before.size() + after.size()) {
    return std::nullopt;
  }
  const std::string_view number =
      name.substr(before.size(), name.size() - before.size() - after.size());
  const bool is_number =
      number.size() < 6 && number.find_first_not_of("0123456789") == std::string_view::npos;
  return is_number ? std::optional(number) : std::nullopt;
}

std::string with_number(std::string_view pattern, std::string_view number) {
  std::string name(pattern);
  const std::size_t at = name.find(kNumber);
  if (at != std::string::npos) name.replace(at, kNumber.size(), number);
  return name;
}

/// A name without its last part, ".weight" or ".bias", and that part.
std::pair<std::string_view, std::string_view> split_suffix(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return {name, ""};
  return {name.substr(0, dot), name.substr(dot)};
}

/// The name that PEFT gives a weight of a low-rank adapter, as
/// "layers.0.attention.q.lora_a.weight"; empty for other parameters, and where files have no module
/// for the output alone.
std::string adapter_name_in_files(std::string_view module, std::span<const WeightName> names) {
  const bool is_a = module.ends_with(".lora_a");
  if (!is_a && !module.ends_with(".lora_b")) return {};
  const std::string_view output =
      module.substr(0, module.size() - std::string_view(".lora_a").size());
  for (const WeightName& name : names) {
    std::string pattern(name.module);
    if (!name.group.empty()) pattern.replace(pattern.rfind('.') + 1, std::string::npos, name.group);
    const std::optional<std::string_view> number = number_in(output, pattern);
    if (!number) continue;
    return "base_model.model." + with_number(name.in_files, *number) +
           (is_a ? ".lora_A.weight" : ".lora_B.weight");
  }
  return {};
}

/// The name in files of the rows `group` of a parameter of ours; our own where there is none.
std::string name_in_files(const std::string& parameter, const std::string& group,
                          std::span<const WeightName> names) {
  const auto [module, suffix] = split_suffix(parameter);
  std::string of_adapter = adapter_name_in_files(module, names);
  if (!of_adapter.empty()) return of_adapter;
  for (const WeightName& name : names) {
    if (name.group != group) continue;
    const std::optional<std::string_view> number = number_in(module, name.module);
    if (number) return with_number(name.in_files, *number).append(suffix);
  }
  return group.empty() ? parameter : parameter + "." + group;
}

std::span<const WeightName> names_of(const ModelConfig& model) {
  for (const Family* family : families()) {
    if (has_names(*family, model)) return family->weights;
  }
  return {};
}

struct KnownWeight {
  const Family* family;
  const WeightName* name;
  std::string_view number;
};

/// What a tensor of a file is, by its name less ".weight" or ".bias"; with or without the prefix
/// that old files lack.
std::optional<KnownWeight> find_weight(std::string_view module) {
  for (const Family* family : families()) {
    for (const WeightName& name : family->weights) {
      std::string_view pattern = name.in_files;
      std::optional<std::string_view> number = number_in(module, pattern);
      if (!number && !family->optional_prefix.empty() &&
          pattern.starts_with(family->optional_prefix)) {
        number = number_in(module, pattern.substr(family->optional_prefix.size()));
      }
      if (number) return KnownWeight{family, &name, *number};
    }
  }
  return std::nullopt;
}

/// The linear layer whose weight (no bias) `tensor` is.
std::optional<KnownWeight> find_linear_weight(std::string_view tensor) {
  const auto [module, suffix] = split_suffix(tensor);
  if (suffix != ".weight") return std::nullopt;
  const std::optional<KnownWeight> found = find_weight(module);
  return found && found->name->kind != Kind::other ? found : std::nullopt;
}

}  // namespace

std::int64_t WeightPart::size() const {
  std::int64_t size = 1;
  for (const std::int64_t extent : shape) size *= extent;
  return size;
}

std::vector<WeightPart> weight_parts(const ParameterDeclaration& parameter,
                                     const ModelConfig& model) {
  const std::span<const WeightName> names = names_of(model);
  const auto shape = [&](std::int64_t count) {
    return parameter.is_vector ? std::vector<std::int64_t>{count}
                               : std::vector<std::int64_t>{count, parameter.cols};
  };
  const std::int64_t extent = parameter.is_vector ? parameter.cols : parameter.rows;
  const std::string whole = name_in_files(parameter.name, "", names);
  if (parameter.groups.empty() || names.empty() || whole != parameter.name) {
    return {{whole, shape(extent), 0, parameter.is_zero_centered}};
  }
  std::vector<WeightPart> parts;
  std::int64_t first = 0;
  for (const OutputGroup& group : parameter.groups) {
    parts.push_back({name_in_files(parameter.name, group.name, names), shape(group.rows), first});
    first += parts.back().size();
  }
  return parts;
}

std::optional<std::string> layer_of_weight(const std::string& tensor) {
  const std::optional<KnownWeight> found = find_linear_weight(tensor);
  if (!found) return std::nullopt;
  return with_number(found->name->module, found->number);
}

bool is_stored_transposed(const std::string& tensor) {
  const std::optional<KnownWeight> found = find_linear_weight(tensor);
  return found && found->name->kind == Kind::transposed_linear;
}

std::string present_name(const std::string& tensor) {
  const auto [module, suffix] = split_suffix(tensor);
  const std::optional<KnownWeight> found = find_weight(module);
  return found ? with_number(found->name->in_files, found->number).append(suffix) : tensor;
}

std::vector<float> transposed(const std::vector<float>& values, std::int64_t rows,
                              std::int64_t cols) {
  std::vector<float> result(values.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      result[static_cast<std::size_t>(c * rows + r)] =
          values[static_cast<std::size_t>(r * cols + c)];
    }
  }
  return result;
}

}  // namespace fp8lab
