/* check.c - what each option takes; job_submit.lua checks the same again, on the server's side. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

#define DIGITS "0123456789"
#define NAME_CHARS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" DIGITS "_.-"

/* Longest name of a GPU type, a partition or a virtual cluster. */
#define NAME_MAX_CHARS 64
#define PATH_MAX_CHARS 200
/* How a value of --gandiva-checkpoint begins that may name a directory at once. */
#define GANDIVA_SELF_FILES "self:"
/* No node has more GPUs than fit into five digits. */
#define GPU_DIGITS 5

/* Read a whole number of at most `digits` digits and no sign; -1 when it is none. */
static long whole_number(const char *text, size_t length, size_t digits)
{
	long number = 0;

	if (length == 0 || length > digits)
		return -1;
	for (size_t i = 0; i < length; i++) {
		if (text[i] < '0' || text[i] > '9')
			return -1;
		number = number * 10 + (text[i] - '0');
	}
	return number;
}

static bool is_between(const char *text, long low, long high)
{
	long number = whole_number(text, strlen(text), 4);

	return number >= low && number <= high;
}

static bool is_one_of(const char *text, const char *const *words)
{
	for (; *words != NULL; words++) {
		if (strcmp(text, *words) == 0)
			return true;
	}
	return false;
}

bool gandiva_is_tickets(const char *text)
{
	return is_between(text, 1, 1000);
}

bool gandiva_is_priority(const char *text)
{
	return is_between(text, 0, 100);
}

bool gandiva_is_class(const char *text)
{
	static const char *const words[] = {"guaranteed", "opportunistic", NULL};

	return is_one_of(text, words);
}

bool gandiva_is_name(const char *text)
{
	size_t length = strlen(text);

	return length > 0 && length <= NAME_MAX_CHARS && strspn(text, NAME_CHARS) == length;
}

bool gandiva_is_name_list(const char *text)
{
	if (strlen(text) > GANDIVA_VALUE_MAX)
		return false;
	for (;;) {
		size_t length = strspn(text, NAME_CHARS);

		if (length == 0 || length > NAME_MAX_CHARS)
			return false;
		text += length;
		if (*text == '\0')
			return true;
		if (*text++ != ',')
			return false;
	}
}

bool gandiva_is_cell(const char *text)
{
	static const char *const words[] = {"gpu", "switch", "socket", "node", "any", NULL};

	return is_one_of(text, words);
}

bool gandiva_is_elastic(const char *text)
{
	const char *dash = strchr(text, '-');
	long low, high;

	if (dash == NULL)
		return false;
	low = whole_number(text, (size_t)(dash - text), GPU_DIGITS);
	high = whole_number(dash + 1, strlen(dash + 1), GPU_DIGITS);
	return low >= 1 && high >= low;
}

bool gandiva_is_auto_or_never(const char *text)
{
	static const char *const words[] = {"auto", "never", NULL};

	return is_one_of(text, words);
}

bool gandiva_is_auto_or_none(const char *text)
{
	static const char *const words[] = {"auto", "none", NULL};

	return is_one_of(text, words);
}

static bool is_directory(const char *text)
{
	size_t length = strlen(text);

	return length > 0 && length <= PATH_MAX_CHARS && strspn(text, NAME_CHARS "/%+,=@") == length;
}

/* SECONDS[:DIRECTORY] */
static bool is_seconds(const char *text)
{
	char seconds[8];
	size_t length = strcspn(text, ":");

	if (length >= sizeof(seconds) || (text[length] == ':' && !is_directory(text + length + 1)))
		return false;
	memcpy(seconds, text, length);
	seconds[length] = '\0';
	return is_between(seconds, 1, 3600);
}

const char *gandiva_own_files(const char *text)
{
	static const char prefix[] = "signal:";

	if (strncmp(text, GANDIVA_SELF_FILES, strlen(GANDIVA_SELF_FILES)) == 0)
		return text + strlen(GANDIVA_SELF_FILES);
	if (strncmp(text, prefix, sizeof(prefix) - 1) != 0)
		return NULL;
	text = strchr(text + sizeof(prefix) - 1, ':');
	return text == NULL ? NULL : text + 1;
}

/* signal[:NAME[@SECONDS[:DIRECTORY]]] behind the word: a name that jobs catch, 1 to 3600 seconds. */
static bool is_signal(const char *text)
{
	static const char *const names[] = {"HUP", "INT", "USR1", "USR2", "TERM", NULL};
	const char *at = strchr(text, '@');
	char name[8];
	size_t length = at == NULL ? strlen(text) : (size_t)(at - text);

	if (length >= sizeof(name) || (at != NULL && !is_seconds(at + 1)))
		return false;
	memcpy(name, text, length);
	name[length] = '\0';
	return is_one_of(name, names);
}

bool gandiva_is_checkpoint(const char *text)
{
	static const char *const words[] = {"auto", "signal", "submitit", "self", "none", NULL};
	static const char prefix[] = "signal:";

	if (strncmp(text, GANDIVA_SELF_FILES, strlen(GANDIVA_SELF_FILES)) == 0)
		return is_directory(text + strlen(GANDIVA_SELF_FILES));
	if (strncmp(text, prefix, sizeof(prefix) - 1) == 0)
		return is_signal(text + sizeof(prefix) - 1);
	return is_one_of(text, words);
}

int gandiva_seconds(const char *text)
{
	return (int)whole_number(text, strlen(text), 4);
}

bool gandiva_is_slot_list(const char *text)
{
	size_t length = strlen(text);

	return length > 0 && strspn(text, DIGITS ",") == length;
}

/* The number of at most four digits at *text, which is moved behind it; 0: there is none. */
static long counted(const char **text)
{
	size_t length = strspn(*text, DIGITS);
	long number = length > 0 && length <= 4 ? strtol(*text, NULL, 10) : 0;

	*text += length;
	return number;
}

long gandiva_tasks_in_all(const char *text)
{
	long all = 0, tasks, nodes;

	for (;;) {
		tasks = counted(&text);
		nodes = 1;
		if (strncmp(text, "(x", 2) == 0) {
			text += 2;
			nodes = counted(&text);
			if (*text++ != ')')
				return 0;
		}
		if (tasks == 0 || nodes == 0)
			return 0;
		all += tasks * nodes;
		if (*text == '\0')
			return all;
		if (*text++ != ',')
			return 0;
	}
}

void gandiva_printable(const char *text, char *shown, size_t size)
{
	size_t i;

	for (i = 0; text[i] != '\0' && i + 1 < size; i++)
		shown[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
	shown[i] = '\0';
}
