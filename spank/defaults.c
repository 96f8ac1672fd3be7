/*
 * defaults.c - SBATCH_GANDIVA_<NAME> in the user's environment, and the implied --gandiva.
 *
 * Slurm has written the command line's options into the environment (they travel with the job to its
 * node) and into the job's spank_job_env (job_submit.lua reads that) before it calls us; what we add
 * must go to both. A hook of an `optional` plugin cannot reject a submission: its failure is ignored.
 * So a wrong default is told here, naming its variable, and handed on, and job_submit.lua refuses it.
 */
#include "defaults.h"

#include <stdbool.h>
#include <stdlib.h>
#include <strings.h>

#include "check.h"
#include "options.h"

static bool is_word(const char *text, const char *const *words)
{
	for (; *words != NULL; words++) {
		if (strcasecmp(text, *words) == 0)
			return true;
	}
	return false;
}

static void hand_on(spank_t sp, enum gandiva_option option, const char *value)
{
	char name[GANDIVA_VARIABLE_SIZE];

	gandiva_option_variable(option, name, sizeof(name));
	if (spank_job_control_setenv(sp, name, value, 1) != ESPANK_SUCCESS || setenv(name, value, 1) < 0)
		slurm_error("gandiva: %s cannot be handed to Slurm; give the option on the command line", name);
}

/*
 * What the user's default for --gandiva itself asks: "1" for yes, NULL for no, and anything else as it
 * stands, for job_submit.lua to refuse.
 */
static const char *asked_by_default(void)
{
	static const char *const yes[] = {"1", "yes", "true", "on", NULL};
	static const char *const no[] = {"", "0", "no", "false", "off", NULL};
	const char *value = getenv("SBATCH_GANDIVA");
	char shown[GANDIVA_SHOWN_SIZE];

	if (value == NULL || is_word(value, no))
		return NULL;
	if (is_word(value, yes))
		return "1";
	gandiva_printable(value, shown, sizeof(shown));
	slurm_error("gandiva: SBATCH_GANDIVA: got \"%s\", takes 1 or 0", shown);
	return value;
}

void gandiva_forget_outer_job(void)
{
	static const char *const given_to_tasks[] = {
		"GANDIVA_JOB", "GANDIVA_RESTART", "GANDIVA_NODE", "GANDIVA_SOCKET"};
	char name[GANDIVA_VARIABLE_SIZE];

	/* Slurm leaves this to the new job, which was never restarted, and gandivad would believe it. */
	if (getenv("GANDIVA_JOB") != NULL) {
		unsetenv("SLURM_RESTART_COUNT");
		unsetenv(GANDIVA_MPS_VARIABLE);
	}
	for (int i = 0; i < OPT_COUNT; i++) {
		gandiva_option_variable((enum gandiva_option)i, name, sizeof(name));
		unsetenv(name);
		gandiva_inner_variable((enum gandiva_option)i, name, sizeof(name));
		unsetenv(name);
	}
	unsetenv("SLURM_SPANK_" GANDIVA_SIGNAL_VARIABLE);
	for (size_t i = 0; i < sizeof(given_to_tasks) / sizeof(given_to_tasks[0]); i++)
		unsetenv(given_to_tasks[i]);
}

void gandiva_apply_defaults(spank_t sp)
{
	const char *wish = gandiva_any_option() ? "1" : asked_by_default();
	char name[GANDIVA_VARIABLE_SIZE];

	/* The other defaults do not count here: they say how a Gandiva job is run, not that a job is one. */
	if (wish != NULL)
		hand_on(sp, OPT_GANDIVA, wish);
	for (int i = OPT_GANDIVA + 1; i < OPT_COUNT; i++) {
		enum gandiva_option option = (enum gandiva_option)i;
		const char *value;

		gandiva_default_variable(option, name, sizeof(name));
		value = getenv(name);
		if (value == NULL || value[0] == '\0' || gandiva_option_value(option) != NULL)
			continue;
		(void)gandiva_option_check(option, name, value);
		hand_on(sp, option, value);
	}
}
