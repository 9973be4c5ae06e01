#include "src/data/batch.hpp"

#include <algorithm>

#include "emulation/base/error.hpp"

namespace fp8lab {

void Columns::add(const ColumnSpec& column) {
  FP8LAB_ASSERT(!has(column) && (column.record_key.empty() || column.type == DType::f32));
  Entry& entry = entries_.emplace_back();
  entry.spec = column;
  if (column.type == DType::f32) entry.values = std::vector<float>();
}

std::vector<ColumnSpec> Columns::specs() const {
  std::vector<ColumnSpec> specs;
  for (const Entry& entry : entries_) specs.push_back(entry.spec);
  return specs;
}

std::size_t Columns::index_of(const ColumnSpec& column) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.spec.name == column.name;
  });
  return static_cast<std::size_t>(found - entries_.begin());
}

const void* Columns::data(const ColumnSpec& column) const {
  return std::visit([](const auto& values) -> const void* { return values.data(); },
                    entries_.at(index_of(column)).values);
}

Batch::Batch(std::int64_t sequence_count, std::int64_t length, std::span<const ColumnSpec> more)
    : sequences(sequence_count), sequence_length(length) {
  for (const ColumnSpec& column : kBatchColumns) add(column);
  for (const ColumnSpec& column : more) add(column);
}

Batch Batch::padded(std::int64_t sequences, std::int64_t sequence_length, std::int32_t padding,
                    std::span<const ColumnSpec> more) {
  Batch batch(sequences, sequence_length, more);
  const auto count = static_cast<std::size_t>(sequences * sequence_length);
  for (Entry& entry : batch.entries_) {
    std::visit([&](auto& values) { values.assign(count, {}); }, entry.values);
  }
  batch[kTokens].assign(count, padding);
  batch[kTargets].assign(count, padding);
  return batch;
}

}  // namespace fp8lab
