// The norms on CUDA give the bits of the CPU norms: every byte of every tensor, gaps between rows
// included.
#include <catch2/catch.hpp>

#include "emulation/cpu/operations.hpp"
#include "kernels/plan/fusion.hpp"
#include "kernels/pointwise/rmsnorm.hpp"
#include "kernels/runtime/operations.hpp"
#include "tests/kernels/device_cases.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

TEST_CASE("cuda rmsnorm") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  for_all([&](Shape s, DType type, DType other, Layout layout, std::uint32_t seed) {
    const Fill fill = seed % 20 == 1 ? Fill::difficult : Fill::ordinary;
    Twin x(type, s.rows, s.cols, fill, seed, layout);
    Twin weight(other, 1, s.cols, fill, seed + 1, {0, layout.offset});
    Twin y(type, s.rows, s.cols, Fill::any_bits, seed + 2);
    Twin rstd(DType::f32, 1, s.rows, Fill::any_bits, seed + 3);
    compare(
        *context, {{"x", &x}, {"weight", &weight}, {"y", &y}, {"rstd", &rstd}},
        [&] {
          cpu::run(ops::RmsNormForward{x.host(), weight.host(), 1e-6f, y.host(), rstd.host()});
        },
        [&] {
          cuda::run(*context, ops::RmsNormForward{x.device(), weight.device(), 1e-6f, y.device(),
                                                  rstd.device()});
        });
    Twin dy(other, s.rows, s.cols, fill, seed + 4, layout);
    Twin dweight(DType::f32, 1, s.cols, fill, seed + 5);
    Twin dx(type, s.rows, s.cols, Fill::any_bits, seed + 6, layout);
    const auto backward = [&](Twin& result) {
      compare(
          *context,
          {{"dy", &dy}, {"x", &x}, {"rstd", &rstd}, {"dx", &result}, {"dweight", &dweight}},
          [&] {
            cpu::run(ops::RmsNormBackward{dy.host(), x.host(), weight.host(), rstd.host(),
                                          result.host(), dweight.host()});
          },
          [&] {
            cuda::run(*context,
                      ops::RmsNormBackward{dy.device(), x.device(), weight.device(), rstd.device(),
                                           result.device(), dweight.device()});
          });
    };
    backward(dx);
    backward(dy);
  });
}

TEST_CASE("cuda rmsnorm of a sum, and its gradient added to another") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  int fused = 0;
  for_all([&](Shape s, DType type, DType other, Layout layout, std::uint32_t seed) {
    const Fill fill = seed % 20 == 1 ? Fill::difficult : Fill::ordinary;
    const auto on_host = [](const auto& op) {
      op.for_each_part([](const auto& part) { cpu::run(part); });
    };
    // Where there is no kernel, its parts: their tensors have the same bytes.
    const auto on_device = [&](const auto& op, const auto& run_fused) {
      if (cuda::fusion_of(op) == nullptr) {
        return op.for_each_part([&](const auto& part) { cuda::run(*context, part); });
      }
      ++fused;
      run_fused(op);
    };
    const auto add_norm = [&](const auto& op) { cuda::add_rmsnorm(*context, op); };
    const auto find_rstd = [&](const auto& op) { cuda::find_rstd(*context, op); };
    const auto add_gradient = [&](const auto& op) { cuda::rmsnorm_backward_add(*context, op); };
    Twin a(type, s.rows, s.cols, fill, seed, layout), b(other, s.rows, s.cols, fill, seed + 1);
    Twin weight(other, 1, s.cols, fill, seed + 2, {0, layout.offset});
    Twin sum(type, s.rows, s.cols, Fill::any_bits, seed + 3, layout);
    Twin y(type, s.rows, s.cols, Fill::any_bits, seed + 4);
    Twin rstd(DType::f32, 1, s.rows, Fill::any_bits, seed + 5);
    const auto of_device = [&](Twin& x) {
      return ops::AddRmsNormForward{
          a.device(), b.device(), {x.device(), weight.device(), 1e-6f, y.device(), rstd.device()}};
    };
    const auto of_host = [&](Twin& x) {
      return ops::AddRmsNormForward{
          a.host(), b.host(), {x.host(), weight.host(), 1e-6f, y.host(), rstd.host()}};
    };
    const auto forward = [&](Twin& x) {
      compare(
          *context,
          {{"a", &a}, {"b", &b}, {"weight", &weight}, {"sum", &x}, {"y", &y}, {"rstd", &rstd}},
          [&] { on_host(of_host(x)); }, [&] { on_device(of_device(x), add_norm); });
    };
    forward(sum);
    compare(
        *context, {{"sum", &sum}, {"rstd", &rstd}}, [&] { on_host(of_host(sum)); },
        [&] { on_device(of_device(sum), find_rstd); });
    forward(a);
    Twin dy(type, s.rows, s.cols, fill, seed + 6, layout);
    Twin dx(type, s.rows, s.cols, Fill::any_bits, seed + 7, layout);
    Twin gradient(other, s.rows, s.cols, fill, seed + 8, layout);
    Twin dweight(DType::f32, 1, s.cols, fill, seed + 9);
    compare(
        *context,
        {{"dy", &dy}, {"x", &sum}, {"rstd", &rstd}, {"gradient", &gradient}, {"dweight", &dweight}},
        [&] {
          on_host(ops::RmsNormBackwardAdd{
              {dy.host(), sum.host(), weight.host(), rstd.host(), dx.host(), dweight.host()},
              gradient.host()});
        },
        [&] {
          const ops::RmsNormBackwardAdd op{{dy.device(), sum.device(), weight.device(),
                                            rstd.device(), dx.device(), dweight.device()},
                                           gradient.device()};
          on_device(op, add_gradient);
        });
  });
  CHECK(fused > 0);
}

TEST_CASE("cuda rmsnorm of rows without elements") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  Twin x(DType::f32, 5, 0, Fill::ordinary, 1), weight(DType::f32, 1, 0, Fill::ordinary, 2);
  Twin rstd(DType::f32, 1, 5, Fill::any_bits, 3);
  compare(
      *context, {{"rstd", &rstd}},
      [&] {
        cpu::run(ops::RmsNormForward{x.host(), weight.host(), 1e-6f, x.host(), rstd.host()});
      },
      [&] {
        cuda::run(*context, ops::RmsNormForward{x.device(), weight.device(), 1e-6f, x.device(),
                                                rstd.device()});
      });
}

TEST_CASE("cuda layernorm") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  for_all([&](Shape s, DType type, DType other, Layout layout, std::uint32_t seed) {
    const Fill fill = seed % 20 == 1 ? Fill::difficult : Fill::ordinary;
    Twin x(type, s.rows, s.cols, fill, seed, layout);
    Twin weight(other, 1, s.cols, fill, seed + 1, {0, layout.offset});
    Twin bias(other, 1, s.cols, fill, seed + 2);
    Twin y(type, s.rows, s.cols, Fill::any_bits, seed + 3);
    Twin mean(DType::f32, 1, s.rows, Fill::any_bits, seed + 4);
    Twin rstd(DType::f32, 1, s.rows, Fill::any_bits, seed + 5);
    const auto forward = [&](Twin& result) {
      compare(
          *context,
          {{"x", &x},
           {"weight", &weight},
           {"bias", &bias},
           {"y", &result},
           {"mean", &mean},
           {"rstd", &rstd}},
          [&] {
            cpu::run(ops::LayerNormForward{x.host(), weight.host(), bias.host(), 1e-5f,
                                           result.host(), mean.host(), rstd.host()});
          },
          [&] {
            cuda::run(*context,
                      ops::LayerNormForward{x.device(), weight.device(), bias.device(), 1e-5f,
                                            result.device(), mean.device(), rstd.device()});
          });
    };
    forward(y);
    Twin dy(other, s.rows, s.cols, fill, seed + 6, layout);
    Twin dweight(DType::f32, 1, s.cols, fill, seed + 7), dbias(DType::f32, 1, s.cols, fill, seed);
    Twin dx(type, s.rows, s.cols, Fill::any_bits, seed + 8, layout);
    const auto backward = [&](Twin& result) {
      compare(
          *context,
          {{"dy", &dy},
           {"x", &x},
           {"mean", &mean},
           {"rstd", &rstd},
           {"dx", &result},
           {"dweight", &dweight},
           {"dbias", &dbias}},
          [&] {
            cpu::run(ops::LayerNormBackward{dy.host(), x.host(), weight.host(), mean.host(),
                                            rstd.host(), result.host(), dweight.host(),
                                            dbias.host()});
          },
          [&] {
            cuda::run(*context,
                      ops::LayerNormBackward{dy.device(), x.device(), weight.device(),
                                             mean.device(), rstd.device(), result.device(),
                                             dweight.device(), dbias.device()});
          });
    };
    backward(dx);
    backward(dy);
    forward(x);
  });
}

TEST_CASE("cuda layernorm of rows without elements") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  Twin x(DType::f32, 5, 0, Fill::ordinary, 1), weight(DType::f32, 1, 0, Fill::ordinary, 2);
  Twin mean(DType::f32, 1, 5, Fill::any_bits, 3), rstd(DType::f32, 1, 5, Fill::any_bits, 4);
  compare(
      *context, {{"mean", &mean}, {"rstd", &rstd}},
      [&] {
        cpu::run(ops::LayerNormForward{x.host(), weight.host(), weight.host(), 1e-5f, x.host(),
                                       mean.host(), rstd.host()});
      },
      [&] {
        cuda::run(*context, ops::LayerNormForward{x.device(), weight.device(), weight.device(),
                                                  1e-5f, x.device(), mean.device(), rstd.device()});
      });
}

TEST_CASE("cuda layernorm_backward of no rows") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  Twin dy(DType::f32, 0, 40, Fill::ordinary, 1), x(DType::f32, 0, 40, Fill::ordinary, 2);
  Twin weight(DType::f32, 1, 40, Fill::ordinary, 3), moments(DType::f32, 1, 0, Fill::ordinary, 4);
  Twin dweight(DType::f32, 1, 40, Fill::any_bits, 5), dbias(DType::f32, 1, 40, Fill::any_bits, 6);
  dweight.set(0, 7, -0.0);
  compare(
      *context, {{"weight", &weight}, {"dweight", &dweight}, {"dbias", &dbias}},
      [&] {
        cpu::run(ops::LayerNormBackward{dy.host(), x.host(), weight.host(), moments.host(),
                                        moments.host(), dy.host(), dweight.host(), dbias.host()});
      },
      [&] {
        cuda::run(*context, ops::LayerNormBackward{dy.device(), x.device(), weight.device(),
                                                   moments.device(), moments.device(), dy.device(),
                                                   dweight.device(), dbias.device()});
      });
}
