// Parses the headers of token files in four formats; everything is checked before it is used.
#include <fmt/format.h>

#include <cstring>
#include <string_view>
#include <type_traits>

#include "emulation/base/input_error.hpp"
#include "src/data/token_shard.hpp"

namespace fp8lab {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::string_view kOurMagic = "fp8ltok\n";
constexpr std::string_view kLlmqMagic = "BIN.TOK\n";
constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
constexpr std::int32_t kLlmCMagic = 20240520;       // GPT-2: version 1, 16-bit ids
constexpr std::int32_t kLlmCLlamaMagic = 20240801;  // Llama 3: version 7, 32-bit ids
constexpr std::size_t kOurHeader = 128;
constexpr std::size_t kLlmCHeader = 256 * sizeof(std::int32_t);  // llmq uses the same size
constexpr std::size_t kMegatronHeader = 34;
constexpr std::uint32_t kHasLossMask = 1;

/// Returns the little-endian number at `offset`, which need not be aligned.
template <class T>
T number_at(Bytes bytes, std::size_t offset) {
  static_assert(std::is_integral_v<T>);
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

bool starts_with(Bytes bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

bool all_zero(Bytes bytes) {
  for (const std::byte byte : bytes) {
    if (byte != std::byte{0}) return false;
  }
  return true;
}

[[noreturn]] void refuse(const std::string& name, ErrorFields fields) {
  fields.where = name;
  throw InputError(std::move(fields));
}

void require_header(Bytes bytes, std::size_t size, const std::string& name) {
  if (bytes.size() < size) {
    refuse(name, {.reason = fmt::format("{} bytes are too few for its {}-byte header", bytes.size(),
                                        size)});
  }
}

/// Splits the bytes after a header into sections.
class Sections {
 public:
  Sections(Bytes rest, std::string name) : rest_(rest), name_(std::move(name)) {}

  /// Returns `count` elements of `width` bytes and skips zeros up to a
  /// multiple of `alignment` bytes.
  Bytes take(std::uint64_t count, std::uint64_t width, std::uint64_t alignment, const char* what) {
    if (count > rest_.size() / width) too_short(what);
    const std::uint64_t size = count * width;
    const std::uint64_t padding = (alignment - size % alignment) % alignment;
    if (padding > rest_.size() - size) too_short(what);
    const Bytes section = rest_.first(size);
    if (!all_zero(rest_.subspan(size, padding))) {
      refuse(name_, {.reason = fmt::format("the bytes after its {} are not zero", what)});
    }
    rest_ = rest_.subspan(size + padding);
    return section;
  }

  void finish() const {
    if (rest_.empty()) return;
    refuse(name_, {.reason = fmt::format("{} bytes more than its header says", rest_.size())});
  }

 private:
  [[noreturn]] void too_short(const char* what) const {
    refuse(name_, {.reason = fmt::format("its {} do not fit into the file: is it cut off?", what)});
  }

  Bytes rest_;
  std::string name_;
};

void require_one_of(const std::string& name, const char* what, std::int64_t value,
                    std::initializer_list<std::int64_t> accepted) {
  std::string words;
  for (const std::int64_t choice : accepted) {
    if (value == choice) return;
    words += (words.empty() ? "" : " or ") + std::to_string(choice);
  }
  refuse(name,
         {.noun = fmt::format("{} is", what), .found = fmt::to_string(value), .accepted = words});
}

void check_vocabulary(const ShardLayout& layout, const std::string& name) {
  const std::int64_t largest = layout.token_bytes == 2 ? 65536 : 0x7fffffff;
  if (layout.vocabulary < 1 || layout.vocabulary > largest) {
    refuse(name,
           {.reason = fmt::format("a vocabulary of {}", layout.vocabulary),
            .accepted = fmt::format("1 to {} with {}-bit ids", largest, 8 * layout.token_bytes)});
  }
  for (const std::int32_t token : {layout.begin, layout.end}) {
    if (token < -1 || token >= layout.vocabulary) {
      refuse(name, {.reason = fmt::format("begin or end is token {} of a vocabulary of {}", token,
                                          layout.vocabulary)});
    }
  }
}

ShardLayout parse_ours(Bytes bytes, const std::string& name) {
  require_header(bytes, kOurHeader, name);
  require_one_of(name, "its version", number_at<std::uint32_t>(bytes, 8), {1});
  const auto bits = number_at<std::uint32_t>(bytes, 12);
  require_one_of(name, "its number of bits a token", bits, {16, 32});
  const auto tokens = number_at<std::uint64_t>(bytes, 16);
  const auto documents = number_at<std::uint64_t>(bytes, 24);
  const auto flags = number_at<std::uint32_t>(bytes, 44);
  if ((flags & ~kHasLossMask) != 0 || !all_zero(bytes.subspan(64, kOurHeader - 64))) {
    refuse(name, {.reason = "its header has flags or fields of a later version"});
  }
  ShardLayout layout;
  layout.token_bytes = bits / 8;
  layout.vocabulary = number_at<std::uint32_t>(bytes, 32);
  layout.begin = number_at<std::int32_t>(bytes, 36);
  layout.end = number_at<std::int32_t>(bytes, 40);
  layout.tokenizer_hash = number_at<std::uint64_t>(bytes, 48);
  layout.content_hash = number_at<std::uint64_t>(bytes, 56);
  check_vocabulary(layout, name);
  if (documents < 1 || documents > tokens / 2) {
    refuse(name, {.reason = fmt::format("{} tokens in {} documents", tokens, documents),
                  .accepted = "at least two tokens in each of at least one"});
  }
  layout.hashed = bytes.subspan(kOurHeader);
  Sections sections(layout.hashed, name);
  layout.document_ends = sections.take(documents, sizeof(std::uint64_t), 8, "document ends");
  layout.tokens = sections.take(tokens, bits / 8, 8, "tokens");
  if ((flags & kHasLossMask) != 0) {
    layout.loss_mask = sections.take(tokens / 8 + (tokens % 8 != 0), 1, 8, "mask bits");
  }
  sections.finish();
  layout.token_count = static_cast<std::int64_t>(tokens);
  return layout;
}

/// Reads a count that llm.c and llmq store as a signed integer.
std::uint64_t positive_count(Bytes bytes, std::size_t offset, const std::string& name) {
  const auto count = number_at<std::int32_t>(bytes, offset);
  if (count < 2)
    refuse(name, {.reason = fmt::format("{} tokens", count), .accepted = "at least two"});
  return static_cast<std::uint64_t>(count);
}

// Karpathy, llm.c, dev/data/data_common.py: 256 int32, then the ids.
ShardLayout parse_llm_c(Bytes bytes, const std::string& name) {
  require_header(bytes, kLlmCHeader, name);
  const bool llama = number_at<std::int32_t>(bytes, 0) == kLlmCLlamaMagic;
  require_one_of(name, "its version", number_at<std::int32_t>(bytes, 4), {llama ? 7 : 1});
  const std::uint64_t tokens = positive_count(bytes, 8, name);
  ShardLayout layout;
  layout.format = ShardFormat::llm_c;
  layout.token_bytes = llama ? 4 : 2;
  layout.token_count = static_cast<std::int64_t>(tokens);
  layout.hashed = bytes.subspan(kLlmCHeader);
  Sections sections(layout.hashed, name);
  layout.tokens =
      sections.take(tokens, static_cast<std::uint64_t>(layout.token_bytes), 1, "tokens");
  sections.finish();
  return layout;
}

// IST-DASLab, llmq, scripts/tokenize_data.py: magic, version, bytes per token, count,
// vocabulary and whether a mask follows (the last two from version 2 on), padded to 1024 bytes;
// then 32-bit ids; then mask bits.
ShardLayout parse_llmq(Bytes bytes, const std::string& name) {
  require_header(bytes, kLlmCHeader, name);
  const auto version = number_at<std::int32_t>(bytes, 8);
  require_one_of(name, "its version", version, {1, 2});
  require_one_of(name, "its number of bytes a token", number_at<std::int32_t>(bytes, 12), {4});
  const std::uint64_t tokens = positive_count(bytes, 16, name);
  const auto masked = version == 2 ? number_at<std::int32_t>(bytes, 24) : 0;
  require_one_of(name, "its mask flag", masked, {0, 1});
  ShardLayout layout;
  layout.format = ShardFormat::llmq;
  layout.token_count = static_cast<std::int64_t>(tokens);
  if (version == 2) {
    layout.vocabulary = number_at<std::int32_t>(bytes, 20);
    check_vocabulary(layout, name);
  }
  layout.hashed = bytes.subspan(kLlmCHeader);
  Sections sections(layout.hashed, name);
  layout.tokens = sections.take(tokens, 4, 1, "tokens");
  if (masked == 1) {
    layout.loss_mask = sections.take(tokens / 8 + (tokens % 8 != 0), 1, 1, "mask bits");
  }
  sections.finish();
  return layout;
}

// NVIDIA, Megatron-LM, megatron/core/datasets/indexed_dataset.py: the .idx contains magic, version,
// dtype code, number of sequences, number of document indices, then lengths (i32), byte offsets
// (i64) and document indices (i64); the .bin contains only ids.
ShardLayout parse_megatron(Bytes bytes, Bytes index, const std::string& name) {
  const std::string index_name = name + " (.idx)";
  require_header(index, kMegatronHeader, index_name);
  if (!starts_with(index, kMegatronMagic))
    refuse(index_name, {.reason = "not an index of Megatron"});
  const auto version = number_at<std::uint64_t>(index, 9);
  if (version != 1)
    refuse(index_name, {.reason = fmt::format("its version is {}", version), .accepted = "1"});
  const auto code = std::to_integer<std::int64_t>(index[17]);
  if (code != 4 && code != 8) {
    refuse(index_name, {.reason = fmt::format("ids of dtype code {}", code),
                        .accepted = "4 (int32) or 8 (uint16)"});
  }
  const auto sequences = number_at<std::uint64_t>(index, 18);
  const auto marks = number_at<std::uint64_t>(index, 26);
  if (sequences < 1 || marks < 2) {
    refuse(index_name,
           {.reason = fmt::format("{} sequences and {} document indices", sequences, marks),
            .accepted = "at least one document"});
  }
  Sections sections(index.subspan(kMegatronHeader), index_name);
  ShardLayout layout;
  layout.sequence_lengths = sections.take(sequences, 4, 1, "sequence lengths");
  layout.sequence_offsets = sections.take(sequences, 8, 1, "sequence offsets");
  layout.document_indices = sections.take(marks, 8, 1, "document indices");
  sections.finish();  // multimodal files have sequence modes after this
  layout.format = ShardFormat::megatron;
  layout.token_bytes = code == 8 ? 2 : 4;
  const auto width = static_cast<std::size_t>(layout.token_bytes);
  if (bytes.empty() || bytes.size() % width != 0) {
    refuse(name, {.reason = fmt::format("{} bytes are no whole number of {}-byte ids", bytes.size(),
                                        width)});
  }
  layout.tokens = bytes;
  layout.token_count = static_cast<std::int64_t>(bytes.size() / width);
  layout.hashed = bytes;
  layout.hashed_index = index;
  return layout;
}

}  // namespace

const char* name_of(ShardFormat format) {
  switch (format) {
    case ShardFormat::fp8lab: return "fp8lab";
    case ShardFormat::llm_c: return "llm.c";
    case ShardFormat::llmq: return "llmq";
    case ShardFormat::megatron: return "Megatron";
  }
  return "";
}

ShardLayout parse_shard_layout(Bytes bytes, Bytes index, const std::string& name) {
  if (!index.empty()) return parse_megatron(bytes, index, name);
  if (starts_with(bytes, kOurMagic)) return parse_ours(bytes, name);
  if (starts_with(bytes, kLlmqMagic)) return parse_llmq(bytes, name);
  if (bytes.size() >= sizeof(std::int32_t)) {
    const auto magic = number_at<std::int32_t>(bytes, 0);
    if (magic == kLlmCMagic || magic == kLlmCLlamaMagic) return parse_llm_c(bytes, name);
  }
  refuse(
      name,
      {.reason = "not a token file",
       .accepted =
           "shards of fp8lab.tokens, of llm.c and of llmq, and Megatron's .bin beside its .idx"});
}

}  // namespace fp8lab
