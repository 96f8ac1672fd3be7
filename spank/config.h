/* What the line in plugstack.conf says. */
#ifndef GANDIVA_CONFIG_H
#define GANDIVA_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

struct gandiva_config {
	const char *socket;	/* gandivad's socket; %n stands for the node's name */
	const char *hook;	/* directory put before PYTHONPATH; NULL: no hook */
	int wait_s;		/* how long a task of a planned job waits to be bound before it fails; 0: not at all */
	const char *partitions;	/* their jobs are Gandiva's with no flag; NULL: only flagged jobs are */
};

extern struct gandiva_config gandiva_config;

/* Read plugstack's arguments into gandiva_config. An unknown key or a bad value is logged: -1. */
int gandiva_config_parse(int ac, char **av);

/* Write the socket's path for a node; false when the node's name or the length does not fit. */
bool gandiva_config_socket(const char *node, char *path, size_t size);

/* Write the path of root's socket beside it, where only slurmstepd's hook of root can speak; false likewise. */
bool gandiva_config_root_socket(const char *socket, char *path, size_t size);

/* True when the partition is one of partitions=. */
bool gandiva_config_is_our_partition(const char *partition);

#endif
