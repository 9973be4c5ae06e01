#include "src/io/hash.hpp"

#include <xxhash.h>

#include <new>

namespace fp8lab {

std::uint64_t xxh3(const void* data, std::size_t size) {
  return XXH3_64bits(size == 0 ? "" : data, size);
}

std::uint64_t xxh3(std::string_view text) { return xxh3(text.data(), text.size()); }

Xxh3Stream::Xxh3Stream() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state_.get());
}

void Xxh3Stream::update(const void* data, std::size_t size) {
  if (size != 0) XXH3_64bits_update(state_.get(), data, size);
}

std::uint64_t Xxh3Stream::digest() const { return XXH3_64bits_digest(state_.get()); }

void Xxh3Stream::Release::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

std::string hex16(std::uint64_t value) {
  std::string digits(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4) digits[i] = "0123456789abcdef"[value & 15];
  return digits;
}

}  // namespace fp8lab
