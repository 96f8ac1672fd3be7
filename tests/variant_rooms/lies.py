"""Known-wrong variants. Rates are words of jobs: what may come of a lie."""

from __future__ import annotations

from tests.variant_kit import Variant

FORECAST = "tests/unit/test_forecast.py"
LYING = "tests/property/test_lying_rates.py"
PACKING = "tests/unit/test_packing.py"
STRANGERS = "tests/unit/test_node_strangers.py"
VOICES = "gandiva_slurm/policy/moves/voices.py"

VARIANTS = (
    Variant(
        "helped-for-telling-less",
        "gandiva_slurm/policy/moves/merit.py:Merit._speed",
        "rate = self._rates[job_id].get(gpu_type, 0.0)",
        "rate = view.rates.alone(job.model, job.size, gpu_type) or 0.0",
        "A job that tells of ever fewer mini-batches is taken for ever further behind, and gets fast GPUs.",
        (f"{LYING}::test_rates_that_fall_or_rise_later_change_no_plan",),
    ),
    Variant(
        "one-voice-is-the-mean",
        f"{VOICES}:Voices.guess",
        "means[len(means) // 2][0]",
        "sum(mean for mean, _ in means) / len(means)",
        "One user's lie about a GPU type is what all others' new jobs expect of it.",
        (f"{FORECAST}::test_what_one_user_says_moves_what_others_expect_no_further_than_to_the_next",),
    ),
    Variant(
        "own-voice-heard",
        f"{VOICES}:Voices._middle_of_others",
        "count = len(means) - (heard is not None)",
        "count, mine = len(means), len(means)",
        "A user vouches for itself: its lie moves the middle that it is compared with.",
        (f"{FORECAST}::test_a_gain_that_nobody_else_comes_near_is_brought_near",),
    ),
    Variant(
        "any-gain-believed",
        f"{VOICES}:_within",
        "min(max(gain, middle - math.log(FAR)), middle + math.log(FAR))",
        "gain",
        "A GPU type is worth a thousand million times another to a job that says so.",
        (f"{FORECAST}::test_where_nobody_can_be_compared_with_types_differ_by_sixteen_at_most",),
    ),
    Variant(
        "faster-packed-than-alone",
        "gandiva_slurm/policy/packing/pairs.py:normal_rates",
        "min(1.0, packed[0] / alone[0]), min(1.0, packed[1] / alone[1])",
        "packed[0] / alone[0], packed[1] / alone[1]",
        "By one's word that it gains, another is kept beside it that loses nearly all.",
        (f"{PACKING}::test_what_a_liar_says_of_pairs_promises_nobody_more_than_a_perfect_one",),
    ),
    Variant(
        "mate-worn-down",
        "gandiva_slurm/policy/packing/pairs.py:pays",
        "and min(each) >= LEAST_KEPT",
        "",
        "A pair stays of which one pays half of the GPU and has next to nothing of it.",
        (f"{PACKING}::test_no_word_of_one_has_the_other_worn_down",),
    ),
    Variant(
        "doubted-and-measured",
        "gandiva_slurm/node/report.py:_resident",
        "rate_alone=0.0 if is_doubted else round(job.gauge.alone.rate, 6)",
        "rate_alone=round(job.gauge.alone.rate, 6)",
        "The rate of a job that only says it trains is its rate.",
        (f"{STRANGERS}::test_rates_of_a_job_that_uses_no_gpu_are_not_told",),
    ),
    Variant(
        "caught-and-trusted-again",
        "gandiva_slurm/node/freezer.py:Freezer.set_trust",
        "is_trusted and not resident.is_caught",
        "is_trusted",
        "A job that was caught at work while it was parked has seconds for nothing at each of its parks.",
        (f"{STRANGERS}::test_a_trusted_job_that_was_caught_is_trusted_no_more",),
    ),
    Variant(
        "caught-and-forgotten",
        "gandiva_slurm/node/saved.py:read_job",
        'is_caught=row.get("is_caught", False)',
        "is_caught=False",
        "A gandivad that is started anew trusts again what was caught.",
        (f"{STRANGERS}::test_a_trusted_job_that_was_caught_is_trusted_no_more",),
    ),
)
