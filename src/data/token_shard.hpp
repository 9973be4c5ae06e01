// Memory-mapped files of token ids: fp8lab's shards, and those of llm.c, llmq and Megatron. The
// layouts are in src/data/README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/io/files/mapped_file.hpp"

namespace fp8lab {

enum class ShardFormat : std::uint8_t { fp8lab, llm_c, llmq, megatron };

/// "fp8lab", "llm.c", "llmq" or "Megatron".
const char* name_of(ShardFormat format);

/// A view of one document: `size` little-endian ids of `token_bytes` bytes. With a loss mask, a
/// token is a target if its bit is set (least significant bit first); without one, if its index is
/// at least `prompt_length`.
struct DocumentView {
  const std::byte* tokens = nullptr;
  std::int64_t size = 0;
  std::int64_t token_bytes = 4;  ///< 2 or 4
  std::int64_t prompt_length = 1;
  const std::byte* loss_mask = nullptr;
  std::int64_t mask_offset = 0;  ///< bit of the document's first token

  std::int32_t token(std::int64_t index) const;
  bool trained(std::int64_t index) const;
};

/// Sections and header fields of a file. All spans point into the bytes of
/// the file or of its index.
struct ShardLayout {
  ShardFormat format = ShardFormat::fp8lab;
  std::int64_t token_bytes = 4;  ///< 2 or 4
  std::int64_t token_count = 0;
  std::int64_t vocabulary = 0;                ///< number of ids; 0: not stated
  std::int32_t begin = -1, end = -1;          ///< ids of the tokens around documents; -1: none
  std::uint64_t tokenizer_hash = 0;           ///< XXH3-64 of tokenizer.json; 0: not stated
  std::optional<std::uint64_t> content_hash;  ///< XXH3-64 of everything after the header, if stated
  std::span<const std::byte> tokens;
  std::span<const std::byte> loss_mask;      ///< one bit per token; empty: none
  std::span<const std::byte> document_ends;  ///< u64 each: index after the document; empty: absent
  std::span<const std::byte> hashed;  ///< bytes that the content hash covers, before `hashed_index`
  std::span<const std::byte> hashed_index;                        ///< Megatron's .idx; empty: none
  std::span<const std::byte> sequence_lengths, sequence_offsets;  ///< Megatron: i32, i64 (bytes)
  std::span<const std::byte> document_indices;  ///< Megatron: i64 each, sequences before it
};

/// Checks only the structure, in constant time and without allocation: magic, version, counts,
/// sizes. `index` is Megatron's .idx, else empty. Throws Error with `name` and one line.
ShardLayout parse_shard_layout(std::span<const std::byte> bytes, std::span<const std::byte> index,
                               const std::string& name);

/// One mapped file of tokens, verified from the first to the last byte.
class TokenShard {
 public:
  /// Reads the whole file once and checks content hash, document boundaries, mask, and that every
  /// id is below the vocabulary. `delimiter` splits files that contain no boundaries; throws Error
  /// if the file has its own. Throws Error with the path for every mismatch.
  TokenShard(const std::filesystem::path& path, const DocumentDelimiter& delimiter);
  /// Like the above for bytes in memory. Precondition: they outlive the shard.
  TokenShard(std::span<const std::byte> bytes, std::span<const std::byte> index,
             const std::string& name, const DocumentDelimiter& delimiter);

  const ShardLayout& layout() const { return layout_; }
  const std::string& name() const { return name_; }
  std::int64_t documents() const { return document_count_; }
  /// Throws RuntimeFailure if the file was overwritten and its boundaries
  /// no longer form a document.
  DocumentView document(std::int64_t index) const;
  std::int64_t trained_tokens() const;  ///< without a mask, all but each document's first
  std::int64_t vocabulary() const;      ///< as stated in the file, else the largest id plus one
  /// Throws RuntimeFailure if the file was overwritten, so that its contents no longer match
  /// hash(). Compares its times, and reads the file again only if they have changed.
  void require_unchanged() const;
  std::uint64_t hash() const { return hash_; }  ///< XXH3-64 of the data, like content_hash

 private:
  void check(const DocumentDelimiter& delimiter);
  void check_document_ends() const;
  void check_loss_mask() const;
  void check_tokens();
  [[noreturn]] void fail_changed() const;
  void read_megatron_documents();
  void cut(const DocumentDelimiter& delimiter);
  std::int64_t document_end(std::int64_t index) const;

  std::string name_;
  std::optional<MappedFile> file_, index_file_;
  /// Stamps of both files when their contents had hash_.
  mutable FileStamp stamp_, index_stamp_;
  ShardLayout layout_;
  std::vector<std::uint64_t> found_ends_;  ///< for formats that do not store them in this form
  std::int64_t document_count_ = 0;
  std::int64_t largest_token_ = 0;
  std::uint64_t hash_ = 0;
};

/// Returns whether a shard has a loss mask; checks only its structure. Throws Error with the path
/// if the file is not a shard.
bool has_loss_mask(const std::filesystem::path& path);

/// Returns the shard files of a configured path: the file itself, or all .tokens and .bin files of
/// a folder, sorted by name. Throws Error if there are none.
std::vector<std::filesystem::path> shard_files(const std::filesystem::path& path);

}  // namespace fp8lab
