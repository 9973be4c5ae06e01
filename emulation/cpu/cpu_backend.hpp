// The CPU emulator as a Backend: bit-exact tensor-core arithmetic, no GPU needed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "emulation/api/backend.hpp"

namespace fp8lab::cpu {

/// Runs every operation to its end on the calling thread and `threads` OpenMP threads. The bits do
/// not depend on the number of threads or the SIMD target.
class CpuBackend final : public Backend {
 public:
  /// 0 threads: as many as this process may use. Throws Error for a negative number and for more
  /// than thread_limit().
  explicit CpuBackend(int threads);
  ~CpuBackend() override;

  std::string name() const override { return "cpu"; }
  std::string device() const override;
  DType storage(DType wanted) const override { return wanted; }
  Support supports(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b) const override;
  Support supports(const QuantSpec& spec) const override;

  TensorView allocate(DType dtype, std::int64_t rows, std::int64_t cols) override;
  std::size_t memory_mark() const override { return memory_.size(); }
  void release_to(std::size_t mark) override;
  std::size_t memory_bytes() const override;
  void upload(const TensorView& destination, const void* source) override;
  void download(void* destination, const TensorView& source) override;
  void fill_zero(const TensorView& view) override;
  void copy(const TensorView& source, const TensorView& destination) override;
  void synchronize() override {}

  void quantize(const TensorView& source, bool transpose, const RandomKey& key,
                const TensorView& state, QuantizedOperand& operand) override;
  void smoothing_factors(const Transform& transform, const TensorView& a, bool transpose_a,
                         const TensorView& b, bool transpose_b, const TensorView& factors) override;
  void compensate(const QuantizedOperand& a, const TensorView& a_source, bool transpose_a,
                  const QuantizedOperand& b, const TensorView& b_source, bool transpose_b,
                  const TensorView& d) override;
  void dequantize(const QuantizedOperand& operand, bool transpose,
                  const TensorView& destination) override;
  void update_delayed_scale(const QuantSpec& spec, const TensorView& state) override;
  void gemm(const GemmSpec& spec, const QuantizedOperand& a, const QuantizedOperand& b,
            const TensorView& bias, bool accumulate, const TensorView& d) override;
  void operand_statistics(const TensorView& source, bool transpose, const QuantizedOperand& operand,
                          const TensorView& record) override;

  void embedding_forward(const TensorView& tokens, const TensorView& table,
                         const TensorView& out) override;
  void embedding_backward(const TensorView& tokens, const TensorView& dout,
                          const TensorView& dtable) override;
  void rmsnorm_forward(const TensorView& x, const TensorView& weight, float epsilon,
                       const TensorView& y, const TensorView& rstd) override;
  void rmsnorm_backward(const TensorView& dy, const TensorView& x, const TensorView& weight,
                        const TensorView& rstd, const TensorView& dx,
                        const TensorView& dweight) override;
  void add(const TensorView& a, const TensorView& b, const TensorView& sum) override;
  void bias_backward(const TensorView& dy, const TensorView& dbias) override;
  void rope(const TensorView& x, const TensorView& positions, const TensorView& cosine,
            const TensorView& sine, std::int64_t head_dim, bool inverse) override;
  void attention_forward(const AttentionShape& shape, const TensorView& q, const TensorView& k,
                         const TensorView& v, const TensorView& document_start,
                         const TensorView& out, const TensorView& lse) override;
  void attention_backward(const AttentionShape& shape, const TensorView& q, const TensorView& k,
                          const TensorView& v, const TensorView& document_start,
                          const TensorView& out, const TensorView& lse, const TensorView& dout,
                          const TensorView& dq, const TensorView& dk,
                          const TensorView& dv) override;
  void attention_cached(const AttentionShape& shape, const TensorView& q, const TensorView& k,
                        const TensorView& v, const TensorView& query_start,
                        const TensorView& cached, const TensorView& k_cache,
                        const TensorView& v_cache, const TensorView& out) override;
  void swiglu_forward(const TensorView& gate_up, const TensorView& out) override;
  void swiglu_backward(const TensorView& gate_up, const TensorView& dout,
                       const TensorView& dgate_up) override;
  void cross_entropy(const TensorView& logits, const TensorView& targets, const TensorView& weights,
                     const TensorView& scalars, const TensorView& token_loss,
                     const TensorView& dlogits) override;
  void argmax(const TensorView& logits, const TensorView& out) override;

  void accumulate_square_sum(const TensorView& gradient, const TensorView& scalars) override;
  void begin_update(const AdamWSpec& spec, const TensorView& scalars) override;
  void adamw(const AdamWSpec& spec, const TensorView& scalars, float decay_mask,
             const AdamWTensors& tensors) override;

 private:
  struct Memory;

  /// Makes OpenMP regions of the calling thread use `threads_` threads.
  void use_threads() const;

  int threads_ = 1;
  std::vector<std::unique_ptr<Memory>> memory_;
  std::size_t held_ = 0;  ///< bytes of memory_
  std::size_t memory_limit_ = 0;
};

/// A CpuBackend, see its constructor.
std::unique_ptr<Backend> make_cpu_backend(int threads);

}  // namespace fp8lab::cpu
