// Draws the shapes, documents and arrivals of attention cases.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "emulation/cases/case_draw.hpp"
#include "emulation/ops/attention/attention.hpp"

namespace fp8lab {

/// Draws a shape for this round.
AttentionShape draw_attention_shape(CaseDraw& draw);

/// Draws heads as in models, over whole tiles of keys.
AttentionShape draw_model_attention_shape(CaseDraw& draw);

/// Draws documents of random lengths in every sequence, `length` tokens on average.
HostTensor draw_documents(CaseDraw& draw, const AttentionShape& a, std::uint32_t length);

/// New tokens of each sequence of a cache (one, many or none) and the number
/// of tokens already in it.
struct Arrivals {
  AttentionShape shape;
  HostTensor start, cached;
  std::int64_t tokens = 0;

  Arrivals(CaseDraw& draw, const AttentionShape& a)
      : shape(a), start(draw.integers(a.batch + 1, 0, 0)), cached(draw.integers(a.batch, 0, 0)) {
    auto* first = reinterpret_cast<std::int32_t*>(start.data.data());
    auto* held = reinterpret_cast<std::int32_t*>(cached.data.data());
    for (std::int64_t b = 0; b < a.batch; ++b) {
      const bool one = draw.one_in(2);
      const std::int64_t count = one ? 1 : draw.integer(b == 0 ? 1 : 0, a.sequence);
      first[b + 1] = first[b] + static_cast<std::int32_t>(count);
      held[b] = static_cast<std::int32_t>(draw.integer(0, a.sequence - count));
    }
    tokens = first[a.batch];
  }

  /// Fills the rows of a cache that must not be read, those after the last token, with NaN.
  void spoil(HostTensor& cache) const {
    const auto* first = reinterpret_cast<const std::int32_t*>(start.data.data());
    const auto* held = reinterpret_cast<const std::int32_t*>(cached.data.data());
    const auto bytes = static_cast<std::ptrdiff_t>(cache.data.size()) / cache.rows;
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      const std::int64_t end = held[b] + first[b + 1] - first[b];
      std::fill(cache.data.begin() + (b * shape.sequence + end) * bytes,
                cache.data.begin() + (b + 1) * shape.sequence * bytes, std::byte{0xff});
    }
  }
};

}  // namespace fp8lab
