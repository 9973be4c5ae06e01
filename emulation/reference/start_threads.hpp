// The threads of parallel loops, before a loop needs them.
#pragma once

namespace fp8lab {

/// Makes the threads that parallel loops of the calling thread use, `count` with it, and keeps them
/// for the loops. Throws RuntimeFailure where the system refuses one, for want of memory or of
/// processes; the OpenMP library would end the process with words of its own.
void start_threads(int count);

}  // namespace fp8lab
