// Updates by every rule, one thread for each group of elements.
#include <cstdint>

#include "kernels/pointwise/rows.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

/// The scalars are in device memory, so every thread derives the factors itself.
template <class G>
struct Advance {
  UpdateSpec spec;
  const float* scalars;
  Rows<G> gradient;
  float *m, *v;  ///< null if the rule does not use them

  __device__ void operator()(std::int64_t, std::int64_t first, int count) const {
    const UpdateFactors factors = update_factors(spec, scalars, 0.0f);
    for (std::int64_t i = first; i < first + count; ++i) {
      const float g = gradient.load(0, i) * factors.clip;
      if (m != nullptr) m[i] = numerics::canonical_nan(next_first_moment(spec, factors, m[i], g));
      if (v != nullptr) v[i] = numerics::canonical_nan(next_second_moment(spec, factors, v[i], g));
    }
  }
};

template <class P, class G>
struct Update {
  UpdateSpec spec;
  const float* scalars;
  float decay_mask;
  Rows<P> master;
  Rows<std::uint16_t> working;  ///< its data is null if there is none
  Rows<G> gradient;
  const float *m, *v, *weight_bound;  ///< null if the rule does not use them

  __device__ void operator()(std::int64_t, std::int64_t first, int count) const {
    const UpdateFactors factors = update_factors(spec, scalars, decay_mask);
    const float bound = weight_bound == nullptr ? 0.0f : *weight_bound;
    for (std::int64_t i = first; i < first + count; ++i) {
      const float weight =
          updated_weight(spec, factors, master.load(0, i), gradient.load(0, i) * factors.clip,
                         m == nullptr ? 0.0f : m[i], v == nullptr ? 0.0f : v[i], bound);
      master.store(0, i, weight);
      if (working.data != nullptr) working.store(0, i, weight);
    }
  }
};

float* values_or_null(const TensorView& moment) {
  return moment.empty() ? nullptr : moment.row<float>(0);
}

}  // namespace

void run(Context& context, const ops::AdvanceMoments& op) {
  op.check();
  with_rows(
      [&]<class G>(const Rows<G>& gradient) {
        const Advance<G> body{op.spec, op.scalars.row<float>(0), gradient,
                              values_or_null(op.first_moment), values_or_null(op.second_moment)};
        launch_groups(context, 1, op.gradient.size(), body, "advance_moments");
      },
      op.gradient.flat());
}

void run(Context& context, const ops::UpdateWeights& op) {
  op.check();
  const Rows<std::uint16_t> working =
      op.working.empty() ? Rows<std::uint16_t>{} : rows_of<std::uint16_t>(op.working.flat());
  with_rows(
      [&]<class P, class G>(const Rows<P>& master, const Rows<G>& gradient) {
        const Update<P, G> body{op.spec,
                                op.scalars.row<float>(0),
                                op.decay_mask,
                                master,
                                working,
                                gradient,
                                values_or_null(op.first_moment),
                                values_or_null(op.second_moment),
                                values_or_null(op.weight_bound)};
        launch_groups(context, 1, op.gradient.size(), body, "update_weights");
      },
      op.master.flat(), op.gradient.flat());
}

}  // namespace fp8lab::cuda
