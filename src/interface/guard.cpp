#include "src/interface/guard.hpp"

#include <omp.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <string>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"

namespace fp8lab::interface {
namespace {

thread_local std::string last_error;

/// Handler of operator new. No exception may leave a parallel loop, so if memory runs out there,
/// the process prints one line and exits, as the program does.
void refuse_memory() {
  if (omp_get_level() == 0) throw std::bad_alloc();
  std::fputs("fp8lab: out of memory\n", stderr);
  std::_Exit(FP8LAB_RUNTIME_FAILURE);
}

void install_new_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (std::get_new_handler() == nullptr) std::set_new_handler(refuse_memory);
  });
}

fp8lab_status failed(fp8lab_status status, const char* text) noexcept {
  try {
    last_error = text;
  } catch (const std::exception&) {
    last_error.clear();  // no memory for the text
  }
  return status;
}

}  // namespace

fp8lab_status guarded(const std::function<void()>& work) noexcept {
  try {
    install_new_handler();
    work();
    return FP8LAB_OK;
  } catch (const Error& error) {
    return failed(FP8LAB_ERROR, error.what());
  } catch (const RuntimeFailure& failure) {
    return failed(FP8LAB_RUNTIME_FAILURE, failure.what());
  } catch (const std::bad_alloc&) {
    return failed(FP8LAB_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& fault) {
    return failed(FP8LAB_FAULT, fault.what());
  } catch (...) {
    return failed(FP8LAB_FAULT, "an exception of unknown type");
  }
}

std::string text_of(const char* text, const char* name) {
  if (text == nullptr) throw InputError({.where = name, .reason = "is NULL", .accepted = "a text"});
  return text;
}

}  // namespace fp8lab::interface

uint32_t fp8lab_interface_version(void) { return FP8LAB_INTERFACE_VERSION; }

const char* fp8lab_version(void) { return FP8LAB_VERSION; }

const char* fp8lab_last_error(void) { return fp8lab::interface::last_error.c_str(); }
