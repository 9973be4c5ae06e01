#include "src/io/hdf5/run_schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "emulation/base/input_error.hpp"

namespace fp8lab {
namespace {

using enum ElementType;

constexpr char kExtra[] = "extra.";
constexpr char kMeta[] = "/meta";
/// Rows of an evaluation come together.
constexpr std::int64_t kDocumentsOfChunk = 1024;
constexpr char kWithoutHistory[] = "/tensors/without_history";

/// The attributes of /meta that are single strings.
constexpr std::array<std::pair<const char*, std::string RunMeta::*>, 14> kTexts = {{
    {"run_name", &RunMeta::run_name},
    {"recipe_name", &RunMeta::recipe_name},
    {"recipe_text", &RunMeta::recipe_text},
    {"recipe_resolved", &RunMeta::recipe_resolved},
    {"recipe_hash", &RunMeta::recipe_hash},
    {"config_text", &RunMeta::config_text},
    {"config_hash", &RunMeta::config_hash},
    {"data_hash", &RunMeta::data_hash},
    {"initial_weights_hash", &RunMeta::initial_weights_hash},
    {"code_version", &RunMeta::code_version},
    {"backend", &RunMeta::backend},
    {"device", &RunMeta::device},
    {"math_profile", &RunMeta::math_profile},
    {"simd_target", &RunMeta::simd_target},
}};

DatasetSpec step_dataset(const char* path) {
  return {.path = path,
          .type = i64,
          .units = "step",
          .description = "optimizer steps of the whole run, from 1",
          .fill = kNoStep};
}

DatasetSpec number(const char* path, ElementType type, const char* units, const char* description) {
  return {.path = path, .type = type, .units = units, .description = description};
}

DatasetSpec words(const char* path, std::size_t size, const char* units, const char* description) {
  return {
      .path = path, .type = text, .units = units, .description = description, .text_size = size};
}

constexpr char kMetrics[] = "/metrics/";

std::vector<DatasetSpec> metrics_datasets(const std::vector<MetricColumn>& metrics) {
  std::vector<DatasetSpec> specs = {
      step_dataset("/metrics/step"),
      number("/metrics/stage", i32, "index", "index into stage_names of /meta"),
      number("/metrics/tokens", i64, "token", "unmasked tokens trained so far"),
      number("/metrics/loss", f64, "nats/token", "training loss, mean over the unmasked tokens"),
      number("/metrics/grad_norm", f64, "1", "L2 norm of the gradient before clipping"),
      number("/metrics/learning_rate", f64, "1", "learning rate of the step"),
      number("/metrics/seconds", f64, "s", "wall time since the start, resumes added up"),
      number("/hashes/weights", u64, "hash", "sum of hash_term over all weights, 0: not taken"),
  };
  for (const MetricColumn& metric : metrics) {
    DatasetSpec& spec = specs.emplace_back();
    spec.path = kMetrics + metric.name;
    spec.type = f64;
    spec.units = metric.units;
    spec.description = metric.description;
  }
  return specs;
}

std::vector<DatasetSpec> eval_datasets() {
  return {
      step_dataset("/eval/step"),
      number("/eval/stage", i32, "index", "index into stage_names of /meta"),
      number("/eval/loss", f64, "nats/token", "held-out loss, mean over the unmasked tokens"),
      number("/eval/exact_match", f64, "fraction", "greedy answers that are right, -1: not taken"),
      number("/eval/exact_match_count", i64, "problem", "problems asked"),
  };
}

std::vector<DatasetSpec> scores_datasets() {
  return {
      step_dataset("/scores/step"),
      number("/scores/stage", i32, "index", "index into stage_names of /meta"),
      words("/scores/name", 96, "name", "what was measured"),
      number("/scores/value", f64, "1", "the score; a loss or a gap is in nats"),
      number("/scores/count", i64, "1", "tokens, problems or questions behind it"),
  };
}

std::vector<DatasetSpec> tensors_datasets(std::int64_t tensors) {
  std::vector<DatasetSpec> specs{step_dataset("/tensors/step")};
  for (const StatisticField& field : statistic_fields()) {
    specs.push_back(statistic_dataset(field, tensors));
  }
  specs.push_back(number("/tensors/hash", u64, "hash", "identity of codes and scales"));
  specs.back().row_shape = {tensors};
  specs.push_back(number(kWithoutHistory, u8, "flag", "a delayed scale that knew no amax yet"));
  specs.back().row_shape = {tensors};
  return specs;
}

std::vector<DatasetSpec> events_datasets() {
  return {step_dataset("/events/step"), words("/events/kind", 32, "name", "kind of event"),
          words("/events/message", 256, "text", "what happened")};
}

std::vector<DatasetSpec> checkpoints_datasets() {
  return {step_dataset("/checkpoints/step"),
          number("/checkpoints/hash", u64, "hash", "content of the checkpoint of that step"),
          number("/checkpoints/seconds", f64, "s", "wall time of the run up to the checkpoint")};
}

std::vector<DatasetSpec> warnings_datasets() {
  return {
      step_dataset("/warnings/step"),
      words("/warnings/detector", 32, "name", "what looks for trouble"),
      number("/warnings/score", f64, "1", "of the value by the threshold; from 1 on it warns"),
      number("/warnings/value", f64, "1", "of the detector's quantity"),
      number("/warnings/tensor", i32, "index", "logged operand, -1: of the whole step"),
      number("/warnings/channel", i32, "channel", "of the tensor, -1: none"),
      number("/warnings/count", i64, "1", "operands, channels or steps that warn"),
  };
}

std::vector<DatasetSpec> documents_datasets() {
  std::vector<DatasetSpec> specs = {
      step_dataset("/documents/step"),
      number("/documents/stage", i32, "index", "index into stage_names of /meta"),
      number("/documents/in_bf16", u8, "flag", "1: loss of the weights evaluated in bf16"),
      number("/documents/text", u64, "hash", "of the text that the evaluation read"),
      number("/documents/count", i64, "document", "documents of the evaluation, one row each"),
      number("/documents/source", i32, "index", "source of the evaluation's data"),
      number("/documents/document", i64, "index", "document of the source"),
      number("/documents/tokens", i64, "token", "scored tokens of the document"),
      number("/documents/nats", f64, "nats", "sum of their held-out losses"),
  };
  for (DatasetSpec& spec : specs) spec.chunk_rows = kDocumentsOfChunk;
  return specs;
}

std::vector<DatasetSpec> samples_datasets() {
  return {step_dataset("/samples/step"), words("/samples/name", 128, "name", "tensor"),
          number("/samples/offset", i64, "element", "first element in /samples/values"),
          number("/samples/length", i64, "element", "number of elements")};
}

/// Returns the four fixed datasets; when writing, text sizes are those of the longest entries.
std::array<DatasetSpec, 4> name_datasets(std::size_t layer, std::size_t slot, std::size_t format) {
  return {words("/tensors/layer", layer, "name", "linear layer"),
          words("/tensors/slot", slot, "name", "operand of its GEMMs"),
          words("/tensors/format", format, "name", "quantizer"),
          number("/tensors/scale_bits_per_element", f64, "bit/element",
                 "storage of the scales per element")};
}

Identity read_identity(const Hdf5File& file) {
  const std::vector<std::string> names = file.list_attribute(kMeta, "identity_names");
  const std::vector<std::string> hashes = file.list_attribute(kMeta, "identity_hashes");
  if (names.size() != hashes.size()) {
    throw InputError({.where = file.name(),
                      .reason = "damaged run file: identity_names and identity_hashes differ"});
  }
  Identity identity;
  for (std::size_t i = 0; i < names.size(); ++i) identity.emplace_back(names[i], hashes[i]);
  return identity;
}

}  // namespace

const std::vector<StatisticField>& statistic_fields() {
#define FP8LAB_FIELD(name, width) #name, offsetof(OperandStatistics, name), width
  static const std::vector<StatisticField> fields = {
      {FP8LAB_FIELD(amax, 1), "1", "largest magnitude", "cur_amax"},
      {FP8LAB_FIELD(rms, 1), "1", "root mean square"},
      {FP8LAB_FIELD(mse, 1), "1", "mean squared quantization error", "mse"},
      {FP8LAB_FIELD(sqnr_db, 1), "dB", "signal over quantization noise"},
      {FP8LAB_FIELD(cosine, 1), "1", "cosine between tensor and its dequantized form"},
      {FP8LAB_FIELD(bias, 1), "1", "sum of errors over sum of magnitudes"},
      {FP8LAB_FIELD(underflow_fraction, 1), "fraction", "elements that became zero", "underflows%",
       100.0},
      {FP8LAB_FIELD(saturation_fraction, 1), "fraction",
       "elements beyond the largest of their tile", "overflows%", 100.0},
      {FP8LAB_FIELD(nonfinite_count, 1), "element", "elements that are infinite or NaN"},
      {FP8LAB_FIELD(kurtosis, 1), "1", "mean(x^4) / mean(x^2)^2"},
      {FP8LAB_FIELD(crest_factor, 1), "1", "amax / rms"},
      {FP8LAB_FIELD(channel_outlier_ratio, 1), "1", "largest over median channel amax"},
      {FP8LAB_FIELD(scale_min, 1), "1", "smallest decode scale", "scale_inv_min"},
      {FP8LAB_FIELD(scale_max, 1), "1", "largest decode scale", "scale_inv_max"},
      {FP8LAB_FIELD(scale_log2_spread, 1), "octave", "log2(scale_max / scale_min)"},
      {FP8LAB_FIELD(zero_tile_fraction, 1), "fraction", "tiles without a nonzero element"},
      {FP8LAB_FIELD(top_channel, OperandStatistics::kTopChannels), "channel",
       "source columns by descending amax, -1: none", "", 1.0, true},
      {FP8LAB_FIELD(top_channel_amax, OperandStatistics::kTopChannels), "1", "their amaxes"},
      {FP8LAB_FIELD(exponent_histogram, 64), "fraction",
       "nonzero elements with exponent i - 40, the ends clamp"},
  };
#undef FP8LAB_FIELD
  static_assert(sizeof(OperandStatistics) ==
                    (16 + 2 * OperandStatistics::kTopChannels + 64) * sizeof(double) +
                        sizeof(OperandStatistics::hash),
                "a member of OperandStatistics is missing here");
  return fields;
}

DatasetSpec statistic_dataset(const StatisticField& field, std::int64_t tensors) {
  DatasetSpec spec = number("", field.is_index ? i32 : f64, field.units, field.description);
  spec.path = std::string("/tensors/") + field.name;
  spec.row_shape = {tensors};
  if (field.width > 1) spec.row_shape.push_back(field.width);
  spec.te_name = field.te_name;
  spec.te_factor = field.te_factor;
  spec.fill = field.is_index ? -1 : 0;
  return spec;
}

std::vector<MetricColumn> read_metric_columns(const Hdf5File& file) {
  const std::vector<DatasetSpec> usual = metrics_datasets({});
  std::vector<MetricColumn> metrics;
  for (const std::string& name : file.link_names("/metrics")) {
    const std::string path = kMetrics + name;
    const bool is_usual = std::any_of(usual.begin(), usual.end(),
                                      [&](const DatasetSpec& spec) { return spec.path == path; });
    if (is_usual || !file.has(path)) continue;
    metrics.push_back(
        {name, file.text_attribute(path, "units"), file.text_attribute(path, "description")});
  }
  return metrics;
}

std::vector<DatasetSpec> row_datasets(RowGroup group, std::int64_t tensors,
                                      const std::vector<MetricColumn>& metrics) {
  switch (group) {
    case RowGroup::metrics: return metrics_datasets(metrics);
    case RowGroup::eval: return eval_datasets();
    case RowGroup::scores: return scores_datasets();
    case RowGroup::tensors: return tensors_datasets(tensors);
    case RowGroup::events: return events_datasets();
    case RowGroup::samples: return samples_datasets();
    case RowGroup::checkpoints: return checkpoints_datasets();
    case RowGroup::warnings: return warnings_datasets();
    case RowGroup::documents: return documents_datasets();
  }
  return {};
}

DatasetSpec sample_values_dataset() {
  DatasetSpec spec = number("/samples/values", f32, "1", "elements of all samples");
  spec.chunk_rows = 16384;
  return spec;
}

DatasetSpec complete_dataset() {
  return number("/complete", u64, "hash", "one row when the run is done: final weight hash");
}

void write_meta(Hdf5File& file, const RunMeta& meta) {
  file.create_group(kMeta);
  file.set_attribute(kMeta, "schema", kRunSchema + std::to_string(meta.version));
  for (const auto& [name, member] : kTexts) file.set_attribute(kMeta, name, meta.*member);
  file.set_attribute(kMeta, "optimizer_states", meta.optimizer_states);
  file.set_attribute(kMeta, "seed", meta.seed);
  file.set_attribute(kMeta, "parameter_count", meta.parameter_count);
  file.set_attribute(kMeta, "stage_names", meta.stage_names);
  for (const auto& [key, value] : meta.extra) file.set_attribute(kMeta, kExtra + key, value);
  std::vector<std::string> names, hashes;
  for (const auto& [name, hash] : meta.identity) {
    names.push_back(name);
    hashes.push_back(hash);
  }
  file.set_attribute(kMeta, "identity_names", names);
  file.set_attribute(kMeta, "identity_hashes", hashes);
  file.seal_attributes(kMeta);
}

RunMeta read_meta(const Hdf5File& file) {
  if (!file.has_attribute(kMeta, "schema")) {
    throw InputError(
        {.where = file.name(), .reason = "not a run file of fp8lab (/meta has no schema)"});
  }
  const std::string schema = file.text_attribute(kMeta, "schema");
  RunMeta meta;
  const int newest = meta.version;
  meta.version = 0;
  for (int version = 1; version <= newest; ++version) {
    if (schema == kRunSchema + std::to_string(version)) meta.version = version;
  }
  if (meta.version == 0) {
    throw InputError(
        {.where = file.name(),
         .reason = fmt::format(
             "not a run file that this version reads: schema '{}', accepted '{}1' to {}", schema,
             kRunSchema, newest)});
  }
  if (meta.version >= 2) {
    file.check_attributes(kMeta);
    meta.identity = read_identity(file);
  }
  for (const auto& [name, member] : kTexts) meta.*member = file.text_attribute(kMeta, name);
  meta.optimizer_states = file.text_attribute(kMeta, "optimizer_states");
  meta.seed = file.unsigned_attribute(kMeta, "seed");
  meta.parameter_count = file.integer_attribute(kMeta, "parameter_count");
  meta.stage_names = file.list_attribute(kMeta, "stage_names");
  const std::string prefix = kExtra;
  for (const std::string& name : file.attribute_names(kMeta)) {
    if (!name.starts_with(prefix)) continue;
    meta.extra[name.substr(prefix.size())] = file.text_attribute(kMeta, name);
  }
  return meta;
}

void write_tensor_names(Hdf5File& file, const std::vector<TensorName>& tensors) {
  std::array<std::size_t, 3> longest = {1, 1, 1};
  constexpr std::array kMembers = {&TensorName::layer, &TensorName::slot, &TensorName::format};
  for (const TensorName& tensor : tensors) {
    for (std::size_t i = 0; i < 3; ++i) {
      longest[i] = std::max(longest[i], (tensor.*kMembers[i]).size());
    }
  }
  const auto specs = name_datasets(longest[0], longest[1], longest[2]);
  const auto count = static_cast<std::int64_t>(tensors.size());
  for (std::size_t i = 0; i < 3; ++i) {
    std::string column;
    for (const TensorName& tensor : tensors) {
      column += fixed_text(tensor.*kMembers[i], longest[i]);
    }
    file.create_fixed(specs[i], count).write(column.data(), 0, count);
  }
  std::vector<double> bits;
  for (const TensorName& tensor : tensors) bits.push_back(tensor.scale_bits_per_element);
  file.create_fixed(specs[3], count).write(bits.data(), 0, count);
}

std::vector<TensorName> read_tensor_names(const Hdf5File& file) {
  const auto specs = name_datasets(1, 1, 1);
  const auto layers = read_all_texts(file, specs[0]);
  const auto slots = read_all_texts(file, specs[1]);
  const auto formats = read_all_texts(file, specs[2]);
  const auto bits = read_all<double>(file, specs[3]);
  if (slots.size() != layers.size() || formats.size() != layers.size() ||
      bits.size() != layers.size()) {
    throw InputError(
        {.where = file.name(), .reason = "damaged run file: /tensors names differ in number"});
  }
  std::vector<TensorName> tensors;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    tensors.push_back({layers[i], slots[i], formats[i], bits[i]});
  }
  return tensors;
}

std::vector<std::string> read_all_texts(const Hdf5File& file, const DatasetSpec& spec) {
  const Hdf5Dataset dataset = file.open_dataset(spec);
  const std::size_t size = dataset.spec().text_size;
  const auto rows = static_cast<std::size_t>(dataset.rows());
  std::string bytes(rows * size, '\0');
  dataset.read(bytes.data(), 0, dataset.rows());
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < rows; ++i) {
    std::string entry = bytes.substr(i * size, size);
    entry.resize(std::min(entry.find('\0'), entry.size()));
    texts.push_back(std::move(entry));
  }
  return texts;
}

bool is_later(const std::string& path) {
  return path.starts_with("/scores/") || path.starts_with("/checkpoints/") ||
         path.starts_with("/warnings/") || path.starts_with("/documents/") ||
         path == kWithoutHistory;
}

std::string unknown_rows(const DatasetSpec& spec, std::int64_t rows) {
  if (spec.type != f64) return std::string(static_cast<std::size_t>(rows) * spec.row_bytes(), '\0');
  const std::vector<double> unknown(static_cast<std::size_t>(rows * spec.row_elements()),
                                    std::numeric_limits<double>::quiet_NaN());
  return {reinterpret_cast<const char*>(unknown.data()), unknown.size() * sizeof(double)};
}

std::vector<std::int64_t> read_steps(const Hdf5File& file, RowGroup group, std::int64_t tensors) {
  const bool has_metrics = group == RowGroup::metrics;
  const std::vector<DatasetSpec> specs = row_datasets(
      group, tensors, has_metrics ? read_metric_columns(file) : std::vector<MetricColumn>{});
  if (is_later(specs.front().path) && !file.has(specs.front().path)) return {};
  std::vector<std::int64_t> steps = read_all<std::int64_t>(file, specs.front());
  auto rows = static_cast<std::int64_t>(steps.size());
  for (const DatasetSpec& spec : specs) {
    if (is_later(spec.path) && !file.has(spec.path)) continue;
    rows = std::min(rows, file.open_dataset(spec).rows());
  }
  steps.resize(static_cast<std::size_t>(rows));
  steps.erase(std::find(steps.begin(), steps.end(), kNoStep), steps.end());
  return steps;
}

std::int64_t count_whole_samples(const std::vector<std::int64_t>& offsets,
                                 const std::vector<std::int64_t>& lengths, std::int64_t available) {
  const std::size_t rows = std::min(offsets.size(), lengths.size());
  std::size_t whole = 0;
  while (whole < rows && offsets[whole] >= 0 && lengths[whole] >= 0 &&
         offsets[whole] <= available && lengths[whole] <= available - offsets[whole]) {
    ++whole;
  }
  return static_cast<std::int64_t>(whole);
}

std::string fixed_text(const std::string& text, std::size_t size) {
  std::size_t end = std::min(text.size(), size);
  if (end < text.size()) {
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  }
  std::string fixed = text.substr(0, end);
  fixed.resize(size, '\0');
  return fixed;
}

}  // namespace fp8lab
