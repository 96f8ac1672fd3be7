/* What a new job takes along besides its command line: SBATCH_GANDIVA_… defaults, the implied --gandiva. */
#ifndef GANDIVA_DEFAULTS_H
#define GANDIVA_DEFAULTS_H

#include <slurm/spank.h>

/* Remove what the environment of another Gandiva job left behind: its options are not ours. */
void gandiva_forget_outer_job(void);

/* After the command line was read: add the defaults for what it did not name. */
void gandiva_apply_defaults(spank_t sp);

#endif
