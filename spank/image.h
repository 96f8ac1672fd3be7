/* Where a job goes on from an image of its processes: a process 1 of their own for them, and its end for Slurm's. */
#ifndef GANDIVA_IMAGE_H
#define GANDIVA_IMAGE_H

#include <stdbool.h>

/* What gandivad's READY says besides where the batch step's job has an image, and what names the restored root. */
#define GANDIVA_IMAGE_READY "READY IMAGE"
#define GANDIVA_RESTORED "GANDIVA_RESTORED"

/* As root: begin process 1 of new pid and mount namespaces, which waits; false when that cannot be had. */
bool gandiva_image_begin(void);

/*
 * As the user, of the process that was to become the task: `root` is "PID INNER", the restored root here and in
 * its own namespace. Hands Slurm's signals on to it and ends as it ends; returns only where it is not known.
 */
void gandiva_image_be(const char *root);

/* End process 1, and all there is in its namespace; does nothing where there is none. */
void gandiva_image_end(void);

#endif
