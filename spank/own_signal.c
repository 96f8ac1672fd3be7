/*
 * own_signal.c - sbatch's own --signal, and SBATCH_SIGNAL, for job_submit.lua.
 *
 * Slurm 22.05 shows job_submit.lua a script's #SBATCH lines, and no field for the signal that was asked on
 * the command line. sbatch has read that with getopt_long, which stops at the script: `optind` is there.
 */
#include "defaults.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* [R|B:]NAME[@SECONDS], its '\0' included; what is longer sbatch refuses. */
#define SIGNAL_SIZE 32

/*
 * True where the word is sbatch's --signal; `value` is what stands behind its '=', NULL where the next
 * word is the value. getopt_long takes the beginning of a name, too, where no other option begins so.
 */
static bool is_signal_option(const char *word, const char **value)
{
	static const char name[] = "signal", shortest[] = "sig";
	size_t length;

	if (strncmp(word, "--", 2) != 0)
		return false;
	word += 2;
	length = strcspn(word, "=");
	if (length < strlen(shortest) || strncmp(name, word, length) != 0)
		return false;
	*value = word[length] == '=' ? word + length + 1 : NULL;
	return true;
}

static void keep(char *found, const char *value)
{
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:@";

	if (strlen(value) < SIGNAL_SIZE && strspn(value, letters) == strlen(value))
		snprintf(found, SIGNAL_SIZE, "%s", value);
}

/* The last --signal before the script counts, as with sbatch. */
static void read_command_line(char *found)
{
	FILE *file = fopen("/proc/self/cmdline", "re");
	char *word = NULL;
	size_t size = 0;
	bool is_next = false;

	if (file == NULL)
		return;
	for (int i = 0; i < optind && getdelim(&word, &size, '\0', file) > 0; i++) {
		const char *value = NULL;

		if (is_next) {
			keep(found, word);
			is_next = false;
		} else if (i > 0 && is_signal_option(word, &value)) {
			is_next = value == NULL;
			if (value != NULL)
				keep(found, value);
		}
	}
	free(word);
	(void)fclose(file);
}

/* Of ordinary jobs, too: which partitions are Gandiva's is known to job_submit.lua alone. */
void gandiva_hand_on_signal(spank_t sp)
{
	const char *by_default = getenv("SBATCH_SIGNAL");
	char found[SIGNAL_SIZE] = "";

	if (by_default != NULL)
		keep(found, by_default);
	read_command_line(found);
	if (found[0] != '\0' && spank_job_control_setenv(sp, GANDIVA_SIGNAL_VARIABLE, found, 1) != ESPANK_SUCCESS)
		slurm_error("gandiva: --signal cannot be handed to Slurm; write it into the script, as #SBATCH --signal");
}
