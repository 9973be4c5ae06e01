// The tables of run files: every key, written once (src/config/README.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/config/config.hpp"
#include "src/config/run_fields.hpp"
#include "src/config/table.hpp"

namespace fp8lab {

/// A run file.
const Table<RunConfig>& run_table();
/// Its tables.
const Table<ModelConfig>& model_table();
const Table<OptimizerConfig>& optimizer_table();
const Table<StageConfig>& stage_table();
const Table<DataConfig>& data_table();
const Table<EvalConfig>& eval_table();
const Table<StressConfig>& stress_table();

inline constexpr std::int64_t kLargeCount = std::int64_t{1} << 40;

inline bool is_not_empty(std::string_view name) { return !name.empty(); }

/// Without files.
inline bool is_generated(const SourceConfig& source) { return source.kind == DataKind::arithmetic; }

/// Throws Error naming the key `recipe` of `reader` when there is no such recipe, neither recorded
/// with the run nor elsewhere; empty names none.
void check_recipe_name(const TomlReader& reader, const std::string& recipe);

/// Throws Error naming the key of a [[stages.stress]] of `reader` that does not fit the stage or
/// the model.
void check_stresses(const TomlReader& reader, const StageConfig& stage, const ModelConfig& model);

/// The texts of a list, or with `one` also of a text alone; nothing for other values.
std::optional<std::vector<std::string>> texts_of(const FieldValue& value, bool one);

/// The table `word` within that of `reader`, if it is written.
std::optional<TomlReader> inner_reader(const TomlReader& reader, std::string_view word);

}  // namespace fp8lab
