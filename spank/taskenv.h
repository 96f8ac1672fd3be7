/* The environment of a task, which is the job's: its owner may have put anything into it. */
#ifndef GANDIVA_TASKENV_H
#define GANDIVA_TASKENV_H

#include <slurm/spank.h>

#include "options.h"

/* The longest of a job's short variables, and of its lists of slots. */
#define SHORT_TEXT 64
#define SLOTS_SIZE 512

/* The variable of the job, "" when it is missing or does not fit. */
const char *gandiva_job_variable(spank_t sp, const char *name, char *value, int size);

/* What the user has set stays, where it is the user's to choose. */
void gandiva_set_variable(spank_t sp, const char *name, const char *value);

/* What was asked for an option, "" when nothing. */
const char *gandiva_asked(spank_t sp, enum gandiva_option option, char *value, int size);

/* Put the hook before PYTHONPATH, where it is wanted. */
void gandiva_set_hook(spank_t sp);

/* Name the directory of the job's own checkpoints to its ranks, where it named one. */
void gandiva_set_files(spank_t sp);

/* Let srun start as many tasks of an elastic job as there are now. */
void gandiva_set_size(spank_t sp);

#endif
