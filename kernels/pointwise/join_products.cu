// ops::JoinProducts: one thread for eight neighbours of a row.
#include "emulation/numerics/codec.hpp"
#include "kernels/pointwise/rows.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

__device__ void store(double value, std::uint16_t& to) { to = numerics::bf16_of_double(value); }
__device__ void store(double value, float& to) {
  to = numerics::canonical_nan(static_cast<float>(value));
}

template <class D, class B>
struct Join {
  Rows<float> partial, emulated, exact;  ///< without data: a term that is left out
  Rows<B> bias;
  bool accumulate;
  Rows<D> d;

  __device__ void operator()(std::int64_t row, std::int64_t col, int count) const {
    float products[kGroup], differs[kGroup] = {}, without[kGroup] = {}, before[kGroup] = {};
    partial.load_group(row, col, count, products);
    if (exact.data != nullptr) {
      emulated.load_group(row, col, count, differs);
      exact.load_group(row, col, count, without);
    }
    if (accumulate) d.load_group(row, col, count, before);
    D results[kGroup] = {};
    for (int i = 0; i < count; ++i) {
      double sum = products[i];
      if (exact.data != nullptr) sum += static_cast<double>(differs[i]) - without[i];
      if (bias.data != nullptr) sum += bias.load(0, col + i);
      if (accumulate) sum += before[i];
      store(sum, results[i]);
    }
    d.store_bits(row, col, count, results);
  }
};

Rows<float> rows_or_none(const TensorView& view) {
  return view.empty() ? Rows<float>{} : rows_of<float>(view);
}

}  // namespace

void run(Context& context, const ops::JoinProducts& op) {
  op.check();
  with_rows(
      [&]<class D, class B>(const Rows<D>& d, const Rows<B>& bias) {
        launch_groups(context, op.d.rows, op.d.cols,
                      Join<D, B>{rows_of<float>(op.partial), rows_or_none(op.emulated),
                                 rows_or_none(op.exact), bias, op.accumulate, d},
                      "join_products");
      },
      op.d, op.bias);
}

}  // namespace fp8lab::cuda
