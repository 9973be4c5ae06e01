#include "src/error_sources/run_sources.hpp"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/architecture/parts.hpp"
#include "src/config/reading/nearest_name.hpp"

namespace fp8lab {
namespace {

constexpr std::string_view kAll = "all";
constexpr std::string_view kAllBut = "all but ";

/// Returns the source of that name. Throws Error that lists the known names.
const ErrorSource& source_named(const std::vector<ErrorSourceGroup>& groups,
                                const std::string& name, bool kept_alone) {
  std::vector<std::string> names;
  for (const ErrorSourceGroup& group : groups) {
    for (const ErrorSource& source : group.sources) {
      if (source.name == name && group.is_of_scales && kept_alone) {
        throw InputError(
            {.where = "exact",
             .reason = fmt::format("'all but {}': by itself a scale changes no value", name),
             .accepted = fmt::format("exact = [\"{}\"]", name)});
      }
      if (source.name == name) return source;
      names.push_back(source.name);
    }
  }
  throw InputError({.where = "exact",
                    .noun = "the model has no source of error",
                    .key = name,
                    .nearest = did_you_mean(name, names),
                    .accepted = fmt::format("all, all but one, {}", fmt::join(names, ", "))});
}

}  // namespace

Switches switches_of(const RunConfig& config) {
  const Declaration declaration = declaration_of(config.model);
  const std::vector<LinearDeclaration>& linears = declaration.linears();
  const std::vector<ErrorSourceGroup> groups = error_sources(linears);
  Switches switches = all_switches(linears.size(), true);
  for (const std::string& name : config.exact) {
    if (name == kAll) {
      switches = all_switches(linears.size(), false);
    } else if (name.starts_with(kAllBut)) {
      switches = all_switches(linears.size(), false);
      source_named(groups, name.substr(kAllBut.size()), true).set(switches, true);
    } else {
      source_named(groups, name, false).set(switches, false);
    }
  }
  return switches;
}

void check_exact_sources(const RunConfig& config, const Backend& backend) {
  if (!has_exact_sources(config)) return;
  switches_of(config);
  if (backend.name() == "cpu") return;
  throw InputError(
      {.where = "exact",
       .reason = fmt::format("backend '{}' cannot replace a source of error by exact arithmetic",
                             backend.name()),
       .accepted = "backend cpu"});
}

Recipe without_exact_sources(const RunConfig& config, const Recipe& recipe) {
  if (!has_exact_sources(config)) return recipe;
  int replaced = 0;
  return with_switches(recipe, config.model, switches_of(config), replaced);
}

OptimizerConfig storage_of(const RunConfig& config) {
  const bool is_exact = has_exact_sources(config) && !switches_of(config).storage;
  return is_exact ? exact_storage(config.optimizer) : config.optimizer;
}

std::unique_ptr<Backend> backend_with_exact_sources(const RunConfig& config, Backend& backend) {
  if (!has_exact_sources(config)) return nullptr;
  return std::make_unique<PartialQuantization>(backend, switches_of(config));
}

}  // namespace fp8lab
