// The norms on CUDA give the bits of the CPU norms: every byte of every tensor, gaps between rows
// included.
#include <catch2/catch.hpp>

#include "kernels/pointwise/rmsnorm.hpp"
#include "tests/kernels/device_test.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

TEST_CASE("cuda rmsnorm") {
  if (device_backend() == nullptr) return;
  for_all([&](MatrixShape s, DType type, DType other, RowLayout layout, std::uint32_t seed) {
    const Fill fill = seed % 20 == 1 ? Fill::difficult : Fill::ordinary;
    const HostTensor x = filled(type, s.rows, s.cols, fill, seed, layout);
    const HostTensor weight = filled(other, 1, s.cols, fill, seed + 1, {0, layout.offset});
    const HostTensor y = filled(type, s.rows, s.cols, Fill::any_bits, seed + 2);
    const HostTensor rstd = filled(DType::f32, 1, s.rows, Fill::any_bits, seed + 3);
    const HostTensor dy = filled(other, s.rows, s.cols, fill, seed + 4, layout);
    const HostTensor dweight = filled(DType::f32, 1, s.cols, fill, seed + 5);
    const HostTensor dx = filled(type, s.rows, s.cols, Fill::any_bits, seed + 6, layout);
    const auto forward = [](Backend& b, const Views& t) {
      b.run(ops::RmsNormForward{t[0], t[1], 1e-6f, t[2], t[3]});
    };
    check_same("rmsnorm", {x, weight, y, rstd, dy, dweight, dx}, [&](Backend& b, const Views& t) {
      forward(b, t);
      b.run(ops::RmsNormBackward{t[4], t[0], t[1], t[3], t[6], t[5]});
    });
    check_same("rmsnorm, dx in place", {x, weight, y, rstd, dy, dweight},
               [&](Backend& b, const Views& t) {
                 forward(b, t);
                 b.run(ops::RmsNormBackward{t[4], t[0], t[1], t[3], t[4], t[5]});
               });
  });
}

TEST_CASE("cuda rmsnorm of a sum, and its gradient added to another") {
  DeviceBackend* const device = device_backend();
  if (device == nullptr) return;
  int fused = 0;
  for_all([&](MatrixShape s, DType type, DType other, RowLayout layout, std::uint32_t seed) {
    const Fill fill = seed % 20 == 1 ? Fill::difficult : Fill::ordinary;
    const HostTensor a = filled(type, s.rows, s.cols, fill, seed, layout);
    const HostTensor b = filled(other, s.rows, s.cols, fill, seed + 1);
    const HostTensor weight = filled(other, 1, s.cols, fill, seed + 2, {0, layout.offset});
    const HostTensor sum = filled(type, s.rows, s.cols, Fill::any_bits, seed + 3, layout);
    const HostTensor y = filled(type, s.rows, s.cols, Fill::any_bits, seed + 4);
    const HostTensor rstd = filled(DType::f32, 1, s.rows, Fill::any_bits, seed + 5);
    const HostTensor dy = filled(type, s.rows, s.cols, fill, seed + 6, layout);
    const HostTensor gradient = filled(other, s.rows, s.cols, fill, seed + 8, layout);
    const HostTensor dweight = filled(DType::f32, 1, s.cols, fill, seed + 9);
    // Composites: where there is no kernel, the device runs the parts.
    const auto run = [&](Backend& backend, const auto& op) {
      if (&backend == device && !backend.supports(op).fused_by.empty()) ++fused;
      backend.run(op);
    };
    const auto forward = [](const Views& t, const TensorView& x) {
      return ops::AddRmsNormForward{t[0], t[1], {x, t[2], 1e-6f, t[4], t[5]}};
    };
    check_same("add_rmsnorm, rmsnorm_backward_add",
               {a, b, weight, sum, y, rstd, dy, gradient, dweight},
               [&](Backend& backend, const Views& t) {
                 run(backend, forward(t, t[3]));
                 const TensorView dx =
                     backend.allocate(type, s.rows, s.cols);  // a kernel need not store it
                 run(backend, ops::RmsNormBackwardAdd{{t[6], t[3], t[2], t[5], dx, t[8]}, t[7]});
               });
    check_same("add_rmsnorm in place", {a, b, weight, sum, y, rstd},
               [&](Backend& backend, const Views& t) { run(backend, forward(t, t[0])); });
  });
  CHECK(fused > 0);
}

TEST_CASE("cuda rstd of a sum without its norm") {
  DeviceBackend* const device = device_backend();
  if (device == nullptr) return;
  int fused = 0;
  for_all([&](MatrixShape s, DType type, DType other, RowLayout layout, std::uint32_t seed) {
    const Fill fill = seed % 20 == 1 ? Fill::difficult : Fill::ordinary;
    const HostTensor a = filled(type, s.rows, s.cols, fill, seed, layout);
    const HostTensor b = filled(other, s.rows, s.cols, fill, seed + 1);
    const HostTensor weight = filled(other, 1, s.cols, fill, seed + 2, {0, layout.offset});
    const HostTensor sum = filled(type, s.rows, s.cols, Fill::any_bits, seed + 3, layout);
    const HostTensor rstd = filled(DType::f32, 1, s.rows, Fill::any_bits, seed + 4);
    check_same("find_rstd", {a, b, weight, sum, rstd}, [&](Backend& backend, const Views& t) {
      const TensorView y = backend.allocate(type, s.rows, s.cols);  // not compared
      const ops::AddRmsNormForward op{t[0], t[1], {t[3], t[2], 1e-6f, y, t[4]}};
      if (&backend != device || backend.supports(op).fused_by.empty()) return backend.run(op);
      ++fused;
      cuda::find_rstd(device->context(), op);
    });
  });
  CHECK(fused > 0);
}

TEST_CASE("cuda rmsnorm of rows without elements") {
  if (device_backend() == nullptr) return;
  check_same(
      "rmsnorm",
      {filled(DType::f32, 5, 0, Fill::ordinary, 1), filled(DType::f32, 1, 0, Fill::ordinary, 2),
       filled(DType::f32, 1, 5, Fill::any_bits, 3)},
      [](Backend& b, const Views& t) {
        b.run(ops::RmsNormForward{t[0], t[1], 1e-6f, t[0], t[2]});
      });
}

TEST_CASE("cuda layernorm") {
  if (device_backend() == nullptr) return;
  for_all([&](MatrixShape s, DType type, DType other, RowLayout layout, std::uint32_t seed) {
    const Fill fill = seed % 20 == 1 ? Fill::difficult : Fill::ordinary;
    const HostTensor x = filled(type, s.rows, s.cols, fill, seed, layout);
    const HostTensor weight = filled(other, 1, s.cols, fill, seed + 1, {0, layout.offset});
    const HostTensor bias = filled(other, 1, s.cols, fill, seed + 2);
    const HostTensor y = filled(type, s.rows, s.cols, Fill::any_bits, seed + 3);
    const HostTensor mean = filled(DType::f32, 1, s.rows, Fill::any_bits, seed + 4);
    const HostTensor rstd = filled(DType::f32, 1, s.rows, Fill::any_bits, seed + 5);
    const HostTensor dy = filled(other, s.rows, s.cols, fill, seed + 6, layout);
    const HostTensor dweight = filled(DType::f32, 1, s.cols, fill, seed + 7);
    const HostTensor dbias = filled(DType::f32, 1, s.cols, fill, seed);
    const HostTensor dx = filled(type, s.rows, s.cols, Fill::any_bits, seed + 8, layout);
    const auto forward = [](Backend& b, const Views& t, const TensorView& result) {
      b.run(ops::LayerNormForward{t[0], t[1], t[2], 1e-5f, result, t[4], t[5]});
    };
    check_same("layernorm", {x, weight, bias, y, mean, rstd, dy, dweight, dbias, dx},
               [&](Backend& b, const Views& t) {
                 forward(b, t, t[3]);
                 b.run(ops::LayerNormBackward{t[6], t[0], t[1], t[4], t[5], t[9], t[7], t[8]});
               });
    check_same("layernorm in place", {x, weight, bias, y, mean, rstd, dy, dweight, dbias},
               [&](Backend& b, const Views& t) {
                 forward(b, t, t[3]);
                 b.run(ops::LayerNormBackward{t[6], t[0], t[1], t[4], t[5], t[6], t[7], t[8]});
                 forward(b, t, t[0]);
               });
  });
}

TEST_CASE("cuda layernorm of rows without elements") {
  if (device_backend() == nullptr) return;
  check_same(
      "layernorm",
      {filled(DType::f32, 5, 0, Fill::ordinary, 1), filled(DType::f32, 1, 0, Fill::ordinary, 2),
       filled(DType::f32, 1, 5, Fill::any_bits, 3), filled(DType::f32, 1, 5, Fill::any_bits, 4)},
      [](Backend& b, const Views& t) {
        b.run(ops::LayerNormForward{t[0], t[1], t[1], 1e-5f, t[0], t[2], t[3]});
      });
}

TEST_CASE("cuda layernorm_backward of no rows") {
  if (device_backend() == nullptr) return;
  HostTensor dweight = filled(DType::f32, 1, 40, Fill::any_bits, 5);
  put(dweight, 0, 7, -0.0);
  check_same(
      "layernorm_backward",
      {filled(DType::f32, 0, 40, Fill::ordinary, 1), filled(DType::f32, 0, 40, Fill::ordinary, 2),
       filled(DType::f32, 1, 40, Fill::ordinary, 3), filled(DType::f32, 1, 0, Fill::ordinary, 4),
       dweight, filled(DType::f32, 1, 40, Fill::any_bits, 6)},
      [](Backend& b, const Views& t) {
        b.run(ops::LayerNormBackward{t[0], t[1], t[2], t[3], t[3], t[0], t[4], t[5]});
      });
}
