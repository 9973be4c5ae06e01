// The suite behind `validate mutants`: it accepts the reference, and it tells the truth about
// implementations that are broken, unchanged or incomplete.
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <set>

#include "emulation/base/error.hpp"
#include "src/backend/factory.hpp"
#include "src/validate/mutants.hpp"
#include "src/validate/scalar_arithmetic.hpp"

namespace {

using namespace fp8lab;  // NOLINT: the subject of every line below

const std::filesystem::path kGolden = std::filesystem::path(FP8LAB_TEST_DATA) / "golden";

const CheckReport& find(const std::vector<CheckReport>& reports, const std::string& name) {
  const auto found = std::find_if(reports.begin(), reports.end(),
                                  [&](const CheckReport& report) { return report.name == name; });
  REQUIRE(found != reports.end());
  return *found;
}

}  // namespace

TEST_CASE("the shipped backend passes the suite, recorded vectors included") {
  const auto backend = make_backend("cpu", 1);
  const ValidationSuite suite(scalar_implementation(), kGolden, 7);
  const auto shipped = suite.run(backend_implementation(*backend), false);
  CHECK(find(shipped, "quantize").cases > 100000);
  CHECK(find(shipped, "gemm").cases > 10000);
  for (const CheckReport& check : shipped) {
    INFO(check.name << ": " << check.first);
    CHECK(check.mismatches == 0);
    CHECK(check.offered == (check.name == "quantize" || check.name == "gemm"));
  }
  const auto scalar = suite.run(scalar_implementation(), false);
  CHECK(find(scalar, "mma.bin").cases == 196 * 512);
  CHECK(find(scalar, "gemm.bin").cases == 3704);
  CHECK(find(scalar, "gemm_edge.bin").cases == 13191);
  for (const CheckReport& check : scalar) CHECK(check.mismatches == 0);
}

TEST_CASE("names of mutants are distinct and every one is killed for any seed") {
  std::set<std::string> names;
  const std::vector<Mutant> mutants = all_mutants();
  for (const Mutant& mutant : mutants) names.insert(mutant.name);
  CHECK(names.size() == mutants.size());
  CHECK(names.size() >= 15);
  for (const std::uint64_t seed : {2u, 3u, 4u}) {
    MutantOptions options;
    options.seed = seed;
    const MutantOutcome outcome = validate_mutants(scalar_implementation(), mutants, options);
    CHECK(outcome.good());
    for (const MutantReport& mutant : outcome.mutants) {
      INFO(seed << " " << mutant.name);
      CHECK(mutant.killed);
      CHECK(mutant.first_mismatch.find("expected 0x") != std::string::npos);
    }
  }
}

TEST_CASE("recorded vectors alone kill mutants that a wrong reference would let live") {
  // Expectation and mutant share the fault, so only the hardware can tell.
  const std::vector<Mutant> mutants = all_mutants();
  for (const char* name : {"fraction_bits_12", "alignment_nearest", "alpha_folded"}) {
    const auto mutant = std::find_if(mutants.begin(), mutants.end(),
                                     [&](const Mutant& m) { return m.name == name; });
    REQUIRE(mutant != mutants.end());
    MutantOptions options;
    options.golden = kGolden;
    const MutantOutcome outcome = validate_mutants(mutant->implementation, {*mutant}, options);
    CAPTURE(name);
    REQUIRE(outcome.mutants[0].killed);
    CHECK(outcome.mutants[0].check.find(".bin") != std::string::npos);
    CHECK(!outcome.good());  // the unmutated reference differs from the wrong expectation
  }
}

TEST_CASE("an unbroken mutant survives") {
  const Mutant nothing{"nothing", "nothing at all", scalar_implementation()};
  const MutantOutcome outcome = validate_mutants(scalar_implementation(), {nothing});
  CHECK(!outcome.mutants[0].killed);
  CHECK(!outcome.good());
  for (const CheckReport& check : outcome.unmutated) CHECK(check.mismatches == 0);
}

TEST_CASE("a folder without recorded vectors is refused") {
  CHECK_THROWS_AS(ValidationSuite(scalar_implementation(), kGolden.parent_path(), 1), Error);
}
