#include "src/model/blocks/kv_cache.hpp"

namespace fp8lab {

KvCache::KvCache(Backend& backend, const ModelConfig& model, const KvStorage& storage,
                 std::int64_t sequences, std::int64_t capacity)
    : sequences_(sequences),
      capacity_(capacity),
      query_start_(backend.allocate(DType::i32, 1, sequences + 1)),
      cached_(backend.allocate(DType::i32, 1, sequences)) {
  const std::int64_t rows = sequences * capacity;
  const std::int64_t cols = model.num_key_value_heads * model.head_dim;
  for (std::int64_t i = 0; i < model.layer_count(); ++i) {
    Layer& layer = layers_.emplace_back();
    layer.keys = backend.allocate(storage.keys, rows, cols);
    layer.values = backend.allocate(storage.values, rows, cols);
    if (storage.key_scales == 0) continue;
    layer.key_scales = backend.allocate(backend.storage(DType::f32), rows, storage.key_scales);
  }
}

CachedBatch::CachedBatch() {
  for (const ColumnSpec& column : kBatchColumns) {
    if (column.is_cached) add(column);
  }
}

}  // namespace fp8lab
