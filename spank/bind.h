/* One question to gandivad over its unix socket, within a bound. */
#ifndef GANDIVA_BIND_H
#define GANDIVA_BIND_H

#include <stddef.h>

/* The whole exchange takes no longer, whatever gandivad does. */
#define GANDIVA_BIND_BOUND_MS 500

/*
 * Send one line (it ends in '\n'), read one line into `reply` without its '\n'.
 * Returns NULL, or why it did not work, in words.
 */
const char *gandiva_bind(const char *path, const char *line, char *reply, size_t size);

#endif
