// The tasks that blocks of the forward passes on wgmma (attention_forward_wgmma.cu,
// quantized_forward_wgmma.cu) process: for packed documents, and against a cache.
#pragma once

#include "kernels/attention/attention_forward.cuh"
#include "kernels/runtime/fault.cuh"

namespace fp8lab::cuda {

/// The rows of queries in a tensor map of (column, row, matrix).
struct QueryRows {
  int row, matrix;
};

/// Sequences of packed documents, all of the same length.
struct PackedSequences {
  static constexpr bool kIsCached = false;
  using Sequence = PackedSequence;

  __host__ __device__ int tiles(const AttentionProblem& problem) const { return problem.tiles(); }
  __device__ Sequence of(const AttentionProblem& problem, int b) const { return {problem, b}; }
  __device__ static QueryRows query_rows(const Sequence& sequence, int position) {
    return {position, sequence.b};
  }
  __device__ static void check(const Sequence& sequence, int position, std::uint32_t* faults) {
    const AttentionProblem& problem = sequence.problem;
    if (problem.document(sequence.b, position) !=
        problem.document_start[problem.token(sequence.b, position)]) {
      report(faults, Fault::document_start);
    }
  }
};

/// New tokens in a cache; their number differs between sequences.
struct CachedSequences {
  static constexpr bool kIsCached = true;
  using Sequence = CachedSequence;

  NewTokens tokens;

  /// Returns the largest number of q tiles that a sequence can have.
  __host__ __device__ int tiles(const AttentionProblem&) const {
    const int most = tokens.rows < tokens.capacity ? tokens.rows : tokens.capacity;
    return (most + kTileRows - 1) / kTileRows;
  }
  __device__ Sequence of(const AttentionProblem&, int b) const {
    return tokens.fits(b) ? tokens.sequence(b) : Sequence{};
  }
  __device__ static QueryRows query_rows(const Sequence& sequence, int position) {
    return {static_cast<int>(sequence.query_row(position)), 0};
  }
  __device__ static void check(const Sequence&, int, std::uint32_t*) {}
};

/// 64 queries of one head, and the kv tiles with a key that one of them sees.
struct Item {
  int head, query;
  int first, last;  ///< kv tiles; last = 0: no item for this warpgroup
  int clear;        ///< all of these queries see the keys from here to the first query
};

/// A unit of work of a block with kConsumers consumer warpgroups.
template <int kConsumers>
struct Task {
  int b, kv_head;   ///< b < 0: no work is left
  int first, last;  ///< kv tiles of all items
  Item items[kConsumers];
};

/// The tasks of a call. A block takes the next task when it has issued the copies of the last.
template <class Sequences, int kConsumers>
class Tasks {
 public:
  using Task = cuda::Task<kConsumers>;
  using Sequence = typename Sequences::Sequence;

  /// Precondition: the word `next` is zero between kernels.
  __device__ Tasks(const AttentionProblem& problem, const Sequences& sequences, unsigned* next,
                   std::uint32_t* faults)
      : problem_(problem), sequences_(sequences), next_(next), faults_(faults) {}

  __host__ __device__ static int count(const AttentionProblem& problem,
                                       const Sequences& sequences) {
    return lists(problem) * ((items(problem, sequences) + kConsumers - 1) / kConsumers);
  }

  /// Takes the next task. The last block to find no task left resets the word.
  /// Precondition: the whole warp calls it.
  __device__ Task take() const {
    const int count = Tasks::count(problem_, sequences_);
    while (true) {
      int index = 0;
      if (lane_id() == 0) {
        index = static_cast<int>(atomicInc(next_, static_cast<unsigned>(count) + gridDim.x - 1));
      }
      index = __shfl_sync(kAllLanes, index, 0);
      if (index >= count) {
        Task none{};
        none.b = -1;
        return none;
      }
      const Task task = find_task(index);
      if (task.last > 0) return task;  // else the sequence has no such tiles
    }
  }

 private:
  /// Number of key-value heads of all sequences, and of items for each of them.
  __host__ __device__ static int lists(const AttentionProblem& p) { return p.batch * p.kv_heads; }
  __host__ __device__ static int items(const AttentionProblem& p, const Sequences& sequences) {
    return sequences.tiles(p) * p.group();
  }

  __device__ Task find_task(int index) const {
    const int list = index % lists(problem_), first = index / lists(problem_) * kConsumers;
    Task task{};
    task.b = list / problem_.kv_heads;
    task.kv_head = list % problem_.kv_heads;
    task.first = problem_.tiles();
    const Sequence sequence = sequences_.of(problem_, task.b);
#pragma unroll
    for (int c = 0; c < kConsumers; ++c) {
      if (first + c >= items(problem_, sequences_)) continue;
      task.items[c] = find_item(sequence, task.kv_head, first + c);
      if (task.items[c].last == 0) continue;
      task.first = min(task.first, task.items[c].first);
      task.last = max(task.last, task.items[c].last);
    }
    return task;
  }

  /// Returns item `index` of a key-value head, later queries first; an empty item if
  /// there are no such queries.
  __device__ Item find_item(const Sequence& sequence, int kv_head, int index) const {
    const int tile = sequences_.tiles(problem_) - 1 - index / problem_.group();
    Item item{};
    item.head = kv_head * problem_.group() + index % problem_.group();
    item.query = sequence.first() + tile * kTileRows;
    if (item.query >= sequence.length()) return item;
    const int end = min(item.query + kTileRows, sequence.length());
    item.last = (end - 1) / kTileRows + 1;
    if (Sequences::kIsCached && problem_.window >= sequence.length()) return item;
    int least = item.query, most = 0;
    for (int i = item.query + lane_id(); i < end; i += kWarpSize) {
      Sequences::check(sequence, i, faults_);
      const int start = sequence.start(i);
      least = min(least, start);
      most = max(most, start);
    }
    item.first = __reduce_min_sync(kAllLanes, least) / kTileRows;
    item.clear = __reduce_max_sync(kAllLanes, most);
    return item;
  }

  const AttentionProblem& problem_;
  const Sequences& sequences_;
  unsigned* next_;
  std::uint32_t* faults_;
};

}  // namespace fp8lab::cuda
