// How OpenMP threads wait for each other.
#pragma once

namespace fp8lab::cli {

// Makes idle OpenMP threads sleep after a moment instead of spin, whatever the environment says. A
// thread that spins on takes the processor of the thread that it waits for wherever other work runs
// on the machine. OpenMP runtimes read their settings once, when they are loaded. So this sets the
// variables and executes the program again, in the same process, unless they are set already. Where
// that is not possible (no /proc), the program goes on with the policy that it has.
void sleep_when_idle(char** argv);

}  // namespace fp8lab::cli
