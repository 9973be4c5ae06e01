// Transforms as plain data: their names, and what a product has to know of each kind.
#include <catch2/catch.hpp>

#include <optional>
#include <string>

#include "emulation/spec/transform.hpp"

using namespace fp8lab;

namespace {

const char* const kNvSigns = "hadamard:16:+++-+------+-+--";

Transform named(const std::string& name) {
  const std::optional<Transform> transform = transform_from_name(name);
  REQUIRE(transform);
  return *transform;
}

}  // namespace

TEST_CASE("names of transforms read back, others are refused") {
  for (const char* name :
       {"none", "hadamard:2", "hadamard:16", "hadamard:full", "hadamard:full:drawn", kNvSigns,
        "hadamard:12:+--", "hadamard:1024:drawn:after", "hadamard:full:+-:after", "smooth:0.5",
        "smooth:0", "smooth:1:static", "expand"}) {
    INFO(name);
    const std::optional<Transform> transform = transform_from_name(name);
    REQUIRE(transform);
    CHECK(transform_name(*transform) == name);
  }
  for (const char* name : {"",
                           "hadamard",
                           "hadamard:",
                           "hadamard:0",
                           "hadamard:1",
                           "hadamard:7",
                           "hadamard:92",
                           "hadamard:2048",
                           "hadamard:-16",
                           "hadamard:16x",
                           "hadamard:16:",
                           "hadamard:16:+-+",
                           "hadamard:16:drawn:",
                           "hadamard:16:drawn:before",
                           "hadamard:16:after",
                           "hadamard:16:+0",
                           "hadamard:16:drawn:after:after",
                           "Hadamard:16",
                           "none:16",
                           "smooth",
                           "smooth:",
                           "smooth:1.5",
                           "smooth:-0.5",
                           "smooth:nan",
                           "smooth:0.5:",
                           "smooth:0.5:current",
                           "smooth:0.5:static:1",
                           "expand:2"}) {
    INFO(name);
    CHECK_FALSE(transform_from_name(name));
  }
  std::string longest = "hadamard:512:" + std::string(256, '-');
  CHECK(transform_name(named(longest)) == longest);
  CHECK_FALSE(transform_from_name(longest + std::string(256, '+')));
}

TEST_CASE("each kind of transform says how a product must treat it") {
  struct Row {
    const char* name;
    bool is_linear, is_left, is_along_k, has_drawn_signs;
    Compensation compensation;
  };
  const Row rows[] = {
      {"none", false, false, false, false, Compensation::none},
      {"hadamard:16", true, false, true, false, Compensation::none},
      {"hadamard:16:drawn", true, false, true, true, Compensation::none},
      {"left:hadamard:16:drawn", true, true, false, true, Compensation::none},
      {"smooth:0.5:static", true, false, true, false, Compensation::none},
      {"expand", false, false, false, false, Compensation::none},
      {"clamp:0.99", false, false, false, false, Compensation::none},
      {"clamp:0.99:compensated", false, false, false, false, Compensation::original},
      {"clamp:0.99:compensated:quantized", false, false, false, false, Compensation::quantized}};
  for (const Row& row : rows) {
    INFO(row.name);
    const Transform transform = named(row.name);
    CHECK(static_cast<bool>(transform) == (std::string(row.name) != "none"));
    CHECK(transform.is_linear() == row.is_linear);
    CHECK(transform.is_left() == row.is_left);
    CHECK(transform.is_along_k() == row.is_along_k);
    CHECK(transform.has_drawn_signs() == row.has_drawn_signs);
    CHECK(transform.compensation() == row.compensation);
    CHECK(transform.is_compensated() == (row.compensation != Compensation::none));
    for (const Row& other : rows) CHECK((transform == named(other.name)) == (&row == &other));
  }
}
