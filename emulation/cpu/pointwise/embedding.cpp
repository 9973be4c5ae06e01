#include <algorithm>
#include <string>

#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/row_access.hpp"
#include "emulation/ops/checks.hpp"

namespace fp8lab::cpu {
namespace {

constexpr std::int64_t kColumnChunk = 64;  // columns processed at a time; no effect on bits

void check_tokens(const char* operation, const TensorView& tokens, std::int64_t vocabulary) {
  const std::int32_t* id = tokens.row<std::int32_t>(0);
  for (std::int64_t t = 0; t < tokens.cols; ++t) {
    if (id[t] < 0 || id[t] >= vocabulary) {
      Checks(operation).fail("token " + std::to_string(id[t]) + " at position " +
                             std::to_string(t) + " is outside the table of " +
                             std::to_string(vocabulary) + " rows");
    }
  }
}

}  // namespace

void run(const ops::EmbeddingForward& op) {
  op.check();
  check_tokens("embedding_forward", op.tokens, op.table.rows);
  const PointwiseKernels& kernels = pointwise_kernels();
  const std::int32_t* id = op.tokens.row<std::int32_t>(0);
  for_each_row(op.out.rows, op.table.cols, [&](std::int64_t t, float* scratch) {
    write_row(kernels, read_row(kernels, op.table, id[t], scratch), op.out.cols, op.out, t);
  });
}

void run(const ops::EmbeddingBackward& op) {
  op.check();
  check_tokens("embedding_backward", op.tokens, op.dtable.rows);
  const PointwiseKernels& kernels = pointwise_kernels();
  const std::int32_t* id = op.tokens.row<std::int32_t>(0);
  const std::int64_t chunks = (op.dtable.cols + kColumnChunk - 1) / kColumnChunk;
#pragma omp parallel for schedule(static)
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const std::int64_t first = chunk * kColumnChunk;
    const std::int64_t count = std::min(kColumnChunk, op.dtable.cols - first);
    float scratch[kColumnChunk];
    for (std::int64_t t = 0; t < op.dout.rows; ++t) {
      float* row = op.dtable.row<float>(id[t]) + first;
      kernels.add(row, read_row(kernels, op.dout, t, first, count, scratch), count, row);
    }
    for (std::int64_t t = 0; t < op.dout.rows; ++t) {
      write_row(kernels, op.dtable.row<float>(id[t]) + first, count, op.dtable, id[t], first);
    }
  }
}

}  // namespace fp8lab::cpu
