// Initial weights: the number of every element, whichever thread and piece draws it.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

#include "src/data/random.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;

TEST_CASE("a random sequence begins anywhere") {
  RandomSequence whole(3, 5), part(3, 5, 6);
  for (int i = 0; i < 6; ++i) whole.next();
  for (int i = 0; i < 9; ++i) CHECK(part.next() == whole.next());
}

TEST_CASE("weights are those of their place in a tensor of more than one piece") {
  constexpr std::int64_t kPiece = std::int64_t{1} << 22;  // Parameters::initialize
  ModelConfig model = test::small_model();
  model.vocab_size = kPiece / model.hidden_size + 16;
  const auto backend = make_backend("cpu", 2);
  Parameters parameters(*backend, model, OptimizerConfig{}, DType::bf16);
  parameters.initialize(7);
  const std::vector<float> weights = parameters.download(parameters[ParameterId{0}]);
  REQUIRE(static_cast<std::int64_t>(weights.size()) > kPiece);
  const auto last = static_cast<std::int64_t>(weights.size()) - 2;
  for (const std::int64_t first : {std::int64_t{0}, kPiece - 2, kPiece, last}) {
    // Box and Muller, in the mathematical library's arithmetic.
    RandomSequence random(7, 0x1217, static_cast<std::uint64_t>(first));
    const double radius = std::sqrt(-2.0 * std::log(random.open_unit()));
    const double angle = 6.283185307179586 * random.open_unit();
    const auto i = static_cast<std::size_t>(first);
    CHECK(weights[i] == Approx(0.08 * radius * std::cos(angle)).margin(1e-7));
    CHECK(weights[i + 1] == Approx(0.08 * radius * std::sin(angle)).margin(1e-7));
  }
}
