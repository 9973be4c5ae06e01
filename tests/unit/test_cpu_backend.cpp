// Memory, transfers and identity of the CPU backend, and that it carries out what it dispatches.
#include <catch2/catch.hpp>

#include <cstdint>
#include <memory>
#include <vector>

#include "emulation/api/error.hpp"
#include "emulation/cpu/cpu_backend.hpp"

using namespace fp8lab;

TEST_CASE("the CPU backend names itself and keeps the wanted storage") {
  const std::unique_ptr<Backend> backend = cpu::make_cpu_backend(2);
  CHECK(backend->name() == "cpu");
  CHECK_THAT(backend->device(), Catch::EndsWith(", 2 threads"));
  CHECK(backend->storage(DType::bf16) == DType::bf16);
  CHECK(backend->storage(DType::f32) == DType::f32);
  CHECK(backend->supports(QuantSpec{}));
  CHECK(backend->supports(GemmSpec{}, QuantSpec{}, QuantSpec{}));
  REQUIRE_THROWS_AS(cpu::make_cpu_backend(-1), Error);
}

TEST_CASE("memory is zeroed and aligned; views transfer row by row") {
  const std::unique_ptr<Backend> backend = cpu::make_cpu_backend(1);
  const TensorView matrix = backend->allocate(DType::f32, 3, 7);
  CHECK(reinterpret_cast<std::uintptr_t>(matrix.data) % 64 == 0);
  CHECK(matrix.contiguous());
  CHECK_FALSE(backend->allocate(DType::u8, 0, 5).empty());
  std::vector<float> all(21, 1.0f);
  backend->download(all.data(), matrix);
  for (const float value : all) CHECK(value == 0.0f);

  const std::vector<float> part = {1, 2, 3, 4};
  const TensorView middle = matrix.columns(2, 2).row_range(1, 2);
  backend->upload(middle, part.data());
  backend->download(all.data(), matrix);
  CHECK(all[7 + 2] == 1.0f);
  CHECK(all[14 + 3] == 4.0f);
  CHECK(all[7 + 4] == 0.0f);
  std::vector<float> back(4);
  backend->download(back.data(), middle);
  CHECK(back == part);
  backend->fill_zero(matrix.columns(2, 1));
  backend->download(all.data(), matrix);
  CHECK(all[7 + 2] == 0.0f);
  CHECK(all[7 + 3] == 2.0f);
  REQUIRE_THROWS_AS(backend->allocate(DType::f32, -1, 2), Error);
}

TEST_CASE("a product of identity and a matrix passes through quantize and gemm") {
  const std::unique_ptr<Backend> backend = cpu::make_cpu_backend(2);
  const std::int64_t n = 16;
  std::vector<float> identity(256, 0.0f), values(256);
  for (std::size_t i = 0; i < 256; ++i) {
    identity[i] = i % 17 == 0 ? 1.0f : 0.0f;
    values[i] = static_cast<float>(i) / 16.0f;  // at most 8 significant bits: exact in bf16
  }
  const TensorView source = backend->allocate(DType::f32, n, n);
  QuantizedOperand a{QuantSpec{}, n, n, backend->allocate(DType::bf16, n, n), {}};
  QuantizedOperand b{QuantSpec{}, n, n, backend->allocate(DType::bf16, n, n), {}};
  backend->upload(source, identity.data());
  backend->quantize(source, false, {}, {}, a);
  backend->upload(source, values.data());
  backend->quantize(source, true, {}, {}, b);
  GemmSpec spec;
  spec.output = DType::f32;
  const TensorView d = backend->allocate(DType::f32, n, n);
  backend->gemm(spec, a, b, {}, false, d);
  std::vector<float> result(256);
  backend->download(result.data(), d);
  CHECK(result == values);
}
