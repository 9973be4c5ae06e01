// Files of token ids, mapped and never copied: our shards, and those of llm.c, llmq and Megatron.
// The layouts are in src/data/README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/io/mapped_file.hpp"

namespace fp8lab {

enum class ShardFormat : std::uint8_t { fp8lab, llm_c, llmq, megatron };

/// "fp8lab", "llm.c", "llmq" or "Megatron".
const char* name_of(ShardFormat format);

/// One document where it lies: `size` little-endian ids of `token_bytes` bytes. A token counts as
/// target if its bit of the loss mask is set (least significant bit first), and without a mask if
/// its index is at least `prompt_length`.
struct DocumentView {
  const std::byte* tokens = nullptr;
  std::int64_t size = 0;
  std::int64_t token_bytes = 4;  ///< 2 or 4
  std::int64_t prompt_length = 1;
  const std::byte* loss_mask = nullptr;
  std::int64_t mask_offset = 0;  ///< bit of the first token

  std::int32_t token(std::int64_t index) const;
  bool trained(std::int64_t index) const;
};

/// What a file says about its contents. All spans point into the bytes of the file or of its index.
struct ShardLayout {
  ShardFormat format = ShardFormat::fp8lab;
  std::int64_t token_bytes = 4;  ///< 2 or 4
  std::int64_t token_count = 0;
  std::int64_t vocabulary = 0;                ///< ids are below it; 0: not stated
  std::int32_t begin = -1, end = -1;          ///< ids of the tokens around documents; -1: none
  std::uint64_t tokenizer_hash = 0;           ///< XXH3-64 of tokenizer.json; 0: not stated
  std::optional<std::uint64_t> content_hash;  ///< XXH3-64 of everything after the header, if stated
  std::span<const std::byte> tokens;
  std::span<const std::byte> loss_mask;  ///< one bit a token; empty: none
  std::span<const std::byte>
      document_ends;                        ///< u64 each: index after the document; empty: not held
  std::span<const std::byte> hashed;        ///< what the content hash covers, before `hashed_index`
  std::span<const std::byte> hashed_index;  ///< Megatron's .idx; empty: none
  std::span<const std::byte> sequence_lengths, sequence_offsets;  ///< Megatron: i32, i64 (bytes)
  std::span<const std::byte> document_indices;  ///< Megatron: i64 each, sequences before it
};

/// Checks structure alone, in constant time and without an allocation: magic, version, counts,
/// sizes. `index` is Megatron's .idx, else empty. Throws Error with `name` and one line.
ShardLayout parse_shard_layout(std::span<const std::byte> bytes, std::span<const std::byte> index,
                               const std::string& name);

/// One mapped file of tokens, checked from the first to the last byte.
class TokenShard {
 public:
  /// Reads the whole file once: content hash, document boundaries, mask, and every id below the
  /// vocabulary. `delimiter` cuts files that hold no boundaries; Error if the file has its own.
  /// Throws Error with the path for everything that does not fit.
  TokenShard(const std::filesystem::path& path, const DocumentDelimiter& delimiter);
  /// The same for bytes that outlive the shard.
  TokenShard(std::span<const std::byte> bytes, std::span<const std::byte> index,
             const std::string& name, const DocumentDelimiter& delimiter);

  const ShardLayout& layout() const { return layout_; }
  const std::string& name() const { return name_; }
  std::int64_t documents() const { return document_count_; }
  /// Throws RuntimeFailure where the file was written to and its boundaries make no document.
  DocumentView document(std::int64_t index) const;
  std::int64_t trained_tokens() const;  ///< bits of the loss mask; without one, all but the first
                                        ///< token of each document
  std::int64_t vocabulary() const;      ///< as stated, else one more than the largest id
  /// Throws RuntimeFailure when the contents are no longer those that hash() is of: somebody wrote
  /// into the file. Looks at its times, and reads it again only where these have changed.
  void require_unchanged() const;
  std::uint64_t hash() const { return hash_; }  ///< XXH3-64 of the data, as content_hash

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
  /// Of both files when their contents had hash_.
  mutable FileStamp stamp_, index_stamp_;
  ShardLayout layout_;
  std::vector<std::uint64_t> found_ends_;  ///< of formats that do not hold them as we do
  std::int64_t document_count_ = 0;
  std::int64_t largest_token_ = 0;
  std::uint64_t hash_ = 0;
};

/// Whether a shard says which of its tokens are trained on; looks at its structure alone. Throws
/// Error with the path for what is no shard.
bool has_loss_mask(const std::filesystem::path& path);

/// The shard files that a path of the configuration stands for: itself, or in a folder every
/// .tokens and .bin file, by name. Throws Error when there is none.
std::vector<std::filesystem::path> shard_files(const std::filesystem::path& path);

}  // namespace fp8lab
