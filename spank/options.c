/* options.c - the table of --gandiva options and their callback. */
#include "options.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

struct rule {
	const char *takes;
	bool (*is_good)(const char *text);
};

static const struct rule rules[OPT_COUNT] = {
	[OPT_GANDIVA] = {"no value", NULL},
	[OPT_TICKETS] = {"a whole number from 1 to 1000", gandiva_is_tickets},
	[OPT_PRIORITY] = {"a whole number from 0 to 100", gandiva_is_priority},
	[OPT_CLASS] = {"guaranteed or opportunistic", gandiva_is_class},
	[OPT_VC] = {"a name of letters, digits, '_', '.' and '-'", gandiva_is_name},
	[OPT_GPU_TYPES] = {"GPU types separated by commas, as in v100,p100", gandiva_is_name_list},
	[OPT_CELL] = {"gpu, switch, socket, node or any", gandiva_is_cell},
	[OPT_ELASTIC] = {"MIN-MAX, whole numbers with 1 <= MIN <= MAX, as in 2-8", gandiva_is_elastic},
	[OPT_PACK] = {"auto or never", gandiva_is_auto_or_never},
	[OPT_MIGRATE] = {"auto or never", gandiva_is_auto_or_never},
	[OPT_HOOK] = {"auto or none", gandiva_is_auto_or_none},
	[OPT_CHECKPOINT] = {"auto, signal[:NAME[@SECONDS[:DIR]]], submitit, self[:DIR] or none", gandiva_is_checkpoint},
};

static int on_option(int val, const char *optarg, int remote);

#define OPTION(number, text, argument, help) \
	[number] = {(char *)(text), (char *)(argument), (char *)("[gandiva] " help), \
		    (number) != OPT_GANDIVA, number, on_option}

static struct spank_option table[OPT_COUNT] = {
	OPTION(OPT_GANDIVA, "gandiva", NULL, "let Gandiva schedule this job: its GPUs are shared by time slices"),
	OPTION(OPT_TICKETS, "gandiva-tickets", "N", "weight among your own jobs, 1 to 1000 (default 100)"),
	OPTION(OPT_PRIORITY, "gandiva-priority", "N", "0 to 100 among your own jobs (default 50)"),
	OPTION(OPT_CLASS, "gandiva-class", "NAME", "guaranteed (default) or opportunistic"),
	OPTION(OPT_VC, "gandiva-vc", "NAME", "virtual cluster it draws its GPUs from"),
	OPTION(OPT_GPU_TYPES, "gandiva-gpu-types", "LIST", "GPU types it may run on, as in v100,p100 (default all)"),
	OPTION(OPT_CELL, "gandiva-cell", "LEVEL",
	       "level its GPUs share: gpu, switch, socket, node, or any (default)"),
	OPTION(OPT_ELASTIC, "gandiva-elastic", "MIN-MAX", "GPUs it can shrink to and grow to"),
	OPTION(OPT_PACK, "gandiva-pack", "WORD", "auto (default) or never share a GPU with another job"),
	OPTION(OPT_MIGRATE, "gandiva-migrate", "WORD", "auto (default) or never move to another node"),
	OPTION(OPT_HOOK, "gandiva-hook", "WORD", "auto (default) or none: find mini-batches in the script"),
	OPTION(OPT_CHECKPOINT, "gandiva-checkpoint", "HOW",
	       "how the job itself saves: auto (default), signal[:NAME[@SECONDS[:DIR]]],"
	       " submitit, self[:DIR] or none"),
};

struct choice {
	bool is_given;
	char value[GANDIVA_VALUE_MAX + 1];
};

static struct choice choices[OPT_COUNT];

/*
 * Slurm may call this twice for an option (environment, then command line): the last call counts.
 * A non-zero return rejects the submission. On the node a wrong value is only left out: it comes
 * from the job's environment, which its owner may have changed since.
 */
static int on_option(int val, const char *optarg, int remote)
{
	enum gandiva_option option = (enum gandiva_option)val;
	char where[GANDIVA_VARIABLE_SIZE];

	if (val < 0 || val >= OPT_COUNT)
		return -1;
	if (option == OPT_GANDIVA)
		optarg = "";
	snprintf(where, sizeof(where), "--%s", table[option].name);
	if (!gandiva_option_check(option, where, optarg == NULL ? "" : optarg))
		return remote ? 0 : -1;
	snprintf(choices[option].value, sizeof(choices[option].value), "%s", optarg);
	choices[option].is_given = true;
	return 0;
}

int gandiva_options_register(spank_t sp)
{
	for (int i = 0; i < OPT_COUNT; i++) {
		spank_err_t error = spank_option_register(sp, &table[i]);

		if (error != ESPANK_SUCCESS) {
			slurm_error("gandiva: --%s cannot be registered: %s", table[i].name, spank_strerror(error));
			return -1;
		}
	}
	return 0;
}

const char *gandiva_option_value(enum gandiva_option option)
{
	return choices[option].is_given ? choices[option].value : NULL;
}

bool gandiva_any_option(void)
{
	for (int i = 0; i < OPT_COUNT; i++) {
		if (choices[i].is_given)
			return true;
	}
	return false;
}

bool gandiva_option_check(enum gandiva_option option, const char *where, const char *value)
{
	const struct rule *rule = &rules[option];
	char shown[GANDIVA_SHOWN_SIZE];

	if (rule->is_good == NULL || (strlen(value) <= GANDIVA_VALUE_MAX && rule->is_good(value)))
		return true;
	gandiva_printable(value, shown, sizeof(shown));
	slurm_error("gandiva: %s: got \"%s\", takes %s", where, shown, rule->takes);
	return false;
}

/* "gandiva-gpu-types" becomes gandiva_gpu_types, or GANDIVA_GPU_TYPES. */
static void append_name(enum gandiva_option option, bool is_upper, char *name, size_t size)
{
	const char *from = table[option].name;
	size_t used = strlen(name);

	for (; *from != '\0' && used + 1 < size; from++) {
		char letter = *from == '-' ? '_' : *from;

		name[used++] = is_upper ? (char)toupper((unsigned char)letter) : letter;
	}
	name[used] = '\0';
}

void gandiva_option_variable(enum gandiva_option option, char *name, size_t size)
{
	snprintf(name, size, "_SLURM_SPANK_OPTION_gandiva_");
	append_name(option, false, name, size);
}

void gandiva_inner_variable(enum gandiva_option option, char *name, size_t size)
{
	snprintf(name, size, "SLURM_SPANK__SLURM_SPANK_OPTION_gandiva_");
	append_name(option, false, name, size);
}

void gandiva_default_variable(enum gandiva_option option, char *name, size_t size)
{
	snprintf(name, size, "SBATCH_");
	append_name(option, true, name, size);
}
