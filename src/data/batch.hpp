// A batch of packed sequences as named, typed columns: one row of T values each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "emulation/base/tensor_view.hpp"

namespace fp8lab {

/// What is known of a column without its values.
struct ColumnSpec {
  std::string_view name;  ///< in traces and messages
  DType type = DType::i32;
  /// A pass with a key-value cache has the column for each of its tokens. It has any other column
  /// for the tokens whose logits are computed alone, if at all.
  bool is_cached = false;
  /// Key of a JSON-lines record with the document's number, which the column has at each trained
  /// token; elsewhere it is 0. Empty for columns that follow from the tokens.
  std::string_view record_key{};
};

/// A column of std::int32_t or float.
template <class T>
struct Column : ColumnSpec {
  static_assert(std::is_same_v<T, std::int32_t> || std::is_same_v<T, float>);
  explicit constexpr Column(std::string_view named, bool cached = false, std::string_view key = {})
      : ColumnSpec{named, std::is_same_v<T, float> ? DType::f32 : DType::i32, cached, key} {}
};

inline constexpr Column<std::int32_t> kTokens{"tokens", true};
/// The next token of the same document.
inline constexpr Column<std::int32_t> kTargets{"targets"};
/// 1 if the target is trained on, else 0.
inline constexpr Column<float> kTargetWeights{"target weights"};
/// Position within the document.
inline constexpr Column<std::int32_t> kPositions{"positions", true};
/// First token of the document, as an index within its row.
inline constexpr Column<std::int32_t> kDocumentStarts{"document starts"};

/// The columns of every batch, in the order in which they are uploaded. Columns of an objective
/// follow.
inline constexpr ColumnSpec kBatchColumns[] = {kTokens, kTargets, kTargetWeights, kPositions,
                                               kDocumentStarts};

/// Values by column; those of different columns may differ in number.
class Columns {
 public:
  /// Adds a column without values.
  void add(const ColumnSpec& column);
  std::vector<ColumnSpec> specs() const;
  bool has(const ColumnSpec& column) const { return index_of(column) < entries_.size(); }
  /// The address of the first value, of the column's type; null without values. Precondition, also
  /// below: the column is there.
  const void* data(const ColumnSpec& column) const;

  template <class T>
  const std::vector<T>& operator[](const Column<T>& column) const {
    return std::get<std::vector<T>>(entries_.at(index_of(column)).values);
  }
  template <class T>
  std::vector<T>& operator[](const Column<T>& column) {
    return std::get<std::vector<T>>(entries_.at(index_of(column)).values);
  }

 protected:
  struct Entry {
    ColumnSpec spec;
    std::variant<std::vector<std::int32_t>, std::vector<float>> values;
  };
  /// The number of columns for one that is not there.
  std::size_t index_of(const ColumnSpec& column) const;

  std::vector<Entry> entries_;
};

/// `sequences` rows of `sequence_length` tokens, flattened. Attention stays within a document
/// (kDocumentStarts), and the positions of each document start at 0.
struct Batch : Columns {
  std::int64_t sequences = 0;
  std::int64_t sequence_length = 0;
  /// Index of each token's document in its source; -1: padding. Empty if the
  /// documents are not counted.
  std::vector<std::int64_t> documents;
  std::int64_t trained_tokens = 0;  ///< tokens of weight 1

  Batch() : Batch(0, 0) {}
  /// A batch of kBatchColumns and `more`, all without values: only a backend that reads no values
  /// can load it.
  Batch(std::int64_t sequences, std::int64_t sequence_length,
        std::span<const ColumnSpec> more = {});
  /// A batch of padding, which is not trained on: tokens and targets are `padding`, all else is 0.
  static Batch padded(std::int64_t sequences, std::int64_t sequence_length, std::int32_t padding,
                      std::span<const ColumnSpec> more = {});
};

}  // namespace fp8lab
