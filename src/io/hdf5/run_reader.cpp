#include "src/io/hdf5/run_reader.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "emulation/base/input_error.hpp"
#include "src/io/hdf5/run_schema.hpp"

namespace fp8lab {
namespace {

/// Reads the first rows.size() rows of one dataset into `member` of each row.
template <class Stored, class Row, class Member>
void read_column(const Hdf5File& file, const DatasetSpec& spec, std::vector<Row>& rows,
                 Member Row::*member) {
  std::vector<Stored> values(rows.size());
  file.open_dataset(spec).read(values.data(), 0, static_cast<std::int64_t>(rows.size()));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].*member = values[i];
}

template <class Row>
void read_text_column(const Hdf5File& file, const DatasetSpec& spec, std::vector<Row>& rows,
                      std::string Row::*member) {
  const std::vector<std::string> values = read_all_texts(file, spec);
  FP8LAB_ASSERT(values.size() >= rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].*member = values[i];
}

/// Returns the rows of a group with `step` set. Datasets only grow, so later reads
/// find at least these rows.
template <class Row>
std::vector<Row> start_rows(const Hdf5File& file, RowGroup group) {
  std::vector<Row> rows;
  for (const std::int64_t step : read_steps(file, group, 0)) rows.emplace_back().step = step;
  return rows;
}

std::vector<StepRecord> read_metrics(const Hdf5File& file,
                                     const std::vector<MetricColumn>& objective) {
  const std::vector<DatasetSpec> specs = row_datasets(RowGroup::metrics, 0, objective);
  auto rows = start_rows<StepRecord>(file, RowGroup::metrics);
  read_column<std::int32_t>(file, specs[1], rows, &StepRecord::stage);
  read_column<std::int64_t>(file, specs[2], rows, &StepRecord::tokens);
  read_column<double>(file, specs[3], rows, &StepRecord::loss);
  read_column<double>(file, specs[4], rows, &StepRecord::grad_norm);
  read_column<double>(file, specs[5], rows, &StepRecord::learning_rate);
  read_column<double>(file, specs[6], rows, &StepRecord::seconds);
  read_column<std::uint64_t>(file, specs[7], rows, &StepRecord::weight_hash);
  std::vector<double> values(rows.size());
  for (std::size_t column = specs.size() - objective.size(); column < specs.size(); ++column) {
    file.open_dataset(specs[column]).read(values.data(), 0, static_cast<std::int64_t>(rows.size()));
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].objective.push_back(values[i]);
  }
  return rows;
}

std::vector<EvalRecord> read_eval(const Hdf5File& file) {
  const std::vector<DatasetSpec> specs = row_datasets(RowGroup::eval, 0);
  auto rows = start_rows<EvalRecord>(file, RowGroup::eval);
  read_column<std::int32_t>(file, specs[1], rows, &EvalRecord::stage);
  read_column<double>(file, specs[2], rows, &EvalRecord::loss);
  read_column<double>(file, specs[3], rows, &EvalRecord::exact_match);
  read_column<std::int64_t>(file, specs[4], rows, &EvalRecord::exact_match_count);
  return rows;
}

std::vector<ScoreRecord> read_scores(const Hdf5File& file) {
  const std::vector<DatasetSpec> specs = row_datasets(RowGroup::scores, 0);
  auto rows = start_rows<ScoreRecord>(file, RowGroup::scores);
  if (rows.empty()) return rows;
  read_column<std::int32_t>(file, specs[1], rows, &ScoreRecord::stage);
  read_text_column(file, specs[2], rows, &ScoreRecord::name);
  read_column<double>(file, specs[3], rows, &ScoreRecord::value);
  read_column<std::int64_t>(file, specs[4], rows, &ScoreRecord::count);
  return rows;
}

std::vector<DocumentRecord> read_documents(const Hdf5File& file) {
  const std::vector<DatasetSpec> specs = row_datasets(RowGroup::documents, 0);
  auto rows = start_rows<DocumentRecord>(file, RowGroup::documents);
  if (rows.empty()) return rows;
  read_column<std::int32_t>(file, specs[1], rows, &DocumentRecord::stage);
  std::vector<std::uint8_t> flags(rows.size());
  file.open_dataset(specs[2]).read(flags.data(), 0, static_cast<std::int64_t>(rows.size()));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].in_bf16 = flags[i] != 0;
  read_column<std::uint64_t>(file, specs[3], rows, &DocumentRecord::text);
  read_column<std::int64_t>(file, specs[4], rows, &DocumentRecord::count);
  read_column<std::int32_t>(file, specs[5], rows, &DocumentRecord::source);
  read_column<std::int64_t>(file, specs[6], rows, &DocumentRecord::document);
  read_column<std::int64_t>(file, specs[7], rows, &DocumentRecord::tokens);
  read_column<double>(file, specs[8], rows, &DocumentRecord::nats);
  return rows;
}

std::vector<WarningRecord> read_warnings(const Hdf5File& file) {
  const std::vector<DatasetSpec> specs = row_datasets(RowGroup::warnings, 0);
  auto rows = start_rows<WarningRecord>(file, RowGroup::warnings);
  if (rows.empty()) return rows;
  read_text_column(file, specs[1], rows, &WarningRecord::detector);
  read_column<double>(file, specs[2], rows, &WarningRecord::score);
  read_column<double>(file, specs[3], rows, &WarningRecord::value);
  read_column<std::int32_t>(file, specs[4], rows, &WarningRecord::tensor);
  read_column<std::int32_t>(file, specs[5], rows, &WarningRecord::channel);
  read_column<std::int64_t>(file, specs[6], rows, &WarningRecord::count);
  return rows;
}

std::vector<EventRecord> read_events(const Hdf5File& file) {
  const std::vector<DatasetSpec> specs = row_datasets(RowGroup::events, 0);
  auto rows = start_rows<EventRecord>(file, RowGroup::events);
  read_text_column(file, specs[1], rows, &EventRecord::kind);
  read_text_column(file, specs[2], rows, &EventRecord::message);
  return rows;
}

/// Reads the completion row before anything else, so that a run seen as
/// complete is read completely.
bool read_completion(const Hdf5File& file, std::uint64_t& hash) {
  const std::vector<std::uint64_t> rows = read_all<std::uint64_t>(file, complete_dataset());
  if (!rows.empty()) hash = rows.front();
  return !rows.empty();
}

}  // namespace

RunData read_run(const std::filesystem::path& path) {
  const Hdf5File file = Hdf5File::open(path);
  RunData run;
  run.meta = read_meta(file);
  run.complete = read_completion(file, run.final_weight_hash);
  run.tensors = read_tensor_names(file);
  run.objective = read_metric_columns(file);
  run.metrics = read_metrics(file, run.objective);
  run.eval = read_eval(file);
  run.scores = read_scores(file);
  run.documents = read_documents(file);
  run.warnings = read_warnings(file);
  run.events = read_events(file);
  run.tensor_steps =
      read_steps(file, RowGroup::tensors, static_cast<std::int64_t>(run.tensors.size()));
  return run;
}

std::vector<double> read_statistic(const std::filesystem::path& path, const std::string& name) {
  const auto& fields = statistic_fields();
  const auto field = std::find_if(fields.begin(), fields.end(),
                                  [&](const StatisticField& f) { return f.name == name; });
  if (field == fields.end()) {
    std::string known;
    for (const StatisticField& f : fields)
      known += (known.empty() ? "" : ", ") + std::string(f.name);
    throw InputError({.noun = "unknown statistic", .key = name, .accepted = known});
  }
  const Hdf5File file = Hdf5File::open(path);
  read_meta(file);
  const auto tensors = static_cast<std::int64_t>(read_tensor_names(file).size());
  const auto rows = static_cast<std::int64_t>(read_steps(file, RowGroup::tensors, tensors).size());
  const DatasetSpec spec = statistic_dataset(*field, tensors);
  const Hdf5Dataset dataset = file.open_dataset(spec);
  const auto count = static_cast<std::size_t>(rows * spec.row_elements());
  std::vector<double> values(count);
  if (field->is_index) {
    std::vector<std::int32_t> indices(count);
    dataset.read(indices.data(), 0, rows);
    std::copy(indices.begin(), indices.end(), values.begin());
  } else {
    dataset.read(values.data(), 0, rows);
  }
  return values;
}

std::vector<std::uint8_t> read_without_history(const std::filesystem::path& path) {
  const Hdf5File file = Hdf5File::open(path);
  read_meta(file);
  const auto tensors = static_cast<std::int64_t>(read_tensor_names(file).size());
  const DatasetSpec spec = row_datasets(RowGroup::tensors, tensors).back();
  if (!file.has(spec.path)) return {};
  const auto rows = static_cast<std::int64_t>(read_steps(file, RowGroup::tensors, tensors).size());
  std::vector<std::uint8_t> flags(static_cast<std::size_t>(rows * tensors));
  file.open_dataset(spec).read(flags.data(), 0, rows);
  return flags;
}

std::vector<Sample> read_samples(const std::filesystem::path& path) {
  const Hdf5File file = Hdf5File::open(path);
  read_meta(file);
  const std::vector<DatasetSpec> specs = row_datasets(RowGroup::samples, 0);
  auto samples = start_rows<Sample>(file, RowGroup::samples);
  read_text_column(file, specs[1], samples, &Sample::name);
  const auto offsets = read_all<std::int64_t>(file, specs[2]);
  const auto lengths = read_all<std::int64_t>(file, specs[3]);
  const Hdf5Dataset values = file.open_dataset(sample_values_dataset());
  const auto whole = static_cast<std::size_t>(count_whole_samples(offsets, lengths, values.rows()));
  samples.resize(std::min(samples.size(), whole));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    samples[i].values.resize(static_cast<std::size_t>(lengths[i]));
    values.read(samples[i].values.data(), offsets[i], lengths[i]);
  }
  return samples;
}

RunStatus read_run_status(const std::filesystem::path& path) {
  const Hdf5File file = Hdf5File::open(path);
  RunStatus status;
  status.meta = read_meta(file);
  status.complete = read_completion(file, status.final_weight_hash);
  const std::vector<std::int64_t> steps = read_steps(file, RowGroup::metrics, 0);
  if (!steps.empty()) status.last_step = steps.back();
  const std::vector<std::int64_t> evaluated = read_steps(file, RowGroup::eval, 0);
  if (!evaluated.empty()) status.last_eval_step = evaluated.back();
  auto scores = start_rows<ScoreRecord>(file, RowGroup::scores);
  if (!scores.empty()) {  // older files have no such table
    read_text_column(file, row_datasets(RowGroup::scores, 0)[2], scores, &ScoreRecord::name);
  }
  for (const ScoreRecord& score : scores) {
    if (score.name == kLossInBf16) status.last_bf16_step = score.step;
  }
  status.checkpoints = start_rows<CheckpointRecord>(file, RowGroup::checkpoints);
  if (status.checkpoints.empty()) return status;
  read_column<std::uint64_t>(file, row_datasets(RowGroup::checkpoints, 0)[1], status.checkpoints,
                             &CheckpointRecord::hash);
  const DatasetSpec seconds = row_datasets(RowGroup::checkpoints, 0)[2];
  if (file.has(seconds.path)) {
    read_column<double>(file, seconds, status.checkpoints, &CheckpointRecord::seconds);
  }
  return status;
}

double read_elapsed(const std::filesystem::path& path, std::int64_t step) {
  const Hdf5File file = Hdf5File::open(path);
  double seconds = 0;
  for (const StepRecord& row : read_metrics(file, {})) {
    if (row.step <= step) seconds = row.seconds;
  }
  for (const CheckpointRecord& row : read_run_status(path).checkpoints) {
    if (row.step == step && row.seconds > 0) seconds = row.seconds;
  }
  return seconds;
}

}  // namespace fp8lab
