// XXH3-64: identity of weights, tensors, data, recipes and configurations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace fp8lab {

/// XXH3-64 (seed 0, default secret) of `size` bytes. `data` may be null when `size` is 0.
std::uint64_t xxh3(const void* data, std::size_t size);
std::uint64_t xxh3(std::string_view text);

/// XXH3-64 of bytes that arrive in pieces; equal to xxh3 of their concatenation.
class Xxh3Stream {
 public:
  Xxh3Stream();
  void update(const void* data, std::size_t size);
  void update(std::string_view text) { update(text.data(), text.size()); }
  /// Hash of everything so far; more may follow.
  std::uint64_t digest() const;

 private:
  struct Release {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Release> state_;
};

/// 16 lower-case hexadecimal digits, leading zeros kept.
std::string hex16(std::uint64_t value);

}  // namespace fp8lab
