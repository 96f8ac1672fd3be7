/* srun.c - in srun, which makes a job of its own or a step of the job it runs in. */
#include "contexts.h"

#include <stdbool.h>
#include <stdlib.h>

#include "defaults.h"
#include "options.h"

/* A step belongs to the job around it, whose options were settled when that was submitted. */
static bool is_inside_a_job(void)
{
	return getenv("SLURM_JOB_ID") != NULL;
}

int gandiva_srun_init(spank_t sp)
{
	return gandiva_options_register(sp);
}

int gandiva_srun_post_opt(spank_t sp)
{
	if (!is_inside_a_job())
		gandiva_apply_defaults(sp);
	return 0;
}
