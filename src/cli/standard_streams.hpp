// Descriptors 0, 1 and 2 of a program that was started without them.
#pragma once

namespace fp8lab::cli {

/// Opens /dev/null for each standard stream that is closed. Otherwise the next file to be opened, a
/// run file say, would get its descriptor, and what is printed would be written into it.
void open_standard_streams();

}  // namespace fp8lab::cli
