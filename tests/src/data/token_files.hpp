// Bytes of token files as their writers lay them out, written here a second time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "src/io/hash.hpp"

namespace fp8lab::test {

/// Appends little-endian numbers.
class ByteWriter {
 public:
  template <class T>
  ByteWriter& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  ByteWriter& text(const std::string& text) {
    bytes_ += text;
    return *this;
  }
  ByteWriter& zeros_until(std::size_t size) {
    bytes_.resize(size, '\0');
    return *this;
  }
  template <class T>
  ByteWriter& all(const std::vector<std::int64_t>& values) {
    for (const std::int64_t value : values) put(static_cast<T>(value));
    return *this;
  }
  ByteWriter& align(std::size_t size) {
    return zeros_until((bytes_.size() + size - 1) / size * size);
  }
  /// Least significant bit first.
  ByteWriter& bits(const std::string& digits) {
    std::string packed((digits.size() + 7) / 8, '\0');
    for (std::size_t i = 0; i < digits.size(); ++i) {
      if (digits[i] == '1') packed[i / 8] = static_cast<char>(packed[i / 8] | 1 << i % 8);
    }
    return text(packed);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

template <class T>
void overwrite(std::string& bytes, std::size_t offset, T value) {
  bytes.replace(offset, sizeof value, reinterpret_cast<const char*>(&value), sizeof value);
}

/// Makes the content hash of a shard of ours right again.
inline void sign(std::string& shard) {
  overwrite(shard, 56, xxh3(shard.data() + 128, shard.size() - 128));
}

struct ShardText {
  std::vector<std::int64_t> tokens, ends;
  std::string mask;  ///< a digit a token; empty: none
  std::uint32_t bits = 16;
  std::uint32_t vocabulary = 50;
  std::uint64_t tokenizer = 0x1234;
};

/// A shard of ours: begin is 0, end is 1.
inline std::string our_shard(const ShardText& shard) {
  ByteWriter writer;
  writer.text("fp8ltok\n").put<std::uint32_t>(1).put(shard.bits);
  writer.put<std::uint64_t>(shard.tokens.size()).put<std::uint64_t>(shard.ends.size());
  writer.put(shard.vocabulary).put<std::int32_t>(0).put<std::int32_t>(1);
  writer.put<std::uint32_t>(shard.mask.empty() ? 0 : 1).put(shard.tokenizer);
  writer.zeros_until(128).all<std::uint64_t>(shard.ends);
  if (shard.bits == 16) {
    writer.all<std::uint16_t>(shard.tokens);
  } else {
    writer.all<std::uint32_t>(shard.tokens);
  }
  writer.align(8);
  if (!shard.mask.empty()) writer.bits(shard.mask).align(8);
  std::string bytes = writer.bytes();
  sign(bytes);
  return bytes;
}

/// llm.c: GPT-2's header with 16-bit ids, or Llama 3's with 32-bit ids.
inline std::string llm_c_file(const std::vector<std::int64_t>& tokens, bool llama) {
  ByteWriter writer;
  writer.put<std::int32_t>(llama ? 20240801 : 20240520).put<std::int32_t>(llama ? 7 : 1);
  writer.put(static_cast<std::int32_t>(tokens.size())).zeros_until(1024);
  return (llama ? writer.all<std::uint32_t>(tokens) : writer.all<std::uint16_t>(tokens)).bytes();
}

/// llmq, version 2, with a mask if `mask` is not empty.
inline std::string llmq_file(const std::vector<std::int64_t>& tokens, const std::string& mask,
                             std::int32_t vocabulary = 50) {
  ByteWriter writer;
  writer.text("BIN.TOK\n").put<std::int32_t>(2).put<std::int32_t>(4);
  writer.put(static_cast<std::int32_t>(tokens.size())).put(vocabulary);
  writer.put<std::int32_t>(mask.empty() ? 0 : 1).zeros_until(1024);
  return writer.all<std::int32_t>(tokens).bits(mask).bytes();
}

/// Megatron's .idx for sequences of these lengths and documents that end at these sequences.
inline std::string megatron_index(const std::vector<std::int64_t>& lengths,
                                  const std::vector<std::int64_t>& documents, bool wide) {
  ByteWriter writer;
  writer.text(std::string("MMIDIDX\0\0", 9)).put<std::uint64_t>(1);
  writer.put<std::uint8_t>(wide ? 4 : 8);
  writer.put<std::uint64_t>(lengths.size()).put<std::uint64_t>(documents.size());
  std::vector<std::int64_t> offsets;
  std::int64_t offset = 0;
  for (const std::int64_t length : lengths) {
    offsets.push_back(offset);
    offset += length * (wide ? 4 : 2);
  }
  return writer.all<std::int32_t>(lengths)
      .all<std::int64_t>(offsets)
      .all<std::int64_t>(documents)
      .bytes();
}

/// Megatron's .bin.
inline std::string megatron_ids(const std::vector<std::int64_t>& tokens, bool wide) {
  ByteWriter writer;
  return (wide ? writer.all<std::int32_t>(tokens) : writer.all<std::uint16_t>(tokens)).bytes();
}

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace fp8lab::test
