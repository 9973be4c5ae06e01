// Token files. The first byte says whether a Megatron index comes first (then two bytes with its
// length), whether the content hash of a shard of ours is made right, and by which id files without
// boundaries are cut.
#include "src/data/token_shard.hpp"

#include <algorithm>

#include "src/io/hash.hpp"
#include "tests/fuzz/fuzz_target.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

namespace {

constexpr std::size_t kHeader = 128, kContentHash = 56;

void sign(std::string& bytes) {
  if (bytes.size() < kHeader) return;
  const std::uint64_t hash = xxh3(bytes.data() + kHeader, bytes.size() - kHeader);
  std::memcpy(bytes.data() + kContentHash, &hash, sizeof hash);
}

/// Looks at every token of every document.
void check(const TokenShard& shard) {
  std::int64_t tokens = 0, trained = 0, targets = 0;
  for (std::int64_t i = 0; i < shard.documents(); ++i) {
    const DocumentView document = shard.document(i);
    fuzz::require(document.size >= 1, "a document is empty");
    tokens += document.size;
    targets += document.size - 1;
    for (std::int64_t j = 0; j < document.size; ++j) {
      const std::int32_t token = document.token(j);
      fuzz::require(token >= 0 && token < shard.vocabulary(), "a token is beyond the vocabulary");
      trained += document.trained(j) ? 1 : 0;
    }
  }
  fuzz::require(tokens == shard.layout().token_count, "documents do not cover the tokens");
  const bool masked = !shard.layout().loss_mask.empty();
  fuzz::require(shard.trained_tokens() == (masked ? trained : targets),
                "trained tokens miscounted");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Choices choices(data, std::min<std::size_t>(size, 3));
  const auto mode = choices.value<std::uint8_t>();
  const bool megatron = (mode & 1) != 0;
  const auto index_size = megatron ? choices.value<std::uint16_t>() : std::uint16_t{0};
  const std::size_t used = std::min<std::size_t>(size, megatron ? 3 : 1);
  const std::string rest = fuzz::text_of(data + used, size - used);
  const std::string index = rest.substr(0, std::min<std::size_t>(index_size, rest.size()));
  std::string bytes = rest.substr(index.size());
  if ((mode & 2) != 0) sign(bytes);
  DocumentDelimiter delimiter;
  if ((mode & 4) != 0) delimiter.begin = mode >> 4;
  if ((mode & 12) == 8) delimiter.end = mode >> 4;
  const auto as_bytes = [](const std::string& text) {
    return std::span(reinterpret_cast<const std::byte*>(text.data()), text.size());
  };
  fuzz::accept_error(
      [&] { check(TokenShard(as_bytes(bytes), as_bytes(index), "x.tokens", delimiter)); });
  return 0;
}
