/* taskenv.c - what a task's environment says, and what it is given besides. */
#include "taskenv.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "config.h"

#define PYTHONPATH_SIZE 32768

/* The variable of the job, "" when it is missing or does not fit. */
const char *gandiva_job_variable(spank_t sp, const char *name, char *value, int size)
{
	if (spank_getenv(sp, name, value, size) != ESPANK_SUCCESS)
		value[0] = '\0';
	return value;
}

/* What the user has set stays, where it is the user's to choose. */
void gandiva_set_variable(spank_t sp, const char *name, const char *value)
{
	int overwrite = strcmp(name, "GANDIVA_CHECKPOINT_DIR") != 0;
	spank_err_t error = spank_setenv(sp, name, value, overwrite);

	if (error != ESPANK_SUCCESS && (overwrite || error != ESPANK_ENV_EXISTS))
		slurm_info("gandiva: %s cannot be set: %s", name, spank_strerror(error));
}

/*
 * What was asked for an option, "" when nothing. The option itself does not arrive with a batch job
 * under `sbatch --export=NONE`; the copy for srun inside the job does.
 */
const char *gandiva_asked(spank_t sp, enum gandiva_option option, char *value, int size)
{
	char name[GANDIVA_VARIABLE_SIZE];

	if (gandiva_option_value(option) != NULL) {
		snprintf(value, (size_t)size, "%s", option == OPT_GANDIVA ? "1" : gandiva_option_value(option));
		return value;
	}
	gandiva_inner_variable(option, name, sizeof(name));
	return gandiva_job_variable(sp, name, value, size);
}

/* True when PYTHONPATH begins with the hook already: a step inherits it from the batch script. */
static bool begins_with(const char *path, const char *hook)
{
	size_t length = strlen(hook);

	return strncmp(path, hook, length) == 0 && (path[length] == '\0' || path[length] == ':');
}

void gandiva_set_hook(spank_t sp)
{
	static char path[PYTHONPATH_SIZE], longer[PYTHONPATH_SIZE];
	char wish[SHORT_TEXT];
	spank_err_t error;

	if (gandiva_config.hook == NULL || strcmp(gandiva_asked(sp, OPT_HOOK, wish, sizeof(wish)), "none") == 0)
		return;
	error = spank_getenv(sp, "PYTHONPATH", path, sizeof(path));
	if (error == ESPANK_ENV_NOEXIST || (error == ESPANK_SUCCESS && path[0] == '\0')) {
		gandiva_set_variable(sp, "PYTHONPATH", gandiva_config.hook);
		return;
	}
	if (error != ESPANK_SUCCESS || begins_with(path, gandiva_config.hook))
		return;
	if (snprintf(longer, sizeof(longer), "%s:%s", gandiva_config.hook, path) < (int)sizeof(longer))
		gandiva_set_variable(sp, "PYTHONPATH", longer);
}

void gandiva_set_files(spank_t sp)
{
	char asked[GANDIVA_VALUE_MAX + 1];

	const char *files = gandiva_own_files(gandiva_asked(sp, OPT_CHECKPOINT, asked, sizeof(asked)));

	if (files != NULL)
		gandiva_set_variable(sp, "GANDIVA_CHECKPOINT_FILES", files);
}

/* True when the variable of the job is one whole number. */
static bool job_number(spank_t sp, const char *name, char *value, int size)
{
	return gandiva_is_slot_list(gandiva_job_variable(sp, name, value, size)) && strchr(value, ',') == NULL;
}

/*
 * An elastic job may have more or fewer tasks and GPUs than it was submitted with. sbatch's own variables
 * stay those of the submission, and srun takes them for options: let it start as many as there are now.
 */
void gandiva_set_size(spank_t sp)
{
	char text[SHORT_TEXT];
	long tasks;

	if (gandiva_asked(sp, OPT_ELASTIC, text, sizeof(text))[0] == '\0')
		return;
	tasks = gandiva_tasks_in_all(gandiva_job_variable(sp, "SLURM_TASKS_PER_NODE", text, sizeof(text)));
	if (tasks > 0) {
		snprintf(text, sizeof(text), "%ld", tasks);
		gandiva_set_variable(sp, "SLURM_NTASKS", text);
		gandiva_set_variable(sp, "SLURM_NPROCS", text);
	}
	if (gandiva_job_variable(sp, "SLURM_GPUS_PER_NODE", text, sizeof(text))[0] != '\0' &&
	    job_number(sp, "SLURM_GPUS_ON_NODE", text, sizeof(text)))
		gandiva_set_variable(sp, "SLURM_GPUS_PER_NODE", text);
}
