/* config.c - the arguments of our line in plugstack.conf: KEY=VALUE, an unknown key is an error. */
#include "config.h"

#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include <slurm/spank.h>

#include "check.h"

struct gandiva_config gandiva_config = {
	.socket = "/run/gandiva/%n.sock",
	.hook = NULL,
	.wait_s = 60,
	.partitions = NULL,
};

/* True for an absolute path without ':' (it goes into PYTHONPATH) or a '%' other than %n. */
static bool is_path(const char *text)
{
	const char *percent;

	if (text[0] != '/' || strchr(text, ':') != NULL)
		return false;
	for (percent = strchr(text, '%'); percent != NULL; percent = strchr(percent + 1, '%')) {
		if (percent[1] != 'n')
			return false;
	}
	return true;
}

static const char *value_of(const char *arg, const char *key)
{
	size_t length = strlen(key);

	return strncmp(arg, key, length) == 0 && arg[length] == '=' ? arg + length + 1 : NULL;
}

/* "wait:SECONDS" or "fail"; false when it is neither. */
static bool take_unbound(const char *value)
{
	int seconds = strcmp(value, "fail") == 0 ? 0 : -1;

	if (strncmp(value, "wait:", 5) == 0)
		seconds = gandiva_seconds(value + 5);
	if (seconds < 0)
		return false;
	gandiva_config.wait_s = seconds;
	return true;
}

static int parse_one(const char *arg)
{
	const char *value;

	if ((value = value_of(arg, "socket")) != NULL && is_path(value)) {
		gandiva_config.socket = value;
		return 0;
	}
	if ((value = value_of(arg, "hook")) != NULL && is_path(value) && strchr(value, '%') == NULL) {
		gandiva_config.hook = value;
		return 0;
	}
	if ((value = value_of(arg, "partitions")) != NULL && gandiva_is_name_list(value)) {
		gandiva_config.partitions = value;
		return 0;
	}
	if ((value = value_of(arg, "unbound")) != NULL && take_unbound(value))
		return 0;
	slurm_error("gandiva: plugstack.conf: cannot take \"%s\"; the keys are socket=/PATH (%%n: the node), "
		    "hook=/DIRECTORY, partitions=NAME,NAME, unbound=wait:SECONDS|fail; Gandiva's options are off until it is mended", arg);
	return -1;
}

int gandiva_config_parse(int ac, char **av)
{
	for (int i = 0; i < ac; i++) {
		if (parse_one(av[i]) < 0)
			return -1;
	}
	return 0;
}

bool gandiva_config_socket(const char *node, char *path, size_t size)
{
	const char *from = gandiva_config.socket;
	size_t used = 0;

	if (!gandiva_is_name_list(node) || strchr(node, ',') != NULL)
		return false;
	while (*from != '\0') {
		size_t step = 1;
		const char *piece = from;

		if (from[0] == '%') {
			piece = node;
			step = strlen(node);
			from++;
		}
		from++;
		if (used + step >= size || used + step >= sizeof(((struct sockaddr_un *)0)->sun_path))
			return false;
		memcpy(path + used, piece, step);
		used += step;
	}
	path[used] = '\0';
	return true;
}

bool gandiva_config_root_socket(const char *socket, char *path, size_t size)
{
	int length = snprintf(path, size, "%s.root", socket);

	return length > 0 && (size_t)length < size && (size_t)length < sizeof(((struct sockaddr_un *)0)->sun_path);
}

bool gandiva_config_is_our_partition(const char *partition)
{
	const char *list = gandiva_config.partitions;
	size_t length = strlen(partition);

	if (list == NULL || length == 0)
		return false;
	while (*list != '\0') {
		size_t name = strcspn(list, ",");

		if (name == length && strncmp(list, partition, length) == 0)
			return true;
		list += name + (list[name] == ',');
	}
	return false;
}
