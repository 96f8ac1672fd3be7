/* What each option takes. Pure: text in, verdict out. */
#ifndef GANDIVA_CHECK_H
#define GANDIVA_CHECK_H

#include <stdbool.h>
#include <stddef.h>

/* Longest value of an option; what is longer is wrong in every one of them. */
#define GANDIVA_VALUE_MAX 255

bool gandiva_is_tickets(const char *text);
bool gandiva_is_priority(const char *text);
bool gandiva_is_class(const char *text);
bool gandiva_is_name(const char *text);
bool gandiva_is_name_list(const char *text);
bool gandiva_is_cell(const char *text);
bool gandiva_is_elastic(const char *text);
bool gandiva_is_auto_or_never(const char *text);
bool gandiva_is_auto_or_none(const char *text);
bool gandiva_is_checkpoint(const char *text);

/* The directory of the job's own files in a value of --gandiva-checkpoint that is good; NULL: it names none. */
const char *gandiva_own_files(const char *text);

/* The whole number of at most four digits, or -1. */
int gandiva_seconds(const char *text);

/* True for a list of slot numbers as Slurm writes it: digits and commas only, not empty. */
bool gandiva_is_slot_list(const char *text);

/* The tasks of a job in all by Slurm's SLURM_TASKS_PER_NODE: 4, 2(x2) or 1,3; 0 where it is not so written. */
long gandiva_tasks_in_all(const char *text);

/* Room for a text shown back to the user, its '\0' included. */
#define GANDIVA_SHOWN_SIZE 41

/* Copy text fit to be shown: as much as fits, '?' for what is not printable. */
void gandiva_printable(const char *text, char *shown, size_t size);

#endif
