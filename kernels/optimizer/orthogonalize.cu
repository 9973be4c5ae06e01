// The orthogonalized momentum of Muon: GEMMs, and between them one thread for each group of
// elements.
#include <cstdint>

#include "kernels/pointwise/rows.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

using Bf16Rows = Rows<std::uint16_t>;

template <class G>
struct LookAhead {
  float momentum;
  const float* scalars;
  Rows<G> gradient;
  Rows<float> first_moment;
  Bf16Rows x;
  float* squares;

  __device__ void operator()(std::int64_t, std::int64_t first, int count) const {
    const float clip = scalars[StepScalar::kClipFactor];
    float g[kGroup], m[kGroup];
    gradient.load_group(0, first, count, g);
    first_moment.load_group(0, first, count, m);
    for (int i = 0; i < kGroup; ++i) m[i] = look_ahead(momentum, m[i], g[i] * clip);
    x.store_group(0, first, count, m);
    if (first == 0) squares[StepScalar::kGradNormSquared] = 0.0f;
  }
};

struct Normalize {
  const float* squares;
  Bf16Rows x;

  __device__ void operator()(std::int64_t, std::int64_t first, int count) const {
    const float norm = direction_norm(squares[StepScalar::kGradNormSquared]);
    float values[kGroup];
    x.load_group(0, first, count, values);
    for (float& value : values) value = value / norm;
    x.store_group(0, first, count, values);
  }
};

struct AddProduct {
  float factor, product_factor;
  Rows<float> product;
  Bf16Rows x;

  __device__ void operator()(std::int64_t, std::int64_t first, int count) const {
    float values[kGroup], products[kGroup];
    x.load_group(0, first, count, values);
    product.load_group(0, first, count, products);
    for (int i = 0; i < kGroup; ++i) {
      values[i] = (factor * values[i]) + (product_factor * products[i]);
    }
    x.store_group(0, first, count, values);
  }
};

void run_part(Context& context, const ops::Orthogonalize::LookAhead& part) {
  with_rows(
      [&]<class G>(const Rows<G>& gradient) {
        const LookAhead<G> body{part.spec.momentum,
                                part.scalars.row<float>(0),
                                gradient,
                                rows_of<float>(part.first_moment.flat()),
                                rows_of<std::uint16_t>(part.x.flat()),
                                part.squares.row<float>(0)};
        launch_groups(context, 1, part.x.size(), body, "orthogonalize: look ahead");
      },
      part.gradient.flat());
}

void run_part(Context& context, const ops::Orthogonalize::Normalize& part) {
  const Normalize body{part.squares.row<float>(0), rows_of<std::uint16_t>(part.x.flat())};
  launch_groups(context, 1, part.x.size(), body, "orthogonalize: normalize");
}

void run_part(Context& context, const ops::Orthogonalize::AddProduct& part) {
  const AddProduct body{part.factor, part.product_factor, rows_of<float>(part.product.flat()),
                        rows_of<std::uint16_t>(part.x.flat())};
  launch_groups(context, 1, part.x.size(), body, "orthogonalize: add product");
}

template <class Operation>
void run_part(Context& context, const Operation& op) {
  run(context, op);
}

}  // namespace

void run(Context& context, const ops::Orthogonalize& op) {
  op.check();
  op.for_each_part([&](const auto& part) { run_part(context, part); });
}

}  // namespace fp8lab::cuda
