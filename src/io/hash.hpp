// XXH3-64: identifies weights, tensors, data, recipes and configurations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace fp8lab {

/// Returns XXH3-64 (seed 0, default secret) of `size` bytes. `data` may be null if `size` is 0.
std::uint64_t xxh3(const void* data, std::size_t size);
std::uint64_t xxh3(std::string_view text);

/// Computes XXH3-64 of bytes that arrive in pieces; equal to xxh3 of their concatenation.
class Xxh3Stream {
 public:
  Xxh3Stream();
  void update(const void* data, std::size_t size);
  void update(std::string_view text) { update(text.data(), text.size()); }
  /// Returns the hash of all bytes so far; more bytes may follow.
  std::uint64_t digest() const;

 private:
  struct Release {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Release> state_;
};

/// Returns 16 lower-case hexadecimal digits, with leading zeros.
std::string hex16(std::uint64_t value);

}  // namespace fp8lab
