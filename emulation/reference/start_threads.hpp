// Starts the threads of parallel loops before a loop needs them.
#pragma once

namespace fp8lab {

/// Starts the threads that parallel loops of the calling thread use, `count` including itself, and
/// keeps them for the loops. Throws RuntimeFailure if the system refuses a thread for lack of
/// memory or processes. The OpenMP library would instead end the process with a message of its own.
void start_threads(int count);

}  // namespace fp8lab
