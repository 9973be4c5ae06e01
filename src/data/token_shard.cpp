#include "src/data/token_shard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/hash.hpp"

namespace fp8lab {
namespace {

template <class T>
T number_at(std::span<const std::byte> bytes, std::int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<std::size_t>(index) * sizeof(T), sizeof value);
  return value;
}

constexpr std::size_t kBlock = std::size_t{1} << 20;  // read once, for both the hash and the ids

/// Returns the largest id as unsigned, so that negative ids exceed every vocabulary.
template <class T>
std::int64_t largest_id(std::span<const std::byte> tokens) {
  T largest = 0;
  const auto count = static_cast<std::int64_t>(tokens.size() / sizeof(T));
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, number_at<T>(tokens, i));
  return static_cast<std::int64_t>(largest);
}

/// Opens Megatron's .idx beside a .bin; returns nothing for other files.
std::optional<MappedFile> open_index(const std::filesystem::path& path) {
  std::filesystem::path index = path;
  index.replace_extension(".idx");
  if (path.extension() != ".bin" || !is_present(index)) return std::nullopt;
  MappedFile file(index);
  if (file.bytes().empty()) throw InputError({.where = index.string(), .reason = "empty"});
  return file;
}

}  // namespace

std::int32_t DocumentView::token(std::int64_t index) const {
  const std::byte* const at = tokens + index * token_bytes;
  if (token_bytes == 2) {
    std::uint16_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::int32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

bool DocumentView::trained(std::int64_t index) const {
  if (loss_mask == nullptr) return index >= prompt_length;
  const std::int64_t bit = mask_offset + index;
  return (std::to_integer<unsigned>(loss_mask[bit / 8]) >> (bit % 8) & 1u) != 0;
}

bool has_loss_mask(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::optional<MappedFile> index = open_index(path);
  const auto index_bytes = index ? index->bytes() : std::span<const std::byte>();
  return !parse_shard_layout(file.bytes(), index_bytes, path.string()).loss_mask.empty();
}

TokenShard::TokenShard(const std::filesystem::path& path, const DocumentDelimiter& delimiter)
    : name_(path.string()), file_(path), index_file_(open_index(path)) {
  std::span<const std::byte> index_bytes;
  if (index_file_) index_bytes = index_file_->bytes();
  stamp_ = file_->stamp();
  if (index_file_) index_stamp_ = index_file_->stamp();
  layout_ = parse_shard_layout(file_->bytes(), index_bytes, name_);
  check(delimiter);
}

TokenShard::TokenShard(std::span<const std::byte> bytes, std::span<const std::byte> index,
                       const std::string& name, const DocumentDelimiter& delimiter)
    : name_(name), layout_(parse_shard_layout(bytes, index, name)) {
  check(delimiter);
}

void TokenShard::check(const DocumentDelimiter& delimiter) {
  const bool holds_boundaries =
      layout_.format == ShardFormat::fp8lab || layout_.format == ShardFormat::megatron;
  if (holds_boundaries && (delimiter.begin >= 0 || delimiter.end >= 0)) {
    throw InputError(
        {.where = name_,
         .reason =
             "holds its document boundaries; accepted without document_begin and document_end"});
  }
  if (layout_.format == ShardFormat::fp8lab) {
    document_count_ = static_cast<std::int64_t>(layout_.document_ends.size() / 8);
    check_document_ends();
  }
  check_loss_mask();
  check_tokens();
  if (layout_.format == ShardFormat::megatron) read_megatron_documents();
  if (!holds_boundaries) cut(delimiter);
}

void TokenShard::check_document_ends() const {
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < document_count_; ++i) {
    const auto end = number_at<std::uint64_t>(layout_.document_ends, i);
    const bool last = i + 1 == document_count_;
    const auto count = static_cast<std::uint64_t>(layout_.token_count);
    if (end > count || end < static_cast<std::uint64_t>(begin) + 2 || (last && end != count)) {
      throw InputError(
          {.where = name_,
           .reason = fmt::format("document {} ends at token {} and begins at {}, of {} tokens", i,
                                 end, begin, layout_.token_count),
           .accepted = "at least two tokens each, and all of them used"});
    }
    begin = static_cast<std::int64_t>(end);
  }
}

void TokenShard::check_loss_mask() const {
  if (layout_.loss_mask.empty()) return;
  const auto spare = static_cast<unsigned>(layout_.token_count % 8);
  const auto last = std::to_integer<unsigned>(layout_.loss_mask.back());
  if (spare != 0 && last >> spare != 0) {
    throw InputError({.where = name_, .reason = "its loss mask has bits after the last token"});
  }
  if (trained_tokens() == 0) {
    throw InputError({.where = name_, .reason = "its loss mask trains on no token"});
  }
}

void TokenShard::check_tokens() {
  const std::span<const std::byte> tokens = layout_.tokens;
  const auto before = static_cast<std::size_t>(tokens.data() - layout_.hashed.data());
  Xxh3Stream hash;
  hash.update(layout_.hashed.data(), before);
  for (std::size_t offset = 0; offset < tokens.size(); offset += kBlock) {
    const auto block = tokens.subspan(offset, std::min(kBlock, tokens.size() - offset));
    hash.update(block.data(), block.size());
    largest_token_ =
        std::max(largest_token_, layout_.token_bytes == 2 ? largest_id<std::uint16_t>(block)
                                                          : largest_id<std::uint32_t>(block));
    if (file_) release_pages(block);
  }
  const auto rest = layout_.hashed.subspan(before + tokens.size());
  hash.update(rest.data(), rest.size());
  hash.update(layout_.hashed_index.data(), layout_.hashed_index.size());
  hash_ = hash.digest();
  if (layout_.content_hash && *layout_.content_hash != hash_) {
    throw InputError(
        {.where = name_,
         .reason = fmt::format("damaged: its contents have the hash {}, its header says {}",
                               hex16(hash_), hex16(*layout_.content_hash))});
  }
  const std::int64_t vocabulary = layout_.vocabulary > 0 ? layout_.vocabulary : 0x7fffffff;
  if (largest_token_ >= vocabulary) {
    throw InputError({.where = name_,
                      .reason = fmt::format("holds the token {} beyond its vocabulary of {}",
                                            largest_token_, vocabulary)});
  }
}

void TokenShard::fail_changed() const {
  throw RuntimeFailure(
      fmt::format("{}: was written to while it was in use: its contents are no "
                  "longer those with the hash {}; put them back",
                  name_, hex16(hash_)));
}

void TokenShard::require_unchanged() const {
  if (!file_) return;
  const FileStamp now = file_->stamp_now();
  const FileStamp index = index_file_ ? index_file_->stamp_now() : index_stamp_;
  if (now == stamp_ && index == index_stamp_) return;
  bool is_changed = now.size < stamp_.size || index.size < index_stamp_.size;
  if (!is_changed) {
    Xxh3Stream hash;
    hash.update(layout_.hashed.data(), layout_.hashed.size());
    hash.update(layout_.hashed_index.data(), layout_.hashed_index.size());
    is_changed = hash.digest() != hash_;
  }
  if (is_changed) fail_changed();
  stamp_ = now;
  index_stamp_ = index;
}

void TokenShard::read_megatron_documents() {
  const auto sequences = static_cast<std::int64_t>(layout_.sequence_lengths.size() / 4);
  const auto marks = static_cast<std::int64_t>(layout_.document_indices.size() / 8);
  std::int64_t mark = 0, sequence = 0;
  std::int64_t position = 0;  // tokens in the preceding sequences
  for (; mark < marks; ++mark) {
    const auto next = number_at<std::int64_t>(layout_.document_indices, mark);
    if (next < sequence || next > sequences || (mark == 0 && next != 0)) {
      throw InputError({.where = fmt::format("{} (.idx)", name_),
                        .reason = fmt::format("document index {} is {} of {} sequences", mark, next,
                                              sequences)});
    }
    for (; sequence < next; ++sequence) {
      const auto length = number_at<std::int32_t>(layout_.sequence_lengths, sequence);
      const auto offset = number_at<std::int64_t>(layout_.sequence_offsets, sequence);
      if (length < 0 || offset != position * layout_.token_bytes ||
          length > layout_.token_count - position) {
        throw InputError(
            {.where = fmt::format("{} (.idx)", name_),
             .reason = fmt::format(
                 "sequence {} has {} tokens at byte {}, which is not where it begins in the file",
                 sequence, length, offset)});
      }
      position += length;
    }
    const std::int64_t begin =
        found_ends_.empty() ? 0 : static_cast<std::int64_t>(found_ends_.back());
    if (position > begin) found_ends_.push_back(static_cast<std::uint64_t>(position));
  }
  if (sequence != sequences || position != layout_.token_count) {
    throw InputError(
        {.where = fmt::format("{} (.idx)", name_),
         .reason = fmt::format("its documents hold {} of {} sequences and {} of {} tokens",
                               sequence, sequences, position, layout_.token_count)});
  }
  document_count_ = static_cast<std::int64_t>(found_ends_.size());
}

void TokenShard::cut(const DocumentDelimiter& delimiter) {
  const DocumentView all{layout_.tokens.data(), layout_.token_count, layout_.token_bytes};
  for (std::int64_t i = 0; i < all.size; ++i) {
    const std::int64_t token = all.token(i);
    if (token == delimiter.begin && i > 0) found_ends_.push_back(static_cast<std::uint64_t>(i));
    if (token == delimiter.end) found_ends_.push_back(static_cast<std::uint64_t>(i) + 1);
  }
  const auto count = static_cast<std::uint64_t>(layout_.token_count);
  if (found_ends_.empty() || found_ends_.back() != count) found_ends_.push_back(count);
  document_count_ = static_cast<std::int64_t>(found_ends_.size());
}

std::int64_t TokenShard::document_end(std::int64_t index) const {
  if (index < 0) return 0;
  const std::uint64_t end = found_ends_.empty()
                                ? number_at<std::uint64_t>(layout_.document_ends, index)
                                : found_ends_[static_cast<std::size_t>(index)];
  return static_cast<std::int64_t>(end);
}

DocumentView TokenShard::document(std::int64_t index) const {
  // The boundaries were checked when the file was opened, but the file may have been overwritten
  // since, and documents are read before require_unchanged() is called.
  const std::int64_t begin = document_end(index - 1), end = document_end(index);
  if (begin < 0 || end < begin || end > layout_.token_count) fail_changed();
  DocumentView view;
  view.tokens = layout_.tokens.data() + begin * layout_.token_bytes;
  view.size = end - begin;
  view.token_bytes = layout_.token_bytes;
  if (!layout_.loss_mask.empty()) {
    view.loss_mask = layout_.loss_mask.data();
    view.mask_offset = begin;
  }
  return view;
}

std::int64_t TokenShard::trained_tokens() const {
  if (layout_.loss_mask.empty()) return layout_.token_count - document_count_;
  std::int64_t trained = 0;
  for (const std::byte byte : layout_.loss_mask) {
    trained += std::popcount(std::to_integer<std::uint8_t>(byte));
  }
  return trained;
}

std::int64_t TokenShard::vocabulary() const {
  return layout_.vocabulary > 0 ? layout_.vocabulary : largest_token_ + 1;
}

std::vector<std::filesystem::path> shard_files(const std::filesystem::path& path) {
  if (!is_folder(path)) return {path};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::filesystem::path extension = entry.path().extension();
    if (extension == ".tokens" || extension == ".bin") files.push_back(entry.path());
  }
  if (files.empty())
    throw InputError({.where = path.string(), .reason = "no .tokens or .bin files in it"});
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace fp8lab
