// Catch2, of version 2 (Debian 12) or 3 (Debian 13, Ubuntu 24.04), by the names of version 2.
#pragma once

#if __has_include(<catch2/catch.hpp>)
#include <catch2/catch.hpp>
#else
#include <catch2/catch_all.hpp>

namespace Catch {
using Matchers::EndsWith;
using Matchers::StartsWith;
inline Matchers::StringContainsMatcher Contains(const std::string& part) {
  return Matchers::ContainsSubstring(part);
}
}  // namespace Catch
using Catch::Approx;
#endif
