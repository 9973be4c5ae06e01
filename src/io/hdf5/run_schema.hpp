// Layout of a run file as data; README.md in this folder describes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/io/hdf5/hdf5.hpp"
#include "src/io/hdf5/run_log.hpp"

namespace fp8lab {

/// Prefix of the schema's name; RunMeta::version follows.
inline constexpr char kRunSchema[] = "fp8lab-run-";
/// Fill value of `step`: marks a row that was never written.
inline constexpr std::int64_t kNoStep = -1;

/// Groups of datasets that grow together, one row each.
enum class RowGroup : std::uint8_t {
  metrics,
  eval,
  scores,
  tensors,
  events,
  samples,
  checkpoints,
  warnings,
  documents,
};
inline constexpr RowGroup kRowGroups[] = {
    RowGroup::metrics,     RowGroup::eval,     RowGroup::scores,
    RowGroup::tensors,     RowGroup::events,   RowGroup::samples,
    RowGroup::checkpoints, RowGroup::warnings, RowGroup::documents};

/// Returns the datasets of a group in the order in which run_log.cpp fills them; `step` is the
/// first. `tensors` is the number of logged operands; `metrics` follow the other columns of
/// /metrics.
std::vector<DatasetSpec> row_datasets(RowGroup group, std::int64_t tensors,
                                      const std::vector<MetricColumn>& metrics = {});

/// Returns the columns of /metrics that not every run has, ordered by name.
std::vector<MetricColumn> read_metric_columns(const Hdf5File& file);

/// Return /samples/values, whose rows are elements, and /complete.
DatasetSpec sample_values_dataset();
DatasetSpec complete_dataset();

/// One member of OperandStatistics that holds doubles.
struct StatisticField {
  const char* name;
  std::size_t offset;  ///< in bytes
  std::int64_t width;  ///< number of doubles
  const char* units;
  const char* description;
  const char* te_name = "";
  double te_factor = 1.0;
  bool is_index = false;  ///< stored as i32; -1: none
};

/// Returns every member except the hash, in order of declaration.
const std::vector<StatisticField>& statistic_fields();
/// Returns the dataset of one statistic.
DatasetSpec statistic_dataset(const StatisticField& field, std::int64_t tensors);

/// Writes /meta of a new file: schema and attributes.
void write_meta(Hdf5File& file, const RunMeta& meta);
/// Reads /meta. Throws Error if the file is not a run file, has another schema, or has attributes
/// that do not match their checksum.
RunMeta read_meta(const Hdf5File& file);

/// Writes /tensors/{layer,slot,format,scale_bits_per_element}. Precondition: the group exists.
void write_tensor_names(Hdf5File& file, const std::vector<TensorName>& tensors);
std::vector<TensorName> read_tensor_names(const Hdf5File& file);

/// Opens `spec` and reads all rows; numbers only.
template <class T>
std::vector<T> read_all(const Hdf5File& file, const DatasetSpec& spec) {
  const Hdf5Dataset dataset = file.open_dataset(spec);
  std::vector<T> values(static_cast<std::size_t>(dataset.rows() * spec.row_elements()));
  FP8LAB_ASSERT(sizeof(T) == spec.element_size());
  dataset.read(values.data(), 0, dataset.rows());
  return values;
}
/// Like read_all for texts; removes the padding.
std::vector<std::string> read_all_texts(const Hdf5File& file, const DatasetSpec& spec);

/// Returns true for datasets that files of version 1 lack; the first files of version 2 lack
/// /warnings, /documents and /checkpoints/seconds too.
bool is_later(const std::string& path);

/// Returns `rows` rows of a dataset that older files lack, as bytes: NaN or 0.
std::string unknown_rows(const DatasetSpec& spec, std::int64_t rows);

/// Returns `step` of every row that all datasets of the group have: a killed writer can leave the
/// others longer, or leave rows that were never written. Empty for groups that older files lack.
std::vector<std::int64_t> read_steps(const Hdf5File& file, RowGroup group, std::int64_t tensors);

/// Returns the number of leading rows of /samples whose values lie within the `available` ones: a
/// kill can come between writing a row and its values.
std::int64_t count_whole_samples(const std::vector<std::int64_t>& offsets,
                                 const std::vector<std::int64_t>& lengths, std::int64_t available);

/// Returns at most `size` bytes of `text`, cut at a UTF-8 character boundary
/// and zero-padded to `size`.
std::string fixed_text(const std::string& text, std::size_t size);

}  // namespace fp8lab
