#include "src/model/blocks/kv_cache.hpp"

namespace fp8lab {

KvCache::KvCache(Backend& backend, const ModelConfig& model, DType dtype, std::int64_t sequences,
                 std::int64_t capacity)
    : sequences_(sequences),
      capacity_(capacity),
      query_start_(backend.allocate(DType::i32, 1, sequences + 1)),
      cached_(backend.allocate(DType::i32, 1, sequences)) {
  const std::int64_t rows = sequences * capacity;
  const std::int64_t cols = model.num_key_value_heads * model.head_dim;
  for (std::int64_t i = 0; i < model.layer_count(); ++i) {
    layers_.push_back({backend.allocate(dtype, rows, cols), backend.allocate(dtype, rows, cols)});
  }
}

CachedBatch::CachedBatch() {
  for (const ColumnSpec& column : kBatchColumns) {
    if (column.is_cached) add(column);
  }
}

}  // namespace fp8lab
