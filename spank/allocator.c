/* allocator.c - in sbatch and salloc: the options, their check, the user's defaults, the job's --signal. */
#include "contexts.h"

#include "defaults.h"
#include "options.h"

int gandiva_allocator_init(spank_t sp)
{
	gandiva_forget_outer_job();
	return gandiva_options_register(sp);
}

int gandiva_allocator_post_opt(spank_t sp)
{
	gandiva_apply_defaults(sp);
	gandiva_hand_on_signal(sp);
	gandiva_foretell();
	return 0;
}
