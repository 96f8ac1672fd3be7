"""Known-wrong variants. A script tried: how it would move, and whether it goes on as it was."""

from __future__ import annotations

from tests.variant_kit import Variant

_OWN = "tests/unit/test_own_trial.py::"
_WAYS = "tests/unit/test_script_ways.py::"
_STAYS = _OWN + "test_script_that_would_not_be_moved_says_why"
_WRONG = _OWN + "test_script_that_does_not_go_on_as_it_was_says_so"
_KILLED = _OWN + "test_script_that_is_killed_goes_on_from_its_own_file"

VARIANTS = (
    Variant(
        "trial-of-a-restart-that-begins-anew",
        "gandiva_slurm/cli/own_trial.py:_judge",
        "if place.at == 0:",
        "if False:",
        "gandiva try calls a script that begins anew one that goes on.",
        (_WRONG + "[anew.py]",),
    ),
    Variant(
        "trial-of-a-job-that-has-ended",
        "gandiva_slurm/cli/own_trial.py:_left",
        "if status == 0:",
        "if False:",
        "gandiva try takes a script that ends 0 upon its signal for one that is moved.",
        (_STAYS + "[ends.sh]",),
    ),
    Variant(
        "trial-of-a-job-that-does-nothing",
        "gandiva_slurm/cli/own_trial.py:_left",
        "if status is None:",
        "if False:",
        "gandiva try takes a script that neither ends nor requeues itself for one that is moved.",
        (_STAYS + "[deaf.sh]",),
    ),
    Variant(
        "trial-signals-whom-slurm-does-not",
        "gandiva_slurm/cli/own_trial.py:_send",
        "node.tasks() if trial.script.is_batch else [node.pid]",
        "[node.pid]",
        "gandiva try sends a signal for the steps to a training that no srun has started.",
        (_STAYS + "[unheard.sh]",),
    ),
    Variant(
        "trial-told-by-losses-that-repeat",
        "gandiva_slurm/cli/own_trial.py:find_place",
        "if len(places) > 1:",
        "if False:",
        "Where all losses are the same gandiva try says where the script went on.",
        (_WRONG + "[constant.py]",),
    ),
    Variant(
        "trial-compares-the-first-loss-alone",
        "gandiva_slurm/cli/own_trial.py:_judge",
        "if place.same == place.of",
        "if place.same",
        "A script that computes something else some mini-batches behind its restart passes.",
        (_WRONG + "[partial.py]",),
    ),
    Variant(
        "trial-in-the-users-directory",
        "gandiva_slurm/cli/runs.py:Trial.start",
        "if not self.options.saves_by:",
        "if True:",
        "A run finds what the one before it saved, and the user's own checkpoint is lost.",
        (_KILLED,),
    ),
    Variant(
        "trial-asks-slurm",
        "gandiva_slurm/cli/lone.py:LoneNode.start",
        'os.pathsep.join([str(programs), own_env.get("PATH", os.defpath)])',
        'os.pathsep.join([own_env.get("PATH", os.defpath), str(programs)])',
        "A trial calls the real scontrol and srun where there are any.",
        (_OWN + "test_script_that_saves_upon_its_signal_loses_nothing",),
    ),
    Variant(
        "trial-counts-tries-twice",
        "gandiva_slurm/cli/runs.py:losses_of",
        "lines = lines[len(again) :]",
        "pass",
        "A moved script does a Tuner's tries again, and gandiva try says that it computes something else.",
        (_OWN + "test_tries_before_a_training_that_is_saved_count_once",),
    ),
    Variant(
        "trial-ends-in-a-tuners-tries",
        "gandiva_slurm/cli/trial.py:_is_parked_enough",
        "not trial.is_a_try",
        "True",
        "gandiva try compares a Tuner's tries alone, and says that the training is not moved.",
        ("tests/attach/test_frameworks_tried.py::test_training_behind_a_tuners_tries_is_moved",),
        target="test-all",
        why="six starts of Lightning",
    ),
    Variant(
        "doctor-settles-otherwise",
        "gandiva_slurm/cli/script_ways.py:settle",
        "if is_submitit or not own or not requeues:",
        "if not own or not requeues:",
        "gandiva doctor says that a job of submitit's is moved without a flag, and the filter leaves it.",
        (_WAYS + "test_checkpoint_is_settled_as_at_submission",),
    ),
    Variant(
        "doctor-says-nothing-of-no-requeue",
        "gandiva_slurm/cli/script_ways.py:why_never",
        'line = script.marks.get("--no-requeue")',
        "line = None",
        "gandiva doctor says that a job is moved which Slurm may not start again.",
        (_WAYS + "test_each_way_is_told_by_its_line",),
    ),
    Variant(
        "doctor-images-what-srun-started",
        "gandiva_slurm/cli/image_told.py:_look",
        "if node.tasks():",
        "if False:",
        "gandiva doctor says that an image could be made of a job with steps of srun, and it could not.",
        ("tests/unit/test_image_told.py::test_batch_scripts",),
    ),
    Variant(
        "criu-of-any-age",
        "gandiva_slurm/node/criu.py:unfit",
        "if found < LEAST:",
        "if False:",
        "A node takes a criu that fails on its kernel for one that makes images.",
        ("tests/unit/test_image_told.py::test_what_criu_says_here_is_told",),
    ),
    Variant(
        "stand-in-takes-options-for-the-program",
        "gandiva_slurm/cli/stand_in.py:read_srun",
        'value = words.pop(0) if words else ""',
        'value = ""',
        "srun -o FILE python train.py starts FILE in a trial.",
        ("tests/unit/test_stand_in.py::test_options_of_srun_are_left_behind",),
    ),
)
