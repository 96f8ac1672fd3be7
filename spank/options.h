/* The --gandiva options: their table, what was chosen, the names Slurm carries them under. */
#ifndef GANDIVA_OPTIONS_H
#define GANDIVA_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include <slurm/spank.h>

enum gandiva_option {
	OPT_GANDIVA,
	OPT_TICKETS,
	OPT_PRIORITY,
	OPT_CLASS,
	OPT_VC,
	OPT_GPU_TYPES,
	OPT_CELL,
	OPT_ELASTIC,
	OPT_PACK,
	OPT_MIGRATE,
	OPT_HOOK,
	OPT_CHECKPOINT,
	OPT_COUNT
};

/* Longest variable name built here, its '\0' included. */
#define GANDIVA_VARIABLE_SIZE 128

/* What a task may be told besides, where NVIDIA's MPS runs. */
#define GANDIVA_MPS_VARIABLE "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

/* Register every option; needed in each context in which one is used (spank(8)). */
int gandiva_options_register(spank_t sp);

/* What was given for an option, NULL when it was not given. "" for --gandiva itself. */
const char *gandiva_option_value(enum gandiva_option option);

/* True when any option was given. */
bool gandiva_any_option(void);

/* Check a value; when it is wrong log one sentence that begins with `where` and return false. */
bool gandiva_option_check(enum gandiva_option option, const char *where, const char *value);

/* The name under which Slurm hands the option to job_submit.lua and to the node. */
void gandiva_option_variable(enum gandiva_option option, char *name, size_t size);

/* The name under which a task of the job finds the option in its environment; srun in it reads that. */
void gandiva_inner_variable(enum gandiva_option option, char *name, size_t size);

/* SBATCH_GANDIVA_<NAME>, the user's default for the option. */
void gandiva_default_variable(enum gandiva_option option, char *name, size_t size);

#endif
