// Determines the rank of this process when mpirun or srun started it. Uses only environment
// variables: no MPI library is linked.
#pragma once

#include "src/study/study.hpp"

namespace fp8lab::cli {

struct StartedRank {
  StudyRank rank;
  int on_this_machine = 1;  ///< number of ranks on this machine, including this one
};

/// Reads OMPI_COMM_WORLD_RANK and _SIZE (Open MPI), PMI_RANK and PMI_SIZE (MPICH, Intel
/// MPI), or SLURM_PROCID and SLURM_NTASKS (srun). Throws Error if none of them is set,
/// or if a value is invalid.
StartedRank rank_of_this_process();

}  // namespace fp8lab::cli
