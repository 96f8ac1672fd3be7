/* What a new job takes along besides our options: SBATCH_GANDIVA_… defaults, the implied --gandiva, --signal. */
#ifndef GANDIVA_DEFAULTS_H
#define GANDIVA_DEFAULTS_H

#include <slurm/spank.h>

/* The signal that sbatch was given, in the job's spank_job_env. */
#define GANDIVA_SIGNAL_VARIABLE "GANDIVA_SIGNAL"

/* Remove what the environment of another Gandiva job left behind: its options are not ours. */
void gandiva_forget_outer_job(void);

/* After the command line was read: add the defaults for what it did not name. */
void gandiva_apply_defaults(spank_t sp);

/* Say what is foretold of a job that sbatch is asked to --test-only; nothing where there is no answer soon. */
void gandiva_foretell(void);

/* Hand on the signal that the job asks Slurm for by sbatch's --signal or SBATCH_SIGNAL, if it asks for one. */
void gandiva_hand_on_signal(spank_t sp);

#endif
