// The online softmax of 64 queries in the accumulators of wgmma, for tiles of 64 keys
// (emulation/ops/attention/attention.hpp and quantized_attention.hpp).
#pragma once

#include <cstdint>

#include "emulation/numerics/attention_weight.hpp"
#include "kernels/attention/attention.cuh"
#include "kernels/ptx/ptx.cuh"

namespace fp8lab::cuda {

/// The two rows of scores that a thread has of its warp's 16 queries: what they see, their maxima
/// m, and the factors alpha by which a new maximum reduces l and O.
class SoftmaxRows {
 public:
  using Scores = float[kTileRows / 2];  ///< 64 rows by 64 keys; element i: row i / 2 % 2

  /// Begins with the 16 queries from `query` on, in a sequence whose queries end at `end`.
  template <class Sequence>
  __device__ void begin(const Sequence& sequence, int query, int end) {
    query_ = query;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = query + fragment_row() + 8 * r;
      position_[r] = i < end ? i : -1;
      start_[r] = i < end ? sequence.start(i) : 0;
      maximum_[r] = kMinusInfinity;
    }
  }

  /// The query of a row; -1 past the sequence.
  __device__ int position(int r) const { return position_[r]; }
  __device__ float maximum(int r) const { return maximum_[r]; }
  /// True if alpha is not 1 for some row of the warp.
  __device__ bool rescales() const { return rescales_; }
  __device__ float alpha(int r) const { return alpha_[r]; }

  /// Turns the scores of the keys from `key` on, in units of 1 / factor of their row, into
  /// 2^kPower P, and updates the maximum and alpha. `masked`: some pairs are masked.
  template <int kPower = 0>
  __device__ void weigh(Scores& s, int key, bool masked, const float (&factor)[2]) {
    static_assert(kPower >= 0 && kPower <= 62 && kPower % 2 == 0);
    Seen seen;
    // Factors are not negative, so rounded products with them are in the order of the scores.
    float most[2];
    if (masked) {
      seen = find_seen(key);
      Scores shown;
#pragma unroll
      for (int i = 0; i < kTileRows / 2; ++i) shown[i] = seen[i] ? s[i] : kMinusInfinity;
      find_largest(shown, most);
    } else {
      find_largest(s, most);
    }
    const float before[2] = {maximum_[0], maximum_[1]};
#pragma unroll
    for (int r = 0; r < 2; ++r) maximum_[r] = fmaxf(maximum_[r], most[r] * factor[r]);
    find_alpha(before);
    // Distances from the maximum; from 0 if a row has none. Non-negative distances compare like
    // their bits, with NaN above all.
    float reference[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference[r] = maximum_[r] == kMinusInfinity ? 0.0f : maximum_[r];
    }
#pragma unroll
    for (int i = 0; i < kTileRows / 2; ++i) {
      s[i] = numerics::score_distance(s[i], factor[i / 2 % 2], reference[i / 2 % 2]);
    }
    int farthest = 0;
#pragma unroll
    for (int i = 0; i < kTileRows / 2; i += 2) {
      farthest = __vimax3_s32(farthest, __float_as_int(s[i]), __float_as_int(s[i + 1]));
    }
    // The sign of infinity times 0 is not that of every machine: such factors take the long form.
    const bool near = fmaxf(fabsf(reference[0]), fabsf(reference[1])) < numerics::kNearReference &&
                      fmaxf(factor[0], factor[1]) < -kMinusInfinity;
    if (__all_sync(kAllLanes, near && farthest <= __float_as_int(numerics::kNormalWeight))) {
#pragma unroll
      for (int i = 0; i < kTileRows / 2; ++i) {
        s[i] = numerics::normal_attention_weight(s[i], numerics::kF32ToInteger - kPower);
      }
      if (masked) {
#pragma unroll
        for (int i = 0; i < kTileRows / 2; ++i) s[i] = seen[i] ? s[i] : 0.0f;
      }
    } else {
      // the last group that the warp sees
      const int last_group = (query_ + kChainGroup - 1 - key) / kChainGroup;
#pragma unroll
      for (int group = 0; group < kTileRows / kChainGroup; ++group) {
        weigh_group(s, group, group <= last_group, seen,
                    static_cast<float>(std::uint64_t{1} << kPower));
      }
    }
  }

 private:
  /// Visibility of a thread's elements: of_row[r] has one bit for each of row r's elements, in the
  /// order of their columns, set if the query sees the key.
  struct Seen {
    std::uint32_t of_row[2] = {0xFFFFu, 0xFFFFu};

    __device__ bool operator[](int i) const {
      return (of_row[i / 2 % 2] & 1u << (2 * (i / 4) + i % 2)) != 0;
    }
  };
  /// Returns the bits of columns below `limit`; a row has columns 8 n and 8 n + 1 for n < 8.
  __device__ static std::uint32_t columns_below(int limit) {
    const int inside = min(max(limit, 0), kTileRows);
    return (1u << (2 * (inside / 8) + min(inside % 8, 2))) - 1u;
  }
  __device__ Seen find_seen(int key) const {
    Seen seen;
    const int first = key + fragment_column();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      seen.of_row[r] = columns_below(position_[r] + 1 - first) & ~columns_below(start_[r] - first);
    }
    return seen;
  }

  /// Computes `scale` times P of 16 keys of a tile, for any distances from the maximum. `wanted`:
  /// the warp sees one of the keys.
  __device__ static void weigh_group(Scores& s, int group, bool wanted, const Seen& seen,
                                     float scale) {
    if (wanted) {
#pragma unroll
      for (int i = 8 * group; i < 8 * group + 8; ++i) {
        const float p = numerics::attention_weight(s[i]) * scale;
        s[i] = seen[i] ? p : 0.0f;
      }
    } else {
#pragma unroll
      for (int i = 8 * group; i < 8 * group + 8; ++i) s[i] = 0.0f;
    }
  }

  /// Finds the largest number of each row.
  __device__ static void find_largest(const Scores& s, float (&most)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float high[2] = {s[2 * r], s[2 * r + 1]};
#pragma unroll
      for (int i = 4 + 2 * r; i < kTileRows / 2; i += 4) {
#pragma unroll
        for (int e = 0; e < 2; ++e) high[e] = fmaxf(high[e], s[i + e]);
      }
      most[r] = fmaxf(high[0], high[1]);
#pragma unroll
      for (int span = 1; span <= 2; span *= 2) {
        most[r] = fmaxf(most[r], __shfl_xor_sync(kAllLanes, most[r], span));
      }
    }
  }

  /// Computes alpha = 2^(m - m') if some row of the warp has a new maximum; alpha
  /// is 1 for rows without one.
  __device__ void find_alpha(const float (&before)[2]) {
    rescales_ = __any_sync(kAllLanes, before[0] != maximum_[0] || before[1] != maximum_[1]) != 0;
    if (!rescales_) return;
    const bool lower = own_row() == 1;
    const float from = lower ? before[1] : before[0], to = lower ? maximum_[1] : maximum_[0];
    const float power = numerics::attention_weight(to - from);
    const float own = from == kMinusInfinity ? 0.0f : power;
    const float other = __shfl_xor_sync(kAllLanes, own, 2);
    alpha_[0] = lower ? other : own;
    alpha_[1] = lower ? own : other;
  }

  /// Returns which of the thread's two rows this lane computes alpha for.
  __device__ static int own_row() { return lane_id() / 2 % 2; }

  int query_;  ///< of the warp's first row
  int position_[2], start_[2];
  float maximum_[2], alpha_[2];
  bool rescales_;
};

}  // namespace fp8lab::cuda
