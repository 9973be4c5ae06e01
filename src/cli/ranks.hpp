// Which of several processes this one is, where mpirun or srun started it. What they are told by
// environment variables is enough: no MPI library is linked.
#pragma once

#include "src/study/study.hpp"

namespace fp8lab::cli {

struct StartedRank {
  StudyRank rank;
  int on_this_machine = 1;  ///< ranks beside this one and itself
};

/// From OMPI_COMM_WORLD_RANK and _SIZE (Open MPI), PMI_RANK and PMI_SIZE (MPICH, Intel MPI), or
/// SLURM_PROCID and SLURM_NTASKS (srun). Throws Error where none of them is set, or is no rank.
StartedRank rank_of_this_process();

}  // namespace fp8lab::cli
