/*
 * flags.c - hostile texts through the SPANK plugin's own code, built with the address and undefined-behaviour
 * sanitizers. Slurm's functions are stand-ins here; stepd.c is included, for its readers are its own.
 *
 * usage: flags < CASES.  A case is a 32-bit length, then that many bytes: a letter, then a text.
 *   o N TEXT  the value of option number N (a byte)       c TEXT  an argument of plugstack.conf
 *   d N TEXT  the user's default for it                   n TEXT  a node's name
 *   a TEXT    what gandivad answers a task                r TEXT  the same, as it comes over the socket
 *   e TEXT    every variable of the job that a task reads
 * Prints a line for each: "0" where the option was taken, "1" where it was refused, "." for all others; at the
 * end "slowest N" in microseconds.
 */
#include <stdarg.h>
#include <sys/socket.h>
#include <time.h>

#include "stepd.c"
#include "defaults.h"

#define CASE_SIZE 70000

static struct spank_option options[OPT_COUNT];
static int option_count;
/* What every variable of the job is; NULL: it is not there. */
static const char *hostile;

enum spank_context spank_context(void)
{
	return S_CTX_REMOTE;
}

const char *spank_strerror(spank_err_t error)
{
	return error == ESPANK_SUCCESS ? "no error" : "some error";
}

static bool must_be_printable;

/* A sentence about an option goes to the user's terminal, whatever the value was. */
static void say(const char *format, va_list list)
{
	char text[8192];
	int length = vsnprintf(text, sizeof(text), format, list);

	if (length < 0)
		abort();
	for (int i = 0; must_be_printable && text[i] != '\0'; i++) {
		if (text[i] < ' ' || text[i] > '~' || i > 200)
			abort();
	}
}

void slurm_error(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	say(format, list);
	va_end(list);
}

void slurm_info(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	say(format, list);
	va_end(list);
}

spank_err_t spank_option_register(spank_t sp, struct spank_option *option)
{
	(void)sp;
	options[option_count++] = *option;
	return ESPANK_SUCCESS;
}

spank_err_t spank_get_item(spank_t sp, spank_item_t item, ...)
{
	va_list list;

	(void)sp;
	va_start(list, item);
	if (item == S_TASK_ID)
		*va_arg(list, int *) = 7;
	else
		*va_arg(list, uint32_t *) = 5;
	va_end(list);
	return ESPANK_SUCCESS;
}

spank_err_t spank_getenv(spank_t sp, const char *name, char *value, int size)
{
	(void)sp;
	(void)name;
	if (hostile == NULL)
		return ESPANK_ENV_NOEXIST;
	return snprintf(value, (size_t)size, "%s", hostile) < size ? ESPANK_SUCCESS : ESPANK_NOSPACE;
}

/* Reads all of both, as Slurm would. */
spank_err_t spank_setenv(spank_t sp, const char *name, const char *value, int overwrite)
{
	(void)sp;
	(void)overwrite;
	return strlen(name) + strlen(value) > 0 ? ESPANK_SUCCESS : ESPANK_BAD_ARG;
}

spank_err_t spank_job_control_setenv(spank_t sp, const char *name, const char *value, int overwrite)
{
	return spank_setenv(sp, name, value, overwrite);
}

static char give_option(unsigned char number, const char *text)
{
	struct spank_option *option = &options[1 + number % (OPT_COUNT - 1)];
	int rc;

	must_be_printable = true;
	rc = option->cb(option->val, text, 0);
	must_be_printable = false;
	return rc == 0 ? '0' : '1';
}

static void give_default(unsigned char number, const char *text)
{
	char name[GANDIVA_VARIABLE_SIZE];

	gandiva_default_variable((enum gandiva_option)(number % OPT_COUNT), name, sizeof(name));
	setenv(name, text, 1);
	must_be_printable = true;
	gandiva_apply_defaults(NULL);
	must_be_printable = false;
	gandiva_forget_outer_job();
	unsetenv(name);
}

static void give_argument(char *text)
{
	char *arguments[] = {text};
	struct gandiva_config former = gandiva_config;
	char path[SLOTS_SIZE], root[SLOTS_SIZE];

	(void)gandiva_config_parse(1, arguments);
	(void)gandiva_config_is_our_partition("gandiva");
	if (gandiva_config_socket("n1", path, sizeof(path)))
		(void)gandiva_config_root_socket(path, root, sizeof(root));
	gandiva_set_hook(NULL);
	gandiva_config = former;
}

static void name_node(const char *text)
{
	char path[SLOTS_SIZE], root[SLOTS_SIZE];

	if (gandiva_config_socket(text, path, sizeof(path)))
		(void)gandiva_config_root_socket(path, root, sizeof(root));
	(void)gandiva_config_is_our_partition(text);
}

/* Over a socket whose other end has said all it will. */
static void receive(const char *text, size_t length)
{
	int ends[2];
	char reply[REPLY_SIZE];
	struct gandiva_talk here = {.fd = -1};

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
		abort();
	if (send(ends[1], text, length, MSG_NOSIGNAL) < 0 && length > 0)
		abort();
	shutdown(ends[1], SHUT_WR);
	here.fd = ends[0];
	gandiva_talk_bound(&here, 0);
	if (gandiva_talk_ask(&here, NULL, "BIND\n", reply, sizeof(reply)) == NULL)
		take_answer(NULL, reply);
	gandiva_talk_end(&here);
	close(ends[1]);
}

static void fill_environment(const char *text)
{
	char line[LINE_SIZE];

	hostile = text;
	(void)is_gandiva_job(NULL);
	(void)is_planned(NULL);
	if (write_question(NULL, 5, line, sizeof(line)) && strchr(line, '\n') != line + strlen(line) - 1)
		abort();
	(void)write_question(NULL, STEP_BATCH, line, sizeof(line));
	gandiva_set_size(NULL);
	gandiva_config.hook = "/usr/lib/gandiva/client/hook";
	gandiva_set_hook(NULL);
	gandiva_config.hook = NULL;
	hostile = NULL;
}

static char try_one(char *text, size_t length)
{
	unsigned char number = (unsigned char)text[1];
	char *rest = length > 2 ? text + 2 : text + length;

	switch (text[0]) {
	case 'o':
		return give_option(number, rest);
	case 'd':
		give_default(number, rest);
		break;
	case 'c':
		give_argument(text + 1);
		break;
	case 'n':
		name_node(text + 1);
		break;
	case 'a':
		take_answer(NULL, text + 1);
		break;
	case 'r':
		receive(text + 1, length - 1);
		break;
	case 'e':
		fill_environment(text + 1);
		break;
	default:
		abort();
	}
	return '.';
}

static int64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int main(void)
{
	static char buffer[CASE_SIZE];
	uint32_t length;
	int64_t slowest = 0;

	gandiva_config.partitions = "gandiva,b";
	if (gandiva_options_register(NULL) != 0)
		return 2;
	while (fread(&length, sizeof(length), 1, stdin) == 1) {
		char *text;
		int64_t began = now_us();
		char verdict;

		if (length < 2 || length >= CASE_SIZE || fread(buffer, 1, length, stdin) != length)
			return 2;
		/* In a room of its own size, so that a byte too far is seen. */
		text = malloc(length + 1);
		memcpy(text, buffer, length);
		text[length] = '\0';
		verdict = try_one(text, length);
		free(text);
		slowest = now_us() - began > slowest ? now_us() - began : slowest;
		printf("%c\n", verdict);
		fflush(stdout);
	}
	printf("slowest %lld\n", (long long)slowest);
	return 0;
}
