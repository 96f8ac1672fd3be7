/*
 * spank_host.c - stands in for sbatch, srun, slurmd or slurmstepd: loads a SPANK plugin, runs its hooks
 * in Slurm's order and prints what it does.
 *
 * usage: spank_host PLUGIN.so local|allocator|remote|slurmd [WORD...]
 *   arg:KEY=VALUE     an argument of the plugstack line        opt:NAME[=VALUE]  an option, in this order
 *   env:NAME=VALUE    the job's environment (remote)           job:N step:N task:N uid:N  what spank_get_item says
 *   late:NAME=VALUE   the same, not there yet in root's hook    script  where sbatch's own options end (else: the end)
 * prints: option NAME | error TEXT | info TEXT | rc HOOK N | set NAME=VALUE (the job's environment) |
 *   control NAME=VALUE (the job's spank_job_env) | mine NAME=VALUE (this process's environment, at the end)
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

#define MANY 64

extern char **environ;

static enum spank_context context;
static struct spank_option options[MANY];
static int option_count;
static char *job_env[MANY];
static int job_env_count;
static char *plugstack[MANY];
static int plugstack_count;
static uint32_t job_id = 5, step_id;
static int task_id;
static uid_t uid = 61001;

enum spank_context spank_context(void)
{
	return context;
}

const char *spank_strerror(spank_err_t error)
{
	return error == ESPANK_SUCCESS ? "no error" : "some error";
}

static void say(const char *kind, const char *format, va_list list)
{
	printf("%s ", kind);
	vprintf(format, list);
	putchar('\n');
	fflush(stdout);
}

void slurm_error(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	say("error", format, list);
	va_end(list);
}

void slurm_info(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	say("info", format, list);
	va_end(list);
}

spank_err_t spank_option_register(spank_t sp, struct spank_option *option)
{
	(void)sp;
	options[option_count++] = *option;
	printf("option %s\n", option->name);
	return ESPANK_SUCCESS;
}

spank_err_t spank_get_item(spank_t sp, spank_item_t item, ...)
{
	va_list list;
	spank_err_t error = ESPANK_SUCCESS;

	(void)sp;
	va_start(list, item);
	if (item == S_JOB_ID)
		*va_arg(list, uint32_t *) = job_id;
	else if (item == S_JOB_STEPID)
		*va_arg(list, uint32_t *) = step_id;
	else if (item == S_JOB_UID)
		*va_arg(list, uid_t *) = uid;
	else if (item == S_TASK_ID)
		*va_arg(list, int *) = task_id;
	else
		error = ESPANK_BAD_ARG;
	va_end(list);
	return error;
}

static const char *find(const char *name)
{
	size_t length = strlen(name);

	for (int i = job_env_count - 1; i >= 0; i--) {
		if (strncmp(job_env[i], name, length) == 0 && job_env[i][length] == '=')
			return job_env[i] + length + 1;
	}
	return NULL;
}

spank_err_t spank_getenv(spank_t sp, const char *name, char *value, int size)
{
	const char *found = find(name);

	(void)sp;
	if (found == NULL)
		return ESPANK_ENV_NOEXIST;
	return snprintf(value, (size_t)size, "%s", found) < size ? ESPANK_SUCCESS : ESPANK_NOSPACE;
}

spank_err_t spank_setenv(spank_t sp, const char *name, const char *value, int overwrite)
{
	(void)sp;
	if (!overwrite && find(name) != NULL)
		return ESPANK_ENV_EXISTS;
	printf("set %s=%s\n", name, value);
	return ESPANK_SUCCESS;
}

spank_err_t spank_job_control_setenv(spank_t sp, const char *name, const char *value, int overwrite)
{
	(void)sp;
	(void)overwrite;
	printf("control %s=%s\n", name, value);
	return ESPANK_SUCCESS;
}

static int run(void *plugin, const char *hook)
{
	spank_f *function = (spank_f *)dlsym(plugin, hook);
	int rc = function == NULL ? 0 : function(NULL, plugstack_count, plugstack);

	printf("rc %s %d\n", hook + strlen("slurm_spank_"), rc);
	return rc;
}

/* Slurm looks an option up by its full name; one nobody registered is "unrecognized". */
static void give_option(char *word)
{
	char *value = strchr(word, '=');

	if (value != NULL)
		*value++ = '\0';
	for (int i = 0; i < option_count; i++) {
		if (strcmp(options[i].name, word) == 0) {
			int remote = context == S_CTX_REMOTE;

			printf("rc option %d\n", options[i].cb(options[i].val, value, remote));
			return;
		}
	}
	printf("unrecognized %s\n", word);
}

static void read_word(char *word)
{
	if (strncmp(word, "arg:", 4) == 0)
		plugstack[plugstack_count++] = word + 4;
	else if (strncmp(word, "env:", 4) == 0)
		job_env[job_env_count++] = word + 4;
	else if (strncmp(word, "job:", 4) == 0)
		job_id = (uint32_t)strtoul(word + 4, NULL, 10);
	else if (strncmp(word, "step:", 5) == 0)
		step_id = (uint32_t)strtoul(word + 5, NULL, 10);
	else if (strncmp(word, "task:", 5) == 0)
		task_id = atoi(word + 5);
	else if (strncmp(word, "uid:", 4) == 0)
		uid = (uid_t)atoi(word + 4);
}

static enum spank_context context_of(const char *word)
{
	if (strcmp(word, "local") == 0)
		return S_CTX_LOCAL;
	if (strcmp(word, "allocator") == 0)
		return S_CTX_ALLOCATOR;
	return strcmp(word, "remote") == 0 ? S_CTX_REMOTE : S_CTX_SLURMD;
}

int main(int argc, char **argv)
{
	void *plugin = dlopen(argv[1], RTLD_LAZY);

	if (plugin == NULL) {
		puts(dlerror());
		return 2;
	}
	context = context_of(argv[2]);
	for (optind = 3; optind < argc && strcmp(argv[optind], "script") != 0;)
		optind++;
	for (int i = 3; i < argc; i++)
		read_word(argv[i]);
	run(plugin, "slurm_spank_init");
	for (int i = 3; i < argc; i++) {
		if (strncmp(argv[i], "opt:", 4) == 0)
			give_option(argv[i] + 4);
	}
	run(plugin, "slurm_spank_init_post_opt");
	if (context == S_CTX_REMOTE)
		run(plugin, "slurm_spank_task_init_privileged");
	for (int i = 3; i < argc; i++) {
		if (strncmp(argv[i], "late:", 5) == 0)
			job_env[job_env_count++] = argv[i] + 5;
	}
	if (context == S_CTX_REMOTE)
		run(plugin, "slurm_spank_task_init");
	for (char **line = environ; *line != NULL; line++)
		printf("mine %s\n", *line);
	return 0;
}
