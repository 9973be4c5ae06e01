// Writes small ZIP archives, as numpy.savez and savez_compressed do.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fp8lab::test {

using ZipMembers = std::vector<std::pair<std::string, std::string>>;  // name, bytes

inline std::string little_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xFFu);
  return text;
}

/// A raw deflate stream.
inline std::string deflated(const std::string& bytes) {
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string packed(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

inline std::string zip_file(const ZipMembers& members, bool compressed) {
  const std::string extra("AA\0\0", 4);  // an empty extra field, as readers must skip
  std::string file, directory;
  for (const auto& [name, bytes] : members) {
    const std::string data = compressed ? deflated(bytes) : bytes;
    const auto crc = crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
    // Version, flags, method, time, date, CRC-32, sizes, lengths of the name and of the extra
    // field.
    const std::string facts = little_endian(20, 2) + little_endian(0, 2) +
                              little_endian(compressed ? 8 : 0, 2) + little_endian(0, 4) +
                              little_endian(crc, 4) + little_endian(data.size(), 4) +
                              little_endian(bytes.size(), 4) + little_endian(name.size(), 2);
    directory += "PK\x01\x02" + little_endian(20, 2) + facts + std::string(12, '\0') +
                 little_endian(file.size(), 4) + name;
    file += "PK\x03\x04" + facts + little_endian(4, 2) + name + extra + data;
  }
  return file + directory + "PK\x05\x06" + std::string(4, '\0') + little_endian(members.size(), 2) +
         little_endian(members.size(), 2) + little_endian(directory.size(), 4) +
         little_endian(file.size(), 4) + std::string(2, '\0');
}

}  // namespace fp8lab::test
