// Wait policy of OpenMP threads.
#pragma once

namespace fp8lab::cli {

// Makes idle OpenMP threads sleep after a short spin, whatever the environment says. On a machine
// with other work, a spinning thread takes the processor of the thread it waits for. OpenMP
// runtimes read their settings once, when they are loaded. This function therefore sets the
// variables and executes the program again in the same process, unless they are already set. If
// that is not possible (no /proc), the program continues with the existing policy.
void sleep_when_idle(char** argv);

}  // namespace fp8lab::cli
