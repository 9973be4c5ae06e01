#include "src/io/hdf5/run_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "emulation/base/input_error.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/files/file_lock.hpp"
#include "src/io/hdf5/run_schema.hpp"

namespace fp8lab {
namespace {

/// Datasets of one group, which grow together, and their rows that are not in the file yet. Rows
/// are collected so that the file changes only in flush(): only then can a kill leave it
/// inconsistent, and a chunk is compressed once per flush.
class RowWriter {
 public:
  RowWriter(Hdf5File& file, const std::vector<DatasetSpec>& specs) {
    for (const DatasetSpec& spec : specs) columns_.push_back({file.create_extendable(spec), {}});
  }

  /// Appends the row's value for the next dataset.
  template <class T>
  void put(const T* elements, std::size_t count) {
    Column& column = columns_.at(next_++);
    FP8LAB_ASSERT(count * sizeof(T) == column.dataset.spec().row_bytes());
    column.pending.append(reinterpret_cast<const char*>(elements), count * sizeof(T));
  }
  template <class T>
  void put(T value) {
    put(&value, 1);
  }
  void put(const std::string& text) {
    const std::size_t size = columns_.at(next_).dataset.spec().text_size;
    put(fixed_text(text, size).data(), size);
  }
  void end_row() {
    FP8LAB_ASSERT(next_ == columns_.size());
    next_ = 0;
    ++pending_rows_;
  }
  /// Appends the row's values for the next datasets, one number or text each.
  template <class... Values>
  void put_all(const Values&... values) {
    (put(values), ...);
  }
  /// The same for all datasets of a row.
  template <class... Values>
  void put_row(const Values&... values) {
    put_all(values...);
    end_row();
  }
  /// Appends `count` rows of a single dataset.
  void put_rows(const void* elements, std::int64_t count) {
    Column& column = columns_.at(0);
    const std::size_t size = static_cast<std::size_t>(count) * column.dataset.spec().row_bytes();
    if (size != 0) column.pending.append(static_cast<const char*>(elements), size);
    pending_rows_ += count;
  }

  /// Returns the number of rows in the file plus the collected ones.
  std::int64_t rows() const { return columns_.front().dataset.rows() + pending_rows_; }

  /// Returns an upper bound of the space that writing the collected rows adds to the file:
  /// the rows, and for each dataset one rewritten chunk and new blocks of its index. The
  /// index is an extensible array whose blocks grow with the square root of the number of
  /// chunks. 0 if no rows are pending.
  std::size_t space_needed() const {
    constexpr std::size_t kBlocks = std::size_t{4} << 10;
    std::size_t bytes = 0;
    for (const Column& column : columns_) {
      if (pending_rows_ == 0) break;
      const Hdf5Dataset& dataset = column.dataset;
      const std::int64_t chunks = dataset.rows() / dataset.rows_per_chunk() + 1;
      const double root = std::sqrt(static_cast<double>(chunks));
      bytes += kBlocks + static_cast<std::size_t>(128.0 * root) +
               2 * (column.pending.size() + dataset.chunk_bytes());
    }
    return bytes;
  }

  void write_pending() {
    for (Column& column : columns_) {
      column.dataset.append(column.pending.data(), pending_rows_);
      column.pending.clear();
    }
    pending_rows_ = 0;
  }

  /// Appends the first `rows` rows of the same datasets in another run file.
  void copy_from(const Hdf5File& source, std::int64_t rows) {
    for (Column& column : columns_) {
      const DatasetSpec& spec = column.dataset.spec();
      if (is_later(spec.path) && !source.has(spec.path)) {
        column.dataset.append(unknown_rows(spec, rows).data(), rows);
        continue;
      }
      const Hdf5Dataset old = source.open_dataset(spec);
      if (old.spec().text_size != spec.text_size || old.rows() < rows) {
        throw InputError(
            {.where = source.name(),
             .reason = fmt::format("damaged run file: {} does not fit the schema", spec.path)});
      }
      constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
      const auto block = static_cast<std::int64_t>(
          std::max<std::size_t>(kBlockBytes / std::max<std::size_t>(spec.row_bytes(), 1), 1));
      std::string bytes;
      for (std::int64_t first = 0; first < rows; first += block) {
        const std::int64_t count = std::min(block, rows - first);
        bytes.resize(static_cast<std::size_t>(count) * spec.row_bytes());
        old.read(bytes.data(), first, count);
        column.dataset.append(bytes.data(), count);
      }
    }
  }

 private:
  struct Column {
    Hdf5Dataset dataset;
    std::string pending;
  };
  std::vector<Column> columns_;
  std::size_t next_ = 0;
  std::int64_t pending_rows_ = 0;
};

/// Returns the name of a file under construction. The lock makes the name exclusive, so a leftover
/// of a killed process is overwritten.
std::filesystem::path construction_site(const std::filesystem::path& path) {
  return path.parent_path() / fmt::format(".{}.new", path.filename().string());
}

std::int32_t channel_index(double channel) {
  constexpr double kLargest = std::numeric_limits<std::int32_t>::max();
  return channel >= 0.0 && channel <= kLargest ? static_cast<std::int32_t>(channel) : -1;
}

FileLock required_lock(std::optional<FileLock> lock, const std::filesystem::path& path) {
  if (lock) return std::move(*lock);
  throw InputError({.where = path.string(), .reason = "another process is writing this run"});
}

class Hdf5RunLog final : public RunLog {
 public:
  /// Creates all groups, attributes and datasets in the file `temporary`; publish() renames it.
  Hdf5RunLog(FileLock lock, std::filesystem::path path, const std::filesystem::path& temporary,
             const RunMeta& meta, const std::vector<TensorName>& tensors,
             const std::vector<MetricColumn>& metrics)
      : lock_(std::move(lock)),
        path_(std::move(path)),
        tensors_(static_cast<std::int64_t>(tensors.size())),
        metrics_(metrics.size()),
        file_(Hdf5File::create(temporary, path_)) {
    write_meta(file_, meta);
    for (const char* group : {"/metrics", "/hashes", "/eval", "/scores", "/tensors", "/events",
                              "/samples", "/checkpoints", "/warnings", "/documents"}) {
      file_.create_group(group);
    }
    write_tensor_names(file_, tensors);
    for (const RowGroup group : kRowGroups) {
      groups_.emplace_back(file_, row_datasets(group, tensors_, metrics));
    }
    sample_values_.emplace(file_, std::vector{sample_values_dataset()});
    complete_.emplace(file_, std::vector{complete_dataset()});
  }

  ~Hdf5RunLog() override {
    try {
      flush();
    } catch (const std::exception&) {
      // A destructor cannot report; callers that need to know call flush() or complete().
    }
  }

  /// Starts SWMR and then renames the file to its final name, so that the file is readable
  /// as soon as it is visible.
  void publish(TemporaryFile& temporary) {
    write_pending();
    file_.flush();
    file_.start_swmr();
    replace_file(temporary, path_);
  }

  /// Copies the completion row of `source`, if it has one.
  void copy_completion(const Hdf5File& source) {
    complete_->copy_from(source, source.open_dataset(complete_dataset()).rows());
  }

  /// Appends the rows of `source` up to and including `step`.
  void copy_rows(const Hdf5File& source, std::int64_t step);

  void append(const StepRecord& record) override {
    FP8LAB_ASSERT(record.objective.size() == metrics_);
    RowWriter& rows = writer(RowGroup::metrics);
    rows.put_all(record.step, record.stage, record.tokens, record.loss, record.grad_norm,
                 record.learning_rate, record.seconds, record.weight_hash);
    for (const double value : record.objective) rows.put(value);
    rows.end_row();
  }

  void append(const EvalRecord& record) override {
    writer(RowGroup::eval)
        .put_row(record.step, record.stage, record.loss, record.exact_match,
                 record.exact_match_count);
  }

  void append(const ScoreRecord& record) override {
    writer(RowGroup::scores)
        .put_row(record.step, record.stage, record.name, record.value, record.count);
  }

  void append(const DocumentRecord& record) override {
    writer(RowGroup::documents)
        .put_row(record.step, record.stage, static_cast<std::uint8_t>(record.in_bf16), record.text,
                 record.count, record.source, record.document, record.tokens, record.nats);
  }

  void append(const WarningRecord& record) override {
    writer(RowGroup::warnings)
        .put_row(record.step, record.detector, record.score, record.value, record.tensor,
                 record.channel, record.count);
  }

  void append(const EventRecord& record) override {
    writer(RowGroup::events).put_row(record.step, record.kind, record.message);
  }

  void append(const CheckpointRecord& record) override {
    writer(RowGroup::checkpoints).put_row(record.step, record.hash, record.seconds);
  }

  void append_tensors(std::int64_t step, const std::vector<OperandStatistics>& statistics,
                      const std::vector<std::uint8_t>& without_history) override;

  void append_sample(std::int64_t step, const std::string& name,
                     const std::vector<float>& values) override {
    const auto length = static_cast<std::int64_t>(values.size());
    writer(RowGroup::samples).put_row(step, name, sample_values_->rows(), length);
    sample_values_->put_rows(values.data(), length);
  }

  void flush() override {
    if (failed_) throw RuntimeFailure(path_.string() + ": writing failed before");
    const std::size_t space = space_needed();
    if (space == 0) return;
    file_.reserve(space);
    failed_ = true;
    write_pending();
    file_.flush();
    failed_ = false;
  }

  std::size_t space_needed() const override {
    std::size_t bytes = sample_values_->space_needed() + complete_->space_needed();
    for (const RowWriter& rows : groups_) bytes += rows.space_needed();
    return bytes;
  }

  void complete(std::uint64_t final_weight_hash) override {
    FP8LAB_ASSERT(complete_->rows() == 0);
    flush();  // first, so that a reader who sees the completion row sees all other rows
    complete_->put_rows(&final_weight_hash, 1);
    flush();
  }

 private:
  /// Writes the values before the rows of /samples that refer to them.
  void write_pending() {
    sample_values_->write_pending();
    for (RowWriter& rows : groups_) rows.write_pending();
    complete_->write_pending();
  }

  RowWriter& writer(RowGroup group) { return groups_.at(static_cast<std::size_t>(group)); }

  // Destroyed in reverse order: datasets, file, lock.
  FileLock lock_;
  std::filesystem::path path_;
  std::int64_t tensors_;
  std::size_t metrics_;  ///< metric columns
  Hdf5File file_;
  std::vector<RowWriter> groups_;  ///< in the order of kRowGroups
  std::optional<RowWriter> sample_values_;
  std::optional<RowWriter> complete_;
  bool failed_ = false;
};

void Hdf5RunLog::append_tensors(std::int64_t step, const std::vector<OperandStatistics>& statistics,
                                const std::vector<std::uint8_t>& without_history) {
  const auto count = static_cast<std::size_t>(tensors_);
  FP8LAB_ASSERT(statistics.size() == count && without_history.size() == count);
  RowWriter& rows = writer(RowGroup::tensors);
  rows.put(step);
  std::vector<double> values;
  for (const StatisticField& field : statistic_fields()) {
    const auto width = static_cast<std::size_t>(field.width);
    values.resize(count * width);
    for (std::size_t i = 0; i < count; ++i) {
      const auto* record = reinterpret_cast<const std::byte*>(&statistics[i]);
      std::memcpy(&values[i * width], record + field.offset, width * sizeof(double));
    }
    if (field.is_index) {
      std::vector<std::int32_t> indices(values.size());
      std::transform(values.begin(), values.end(), indices.begin(), channel_index);
      rows.put(indices.data(), indices.size());
    } else {
      rows.put(values.data(), values.size());
    }
  }
  std::vector<std::uint64_t> hashes;
  for (const OperandStatistics& record : statistics) hashes.push_back(record.hash);
  rows.put(hashes.data(), count);
  rows.put(without_history.data(), count);
  rows.end_row();
}

/// Returns the number of leading entries up to `step`.
std::int64_t rows_until(const std::vector<std::int64_t>& steps, std::int64_t step) {
  const auto later = std::find_if(steps.begin(), steps.end(),
                                  [step](std::int64_t candidate) { return candidate > step; });
  return later - steps.begin();
}

void Hdf5RunLog::copy_rows(const Hdf5File& source, std::int64_t step) {
  for (const RowGroup group : kRowGroups) {
    std::int64_t rows = rows_until(read_steps(source, group, tensors_), step);
    if (group == RowGroup::samples) {
      const auto specs = row_datasets(group, tensors_);
      const auto offsets = read_all<std::int64_t>(source, specs[2]);
      const auto lengths = read_all<std::int64_t>(source, specs[3]);
      const std::int64_t available = source.open_dataset(sample_values_dataset()).rows();
      rows = std::min(rows, count_whole_samples(offsets, lengths, available));
      const auto last = static_cast<std::size_t>(rows) - 1;
      sample_values_->copy_from(source, rows > 0 ? offsets[last] + lengths[last] : 0);
    }
    if (rows > 0) writer(group).copy_from(source, rows);
  }
}

}  // namespace

std::string difference(const Identity& stored, const Identity& now) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : "; ") + part; };
  const auto named = [](const Identity& all, const std::string& name) {
    return std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.first == name; });
  };
  for (const auto& [name, hash] : now) {
    const auto before = named(stored, name);
    if (before == stored.end()) {
      add(fmt::format("{} is new", name));
    } else if (before->second != hash) {
      add(fmt::format("{} was {}, now {}", name, before->second, hash));
    }
  }
  for (const auto& [name, hash] : stored) {
    if (named(now, name) == now.end()) add(fmt::format("{} was {}, now there is none", name, hash));
  }
  return text;
}

void require_continuable(const RunMeta& meta, const std::filesystem::path& path) {
  if (meta.version >= RunMeta().version) return;
  throw InputError({.where = path.string(),
                    .reason = "of a version of fp8lab that did not write down what determines a "
                              "run; it can be read, not continued"});
}

FileLock RunLog::lock(const std::filesystem::path& path) {
  return required_lock(FileLock::try_acquire(path), path);
}

FileLock RunLog::lock_with_folder(const std::filesystem::path& path) {
  return required_lock(FileLock::try_acquire_with_folder(path), path);
}

std::unique_ptr<RunLog> RunLog::create(const std::filesystem::path& path, const RunMeta& meta,
                                       const std::vector<TensorName>& tensors,
                                       std::optional<FileLock> held,
                                       const std::vector<MetricColumn>& metrics) {
  make_directories(path.parent_path());
  FileLock lock = held ? std::move(*held) : RunLog::lock(path);
  if (is_present(path)) {
    throw InputError({.where = path.string(),
                      .reason = "this run file exists; resume it or write to another directory"});
  }
  TemporaryFile temporary(construction_site(path));
  auto log =
      std::make_unique<Hdf5RunLog>(std::move(lock), path, temporary.path(), meta, tensors, metrics);
  log->publish(temporary);
  return log;
}

void RunLog::close_killed(const std::filesystem::path& path, FileLock held) {
  const Hdf5File old = Hdf5File::open(path);
  const RunMeta meta = read_meta(old);
  const std::vector<TensorName> tensors = read_tensor_names(old);
  TemporaryFile temporary(construction_site(path));
  Hdf5RunLog log(std::move(held), path, temporary.path(), meta, tensors, read_metric_columns(old));
  log.copy_rows(old, std::numeric_limits<std::int64_t>::max());
  log.copy_completion(old);
  log.publish(temporary);
}

std::unique_ptr<RunLog> RunLog::resume(const std::filesystem::path& path, std::int64_t step,
                                       std::int64_t log_interval, std::optional<FileLock> held) {
  if (!is_present(path)) throw InputError({.where = path.string(), .reason = "no such run file"});
  FileLock lock = held ? std::move(*held) : RunLog::lock(path);
  const Hdf5File old = Hdf5File::open(path);
  const RunMeta meta = read_meta(old);
  require_continuable(meta, path);
  const std::vector<TensorName> tensors = read_tensor_names(old);
  const std::vector<std::int64_t> steps = read_steps(old, RowGroup::metrics, 0);
  const std::int64_t last = steps.empty() ? 0 : steps.back();
  if (step < 0 || step - last >= std::max<std::int64_t>(log_interval, 1)) {
    throw InputError(
        {.where = path.string(),
         .reason =
             fmt::format("cannot continue after step {}: its metrics end at step {}", step, last)});
  }
  TemporaryFile temporary(construction_site(path));
  auto log = std::make_unique<Hdf5RunLog>(std::move(lock), path, temporary.path(), meta, tensors,
                                          read_metric_columns(old));
  log->copy_rows(old, step);
  const auto dropped = static_cast<std::int64_t>(steps.size()) - rows_until(steps, step);
  log->append(EventRecord{
      step, "resume",
      fmt::format("continued after step {}; {} later rows of /metrics dropped", step, dropped)});
  log->publish(temporary);
  return log;
}

}  // namespace fp8lab
