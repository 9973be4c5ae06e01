// Attention backward on wgmma: heads of D = 64 or 128 columns in bf16, in the order of
// emulation/ops/attention/attention.hpp. Each result is computed by one warpgroup.
//
//   query_facts_kernel      lse, delta = tree_sum(dout * out) and document start of 64 queries of a
//                           head in one record; four threads a query
//   key_gradients_kernel    dK, dV: a block has 128 keys of a kv head, 64 for each of its two
//                           consumer warpgroups; query heads of the group ascending, tiles of 64
//                           queries ascending
//   query_gradients_kernel  dQ: 128 queries of a head likewise; tiles of 64 keys ascending. A block
//                           processes several tasks one after another
//
//   producer warpgroup                    shared memory                      consumer warpgroups
//   one warp: which tiles are     +----------------------------+
//   seen; one thread: TMA         | keys:    K 2 x 64, V 2 x 64|  once       A operands
//        |                        +----------------------------+
//        +----------------------> | stage s: Q 64, dO 64, facts|  ring of    B operands, both ways
//        |                        |          which pairs       |  kStages    round: rows x D for
//        |   full[s]: arrived     +----------------------------+             the scores, D x rows
//        |   empty[s]: every      for dQ a stage holds K 64, V 64; Q and     for the sums
//        |   consumer warp has    dO are A operands in registers
//        |   read it
//
//   A tile is D / 64 blocks of 64 rows by 64 columns in the 128-byte swizzle: K-contiguous for
//   products over D, with contiguous rows for products over queries or keys.
//
//   A warpgroup's tile of 64 keys by 64 queries, transposed (rows are keys), in registers:
//     S^T = chain(0; K, Q^T), dP^T = chain(0; V, dO^T)     issued together
//     P = 2^(S * scale - lse)                              while dP^T is in flight
//     dS = P * (dP - delta)
//     dV = chain(dV; P^T, dO), dK = chain(dK; dS^T, Q)     issued together
//   The fragment of S^T, rounded, is the A operand P^T: it does not go through shared memory.
//   While one warpgroup is between its products, those of the other run. For dQ rows are queries,
//   and dS K, the only sum, is still in flight when the next tile's scores are issued.
//
// Open tiles, in which all pairs are visible, have loops of their own. Masked tiles are processed
// one by one, without overlap, and summed with mma.sync by groups of 16. The groups that the CPU
// skips are skipped: for dK and dV for all 64 keys together, for dQ for the 16 queries of a warp.
// So the bits agree even if an operand is not finite.
#include "kernels/attention/attention_backward.cuh"

#include <algorithm>

#include "kernels/attention/key_gradients.cuh"
#include "kernels/attention/query_facts.cuh"
#include "kernels/attention/query_gradients.cuh"
#include "kernels/runtime/tensor_map.hpp"

namespace fp8lab::cuda {
namespace {

/// Returns a map with boxes of 64 positions of one sequence by 64 columns.
CUtensorMap rows_map(const AttentionProblem& problem, const TensorView& view) {
  return tensor_map(view.data, 2,
                    {{view.cols, 1, kSwizzleColumns},
                     {problem.sequence, view.row_stride, kTileRows},
                     {problem.batch, problem.sequence * view.row_stride, 1}},
                    CU_TENSOR_MAP_SWIZZLE_128B);
}

template <class... Parameters, class... Arguments>
void launch(Context& context, const char* name, void (*kernel)(Parameters...), std::int64_t blocks,
            std::size_t bytes, const Arguments&... arguments) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        name);
  kernel<<<static_cast<unsigned>(blocks), kBackwardThreads, bytes, context.stream()>>>(
      arguments...);
  check_launch(name);
}

template <int kDim, class Out>
void find_facts(Context& context, const ops::AttentionBackward& op, const AttentionProblem& problem,
                const FactsTable& facts) {
  const std::int64_t blocks = std::int64_t{problem.heads} * problem.batch * problem.tiles();
  query_facts_kernel<kDim, Out>
      <<<static_cast<unsigned>(blocks), kTileRows * kFactsThreads, 0, context.stream()>>>(
          problem, operand_rows<std::uint16_t>(op.dout), operand_rows<Out>(op.out),
          result_rows(op.lse), facts);
  check_launch("attention query facts");
}

template <int kDim>
void backward(Context& context, const ops::AttentionBackward& op, const AttentionProblem& problem,
              const FactsTable& facts) {
  if (op.out.dtype == DType::bf16) {
    find_facts<kDim, std::uint16_t>(context, op, problem, facts);
  } else {
    find_facts<kDim, float>(context, op, problem, facts);
  }
  const BackwardMaps maps{rows_map(problem, op.q), rows_map(problem, op.k), rows_map(problem, op.v),
                          rows_map(problem, op.dout)};
  const std::int64_t tiles = (problem.sequence + kBlockTile - 1) / kBlockTile * problem.batch;
  launch(context, "attention key gradients", key_gradients_kernel<kDim>, tiles * problem.kv_heads,
         sizeof(KeyShared<kDim>), problem, maps, facts, result_rows(op.dk), result_rows(op.dv));
  const std::int64_t tasks = tiles * problem.heads;
  launch(context, "attention query gradients", query_gradients_kernel<kDim>,
         std::min<std::int64_t>(tasks, context.multiprocessors()), sizeof(QueryShared<kDim>),
         problem, maps, operand_rows<std::uint16_t>(op.q), operand_rows<std::uint16_t>(op.dout),
         facts, result_rows(op.dq), static_cast<int>(tasks));
}

/// Returns true if rows are aligned to 16 bytes.
bool aligned(const TensorView& view) {
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  return address % 16 == 0 && view.row_stride * size_of(view.dtype) % 16 == 0;
}

}  // namespace

bool fits_wgmma(const ops::AttentionBackward& op, const AttentionProblem& problem) {
  if (op.q.dtype != DType::bf16 || (problem.head_dim != 64 && problem.head_dim != 128)) {
    return false;
  }
  if (problem.kv_tile % kTileRows != 0 && problem.kv_tile < problem.sequence) return false;
  const TensorView* const views[] = {&op.q,    &op.k,  &op.v,  &op.out,
                                     &op.dout, &op.dq, &op.dk, &op.dv};
  return std::all_of(std::begin(views), std::end(views),
                     [](const TensorView* view) { return aligned(*view); });
}

std::size_t backward_wgmma_workspace(const AttentionShape& shape) {
  const std::int64_t tiles = (shape.sequence + kTileRows - 1) / kTileRows;
  return static_cast<std::size_t>(shape.heads * shape.batch * tiles) * sizeof(QueryFacts);
}

void attention_backward_wgmma(Context& context, const ops::AttentionBackward& op,
                              const AttentionProblem& problem, void* workspace) {
  const FactsTable facts{static_cast<QueryFacts*>(workspace)};
  if (problem.head_dim == 64) {
    backward<64>(context, op, problem, facts);
  } else {
    backward<128>(context, op, problem, facts);
  }
}

}  // namespace fp8lab::cuda
