#include "src/io/npz.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <cstdint>

#include "emulation/base/error.hpp"
#include "src/io/atomic_file.hpp"

namespace fp8lab {
namespace {

constexpr std::uint32_t kLocalHeader = 0x04034b50u;
constexpr std::uint32_t kDirectoryEntry = 0x02014b50u;
constexpr std::uint32_t kDirectoryEnd = 0x06054b50u;
constexpr std::size_t kDirectoryEndBytes = 22;
constexpr std::size_t kLongestComment = 65535;
constexpr std::uint64_t kMostDeflation = 1032;  // no deflated byte holds more (zlib's manual)

/// Little-endian integers anywhere in the archive; each read is checked.
class ZipBytes {
 public:
  ZipBytes(std::string_view bytes, const std::string& origin) : bytes_(bytes), origin_(origin) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(origin_ + ": malformed .npz archive: " + what);
  }

  std::string_view part(std::uint64_t offset, std::uint64_t size) const {
    if (offset > bytes_.size() || size > bytes_.size() - offset) {
      fail(fmt::format("{} bytes at {} lie beyond its {} bytes", size, offset, bytes_.size()));
    }
    return bytes_.substr(offset, size);
  }

  std::uint32_t u16(std::uint64_t offset) const { return number(part(offset, 2)); }
  std::uint32_t u32(std::uint64_t offset) const { return number(part(offset, 4)); }
  std::uint64_t size() const { return bytes_.size(); }

 private:
  static std::uint32_t number(std::string_view bytes) {
    std::uint32_t value = 0;
    for (std::size_t i = bytes.size(); i-- > 0;) {
      value = value << 8 | static_cast<unsigned char>(bytes[i]);
    }
    return value;
  }

  std::string_view bytes_;
  const std::string& origin_;
};

/// Offset of the record that ends the archive; a comment may follow it.
std::uint64_t find_directory_end(const ZipBytes& zip) {
  for (std::size_t comment = 0; comment <= kLongestComment; ++comment) {
    if (zip.size() < kDirectoryEndBytes + comment) break;
    const std::uint64_t offset = zip.size() - kDirectoryEndBytes - comment;
    if (zip.u32(offset) == kDirectoryEnd && zip.u16(offset + 20) == comment) return offset;
  }
  zip.fail("it does not end with a directory");
}

std::string inflated(const ZipBytes& zip, const std::string& name, std::string_view packed,
                     std::uint32_t size) {
  if (size > kMostDeflation * packed.size()) {
    zip.fail(fmt::format("{}: {} bytes do not deflate to {}", name, size, packed.size()));
  }
  std::string data(size, '\0');
  z_stream stream = {};
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(data.data());
  stream.avail_out = static_cast<uInt>(data.size());
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) zip.fail("zlib does not start");
  const int status = inflate(&stream, Z_FINISH);
  const bool whole = status == Z_STREAM_END && stream.avail_in == 0 && stream.avail_out == 0;
  inflateEnd(&stream);
  if (!whole) zip.fail(name + ": its deflated data are damaged");
  return data;
}

/// The member that the directory describes at `entry`.
std::pair<std::string, NpyArray> read_member(const ZipBytes& zip, const std::string& origin,
                                             std::uint64_t entry) {
  const std::string name(zip.part(entry + 46, zip.u16(entry + 28)));
  const std::uint32_t method = zip.u16(entry + 10);
  const std::uint32_t packed_size = zip.u32(entry + 20), size = zip.u32(entry + 24);
  if ((zip.u16(entry + 8) & 1u) != 0) zip.fail(name + ": it is encrypted");
  if (method != 0 && method != 8) {
    zip.fail(
        fmt::format("{}: compression method {}; accepted: 0 (stored), 8 (deflate)", name, method));
  }
  const std::uint64_t local = zip.u32(entry + 42);
  if (zip.u32(local) != kLocalHeader) zip.fail(name + ": no member where the directory says");
  const std::string_view packed =
      zip.part(local + 30 + zip.u16(local + 26) + zip.u16(local + 28), packed_size);
  if (method == 0 && size != packed_size) zip.fail(name + ": stored with two sizes");
  const std::string data = method == 0 ? std::string(packed) : inflated(zip, name, packed, size);
  const uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(data.data()), data.size());
  if (crc != zip.u32(entry + 16)) zip.fail(name + ": CRC-32 differs");
  constexpr std::string_view kSuffix = ".npy";
  const bool array = name.ends_with(kSuffix);
  return {array ? name.substr(0, name.size() - kSuffix.size()) : name,
          parse_npy(data, origin + ": " + name)};
}

}  // namespace

const NpyArray* NpzArchive::find(std::string_view name) const {
  for (const auto& [known, array] : arrays_) {
    if (known == name) return &array;
  }
  return nullptr;
}

NpzArchive parse_npz(std::string_view bytes, const std::string& origin) {
  const ZipBytes zip(bytes, origin);
  const std::uint64_t end = find_directory_end(zip);
  const std::uint32_t members = zip.u16(end + 10);
  if (zip.u16(end + 4) != 0 || zip.u16(end + 8) != members) zip.fail("it spans several disks");
  std::uint64_t entry = zip.u32(end + 16);
  std::vector<std::pair<std::string, NpyArray>> arrays;
  for (std::uint32_t i = 0; i < members; ++i) {
    if (zip.u32(entry) != kDirectoryEntry) {
      zip.fail(fmt::format("entry {} of its directory is none", i));
    }
    auto member = read_member(zip, origin, entry);
    for (const auto& [name, array] : arrays) {
      if (name == member.first) zip.fail(name + " twice");
    }
    arrays.push_back(std::move(member));
    entry += 46 + zip.u16(entry + 28) + zip.u16(entry + 30) + zip.u16(entry + 32);
  }
  return NpzArchive(std::move(arrays));
}

NpzArchive read_npz(const std::filesystem::path& path) {
  return parse_npz(read_file(path), path.string());
}

}  // namespace fp8lab
