// The tables of run files; every key is defined once (src/config/README.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/config/config.hpp"
#include "src/config/tables/run_fields.hpp"
#include "src/config/tables/table.hpp"

namespace fp8lab {

/// The table of a whole run file.
const Table<RunConfig>& run_table();
/// The tables inside it.
const Table<ModelConfig>& model_table();
const Table<OptimizerConfig>& optimizer_table();
const Table<StageConfig>& stage_table();
const Table<DataConfig>& data_table();
const Table<EvalConfig>& eval_table();
const Table<StressConfig>& stress_table();

inline constexpr std::int64_t kLargeCount = std::int64_t{1} << 40;

/// Returns the sequences of one pass: those of a micro-batch, or of a shard if that is smaller.
std::int64_t pass_sequences(const RunConfig& config, const StageConfig& stage);

inline bool is_not_empty(std::string_view name) { return !name.empty(); }

/// Returns true for sources that need no files.
inline bool is_generated(const SourceConfig& source) { return source.kind == DataKind::arithmetic; }

/// Throws Error that names the key `recipe` of `reader` if no such recipe exists, neither recorded
/// with the run nor elsewhere. An empty name is accepted.
void check_recipe_name(const TomlReader& reader, const std::string& recipe);

/// Throws Error that names the key of a [[stages.stress]] of `reader` that does not
/// fit the stage or the model.
void check_stresses(const TomlReader& reader, const StageConfig& stage, const ModelConfig& model);

/// Returns the texts of a list; with `one`, also accepts a single text. Returns
/// nothing for other values.
std::optional<std::vector<std::string>> texts_of(const FieldValue& value, bool one);

/// Returns the table `word` within that of `reader`, if present.
std::optional<TomlReader> inner_reader(const TomlReader& reader, std::string_view word);

}  // namespace fp8lab
