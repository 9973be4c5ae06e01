// Attributes of Hdf5File.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "emulation/base/input_error.hpp"
#include "src/io/hdf5/hdf5.hpp"
#include "src/io/sha256.hpp"

namespace fp8lab {
namespace {

/// Returns the type of fixed-size UTF-8, padded with NUL. Texts of variable length lie in a
/// heap without a checksum, where one wrong bit crashes HDF5; fixed-size texts lie in the
/// checked header of their object.
Hdf5Handle text_type(std::size_t size, const Hdf5Status& status) {
  Hdf5Handle type = status.own(H5Tcopy(H5T_C_S1), H5Tclose, "H5Tcopy");
  status.check(H5Tset_size(type.get(), size), "H5Tset_size");
  status.check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), "H5Tset_strpad");
  status.check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "H5Tset_cset");
  return type;
}

/// The string type of files of the first schema, and of h5py's files.
Hdf5Handle variable_text_type(const Hdf5Status& status) { return text_type(H5T_VARIABLE, status); }

Hdf5Handle scalar_space(const Hdf5Status& status) {
  return status.own(H5Screate(H5S_SCALAR), H5Sclose, "H5Screate");
}

constexpr char kChecksum[] = "checksum";

std::string netstring(const std::string& text) { return fmt::format("{}:{}", text.size(), text); }

void refuse_nul(const std::string& text, const std::string& name) {
  if (text.find('\0') != std::string::npos) {
    throw InputError({.where = fmt::format("attribute '{}'", name),
                      .reason = "a text with a NUL byte cannot be stored"});
  }
}

}  // namespace

void Hdf5File::write_attribute(const std::string& object, const std::string& name, hid_t type,
                               const Hdf5Handle& space, const void* value) {
  const Hdf5Handle attribute =
      status_.own(H5Acreate_by_name(handle_.get(), object.c_str(), name.c_str(), type, space.get(),
                                    H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                  H5Aclose, "H5Acreate_by_name", object + "@" + name);
  status_.check(H5Awrite(attribute.get(), type, value), "H5Awrite", object + "@" + name);
}

void Hdf5File::set_attribute(const std::string& object, const std::string& name,
                             const std::string& value) {
  refuse_nul(value, name);
  const std::size_t size = std::max<std::size_t>(value.size(), 1);  // HDF5 has no empty string type
  write_attribute(object, name, text_type(size, status_).get(), scalar_space(status_),
                  value.c_str());
}

void Hdf5File::set_attribute(const std::string& object, const std::string& name,
                             std::int64_t value) {
  write_attribute(object, name, H5T_NATIVE_INT64, scalar_space(status_), &value);
}

void Hdf5File::set_attribute(const std::string& object, const std::string& name,
                             std::uint64_t value) {
  write_attribute(object, name, H5T_NATIVE_UINT64, scalar_space(status_), &value);
}

void Hdf5File::set_attribute(const std::string& object, const std::string& name, double value) {
  write_attribute(object, name, H5T_NATIVE_DOUBLE, scalar_space(status_), &value);
}

void Hdf5File::set_attribute(const std::string& object, const std::string& name,
                             const std::vector<std::string>& values) {
  std::size_t size = 1;
  for (const std::string& value : values) {
    refuse_nul(value, name);
    size = std::max(size, value.size());
  }
  std::string texts;
  for (std::string value : values) {
    value.resize(size, '\0');
    texts += value;
  }
  const hsize_t count = values.size();
  const Hdf5Handle space =
      status_.own(H5Screate_simple(1, &count, nullptr), H5Sclose, "H5Screate_simple");
  write_attribute(object, name, text_type(size, status_).get(), space, texts.c_str());
}

bool Hdf5File::has_attribute(const std::string& object, const std::string& name) const {
  return has(object) &&
         status_.check(H5Aexists_by_name(handle_.get(), object.c_str(), name.c_str(), H5P_DEFAULT),
                       "H5Aexists_by_name", object) > 0;
}

std::vector<std::string> Hdf5File::attribute_names(const std::string& object) const {
  const auto collect = [](hid_t, const char* name, const H5A_info_t*, void* data) -> herr_t {
    static_cast<std::vector<std::string>*>(data)->emplace_back(name);
    return 0;
  };
  static_cast<void>(has(object));  // refuses links on the way
  std::vector<std::string> names;
  hsize_t position = 0;
  status_.check(H5Aiterate_by_name(handle_.get(), object.c_str(), H5_INDEX_NAME, H5_ITER_NATIVE,
                                   &position, collect, &names, H5P_DEFAULT),
                "H5Aiterate_by_name", object);
  std::sort(names.begin(), names.end());
  return names;
}

void Hdf5File::read_scalar(const std::string& object, const std::string& name, hid_t type,
                           H5T_class_t expected, void* value) const {
  const std::string where = object + "@" + name;
  static_cast<void>(has(object));  // refuses links on the way
  const Hdf5Handle attribute = status_.own(
      H5Aopen_by_name(handle_.get(), object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose, "H5Aopen_by_name", where);
  const Hdf5Handle stored = status_.own(H5Aget_type(attribute.get()), H5Tclose, "H5Aget_type");
  const Hdf5Handle space = status_.own(H5Aget_space(attribute.get()), H5Sclose, "H5Aget_space");
  if (H5Tget_class(stored.get()) != expected ||
      H5Sget_simple_extent_type(space.get()) != H5S_SCALAR) {
    throw InputError(
        {.where = this->name(), .noun = "attribute", .key = where, .reason = "has another type"});
  }
  status_.check(H5Aread(attribute.get(), type, value), "H5Aread", where);
}

std::int64_t Hdf5File::integer_attribute(const std::string& object, const std::string& name) const {
  std::int64_t value = 0;
  read_scalar(object, name, H5T_NATIVE_INT64, H5T_INTEGER, &value);
  return value;
}

double Hdf5File::number_attribute(const std::string& object, const std::string& name) const {
  double value = 0;
  read_scalar(object, name, H5T_NATIVE_DOUBLE, H5T_FLOAT, &value);
  return value;
}

std::uint64_t Hdf5File::unsigned_attribute(const std::string& object,
                                           const std::string& name) const {
  std::uint64_t value = 0;
  read_scalar(object, name, H5T_NATIVE_UINT64, H5T_INTEGER, &value);
  return value;
}

std::vector<std::string> Hdf5File::read_texts(const std::string& object, const std::string& name,
                                              bool scalar) const {
  const std::string where = object + "@" + name;
  static_cast<void>(has(object));  // refuses links on the way
  const Hdf5Handle attribute = status_.own(
      H5Aopen_by_name(handle_.get(), object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose, "H5Aopen_by_name", where);
  const Hdf5Handle stored = status_.own(H5Aget_type(attribute.get()), H5Tclose, "H5Aget_type");
  const Hdf5Handle space = status_.own(H5Aget_space(attribute.get()), H5Sclose, "H5Aget_space");
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (H5Tget_class(stored.get()) != H5T_STRING ||
      H5Sget_simple_extent_type(space.get()) == H5S_NULL || rank != (scalar ? 0 : 1)) {
    throw InputError(
        {.where = this->name(), .noun = "attribute", .key = where, .reason = "has another type"});
  }
  const auto count = static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.get()));
  constexpr std::size_t kMostTexts = 4096;
  if (count > kMostTexts) {
    throw InputError({.where = this->name(),
                      .noun = "attribute",
                      .key = where,
                      .reason = fmt::format("has {} entries", count)});
  }
  if (H5Tis_variable_str(stored.get()) > 0) return read_variable(attribute, count, where);
  const std::size_t size = H5Tget_size(stored.get());
  constexpr std::size_t kMostBytes = std::size_t{64} << 20;
  if (size > kMostBytes / std::max<std::size_t>(count, 1)) {
    throw InputError({.where = this->name(),
                      .noun = "attribute",
                      .key = where,
                      .reason = fmt::format("has texts of {} bytes", size)});
  }
  std::string bytes(count * size, '\0');
  const Hdf5Handle type = text_type(size, status_);
  if (count > 0)
    status_.check(H5Aread(attribute.get(), type.get(), bytes.data()), "H5Aread", where);
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < count; ++i) {
    texts.push_back(bytes.substr(i * size, size));
    texts.back().resize(std::min(texts.back().find('\0'), size));
  }
  return texts;
}

std::vector<std::string> Hdf5File::read_variable(const Hdf5Handle& attribute, std::size_t count,
                                                 const std::string& where) const {
  std::vector<char*> pointers(count + 1, nullptr);
  const Hdf5Handle type = variable_text_type(status_);
  status_.check(H5Aread(attribute.get(), type.get(), pointers.data()), "H5Aread", where);
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < count; ++i) {
    const std::unique_ptr<char, decltype(&H5free_memory)> owned(pointers[i], &H5free_memory);
    texts.emplace_back(owned == nullptr ? "" : owned.get());
  }
  return texts;
}

/// Returns the value in the form that the checksum uses.
std::string Hdf5File::attribute_text(const std::string& object, const std::string& name) const {
  const std::string where = object + "@" + name;
  const Hdf5Handle attribute = status_.own(
      H5Aopen_by_name(handle_.get(), object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose, "H5Aopen_by_name", where);
  const Hdf5Handle type = status_.own(H5Aget_type(attribute.get()), H5Tclose, "H5Aget_type");
  if (H5Tget_class(type.get()) == H5T_INTEGER) {
    return H5Tget_sign(type.get()) == H5T_SGN_NONE
               ? std::to_string(unsigned_attribute(object, name))
               : std::to_string(integer_attribute(object, name));
  }
  const Hdf5Handle space = status_.own(H5Aget_space(attribute.get()), H5Sclose, "H5Aget_space");
  if (H5Sget_simple_extent_type(space.get()) == H5S_SCALAR) return text_attribute(object, name);
  std::string text;
  for (const std::string& entry : list_attribute(object, name)) text += netstring(entry);
  return text;
}

std::string Hdf5File::attributes_checksum(const std::string& object) const {
  std::string all;
  for (const std::string& name : attribute_names(object)) {
    if (name != kChecksum) all += netstring(name) + netstring(attribute_text(object, name));
  }
  return sha256(all);
}

void Hdf5File::seal_attributes(const std::string& object) {
  set_attribute(object, kChecksum, attributes_checksum(object));
}

void Hdf5File::check_attributes(const std::string& object) const {
  const bool sealed = has_attribute(object, kChecksum);
  if (sealed && text_attribute(object, kChecksum) == attributes_checksum(object)) return;
  throw InputError(
      {.where = name(),
       .reason = fmt::format("damaged: the attributes of {} do not have their checksum", object)});
}

std::string Hdf5File::text_attribute(const std::string& object, const std::string& name) const {
  return read_texts(object, name, true).front();
}

std::vector<std::string> Hdf5File::list_attribute(const std::string& object,
                                                  const std::string& name) const {
  return read_texts(object, name, false);
}

}  // namespace fp8lab
