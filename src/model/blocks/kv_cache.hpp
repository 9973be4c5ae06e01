// The key-value cache: keys and values of past tokens, for each layer.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"
#include "src/data/batch.hpp"

namespace fp8lab {

/// How a cache stores keys and values.
struct KvStorage {
  DType keys = DType::bf16, values = DType::bf16;  ///< of activations, or u8 codes
  std::int64_t key_scales = 0;                     ///< scales of each token's keys; 0: none
};

/// Memory for `sequences` sequences of at most `capacity` tokens.
class KvCache {
 public:
  /// The memory lives as long as the backend's.
  KvCache(Backend& backend, const ModelConfig& model, const KvStorage& storage,
          std::int64_t sequences, std::int64_t capacity);

  /// Keys and values of one layer: (sequences * capacity, kv_heads * head_dim) each, and the scales
  /// of keys, f32, if each token has its own.
  struct Layer {
    TensorView keys, values, key_scales;
  };
  const Layer& layer(std::int64_t index) const { return layers_[static_cast<std::size_t>(index)]; }
  std::int64_t sequences() const { return sequences_; }
  std::int64_t capacity() const { return capacity_; }

  /// Arguments of ops::AttentionCached for the next tokens.
  const TensorView& query_start() const { return query_start_; }
  const TensorView& cached() const { return cached_; }

 private:
  std::int64_t sequences_, capacity_;
  std::vector<Layer> layers_;
  TensorView query_start_, cached_;
};

/// New tokens of sequences in a cache, sequence by sequence; positions are those in the sequence.
struct CachedBatch : Columns {
  CachedBatch();  ///< of the columns that are cached

  std::vector<std::int32_t> query_start;  ///< first token of each sequence, and their number
  std::vector<std::int32_t> cached;       ///< tokens of each sequence that the cache holds already
  std::vector<std::int32_t> wanted;       ///< tokens, ascending, whose logits are asked for
};

}  // namespace fp8lab
