/* The hooks of each SPANK context: one file a context, chosen by gandiva.c. */
#ifndef GANDIVA_CONTEXTS_H
#define GANDIVA_CONTEXTS_H

#include <slurm/spank.h>

/* sbatch and salloc (allocator.c) */
int gandiva_allocator_init(spank_t sp);
int gandiva_allocator_post_opt(spank_t sp);

/* srun (srun.c) */
int gandiva_srun_init(spank_t sp);
int gandiva_srun_post_opt(spank_t sp);

/* slurmstepd, on the node (stepd.c) */
int gandiva_stepd_init(spank_t sp);
int gandiva_stepd_task_init_privileged(spank_t sp);
int gandiva_stepd_task_init(spank_t sp);

#endif
