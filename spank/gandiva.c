/*
 * gandiva.c - SPANK plugin of gandiva-slurm: the dispatcher.
 *
 * Slurm loads the plugin into sbatch, salloc, srun, slurmd and slurmstepd. Each context has its own
 * file; here is only the choice. In slurmd and in prolog and epilog scripts there is nothing to do.
 *
 * The plugin fails open. On a node it returns 0 whatever happens: a job that is not Gandiva's never loses its
 * start, nor a node its state, because of our bookkeeping. Only a task of a job that Gandiva planned, and that
 * cannot be bound, is ended: it would run on GPUs that are another's. It links nothing: its only interface is spank.h.
 */
#include <stdbool.h>

#include <slurm/spank.h>

#include "config.h"
#include "contexts.h"

SPANK_PLUGIN(gandiva, 1)

/* Set when plugstack.conf is wrong: then we register no option and do nothing at all. */
static bool disabled;

int slurm_spank_init(spank_t sp, int ac, char **av)
{
	if (gandiva_config_parse(ac, av) < 0) {
		disabled = true;
		return 0;
	}
	switch (spank_context()) {
	case S_CTX_ALLOCATOR:
		return gandiva_allocator_init(sp);
	case S_CTX_LOCAL:
		return gandiva_srun_init(sp);
	case S_CTX_REMOTE:
		return gandiva_stepd_init(sp);
	default:
		return 0;
	}
}

int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	if (disabled)
		return 0;
	switch (spank_context()) {
	case S_CTX_ALLOCATOR:
		return gandiva_allocator_post_opt(sp);
	case S_CTX_LOCAL:
		return gandiva_srun_post_opt(sp);
	default:
		return 0;
	}
}

/* As root, in the process that becomes the task. */
int slurm_spank_task_init_privileged(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	if (disabled || spank_context() != S_CTX_REMOTE)
		return 0;
	return gandiva_stepd_task_init_privileged(sp);
}

int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	if (disabled || spank_context() != S_CTX_REMOTE)
		return 0;
	return gandiva_stepd_task_init(sp);
}
