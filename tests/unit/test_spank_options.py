"""The SPANK plugin where jobs are submitted: its options, their check, defaults from the environment."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.option_cases import BAD, GOOD, TAKES
from tests.unit.spank_runner import MISSING, Outcome, build, run

OPTION = "_SLURM_SPANK_OPTION_gandiva_gandiva"
NAMES = ["gandiva", *(f"gandiva-{name}" for name in TAKES)]
Run = Callable[..., Outcome]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(scope="module")
def spank(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """spank(context, *words, environ=None): run the plugin."""
    built = build(tmp_path_factory.mktemp("spank"))

    def call(context: str, *words: str, environ: dict[str, str] | None = None) -> Outcome:
        return run(built, context, *words, environ=environ)

    return call


def variable(name: str) -> str:
    return f"{OPTION}_{name.replace('-', '_')}"


@pytest.mark.parametrize("context", ["allocator", "local", "remote"])
def test_every_option_is_registered_in_every_context_that_uses_one(spank: Run, context: str) -> None:
    outcome = spank(context)
    assert sorted(outcome.options) == sorted(NAMES)
    assert outcome.errors == []


def test_slurmd_gets_nothing(spank: Run) -> None:
    outcome = spank("slurmd")
    assert (outcome.options, outcome.errors, outcome.rc["init"]) == ([], [], 0)


@pytest.mark.parametrize("context", ["allocator", "local"])
@pytest.mark.parametrize(("name", "value"), GOOD)
def test_good_values_pass(spank: Run, context: str, name: str, value: str) -> None:
    outcome = spank(context, f"opt:gandiva-{name}={value}")
    assert (outcome.rc["option"], outcome.errors) == (0, [])
    assert outcome.control == {OPTION: "1"}


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_values_are_told_by_flag_value_and_what_it_takes(spank: Run, name: str, value: str) -> None:
    outcome = spank("allocator", f"opt:gandiva-{name}={value}")
    assert outcome.rc["option"] == -1
    [sentence] = outcome.errors
    assert sentence.startswith(f'gandiva: --gandiva-{name}: got "')
    assert sentence.endswith(f'", takes {TAKES[name]}')
    assert sentence.isprintable() and len(sentence) < 160


def test_a_bad_value_on_the_node_costs_nothing(spank: Run) -> None:
    outcome = spank("remote", "opt:gandiva-hook=bad", "opt:gandiva-tickets=" + "9" * 3000)
    assert outcome.rc["option"] == 0
    assert outcome.rc["task_init"] == 0


def test_the_flag_itself_takes_no_value(spank: Run) -> None:
    outcome = spank("allocator", "opt:gandiva")
    assert (outcome.rc["option"], outcome.errors, outcome.control) == (0, [], {OPTION: "1"})
    inner = spank("local", "opt:gandiva=(null)", environ={"SLURM_JOB_ID": "5"})
    assert (inner.rc["option"], inner.errors) == (0, [])


def test_no_flag_and_no_default_leave_everything_as_it_is(spank: Run) -> None:
    outcome = spank("allocator", environ={"HOME": "/home/u"})
    assert (outcome.control, outcome.mine, outcome.errors) == ({}, {"HOME": "/home/u"}, [])


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_defaults_reach_the_server_and_the_node(spank: Run, name: str, value: str) -> None:
    environ = {"SBATCH_GANDIVA_" + name.upper().replace("-", "_"): value}
    outcome = spank("allocator", environ=environ)
    assert outcome.errors == []
    assert outcome.control == {variable(name): value}
    assert outcome.mine[variable(name)] == value


def test_the_command_line_wins_over_a_default(spank: Run) -> None:
    environ = {"SBATCH_GANDIVA_TICKETS": "5", "SBATCH_GANDIVA_CELL": "node"}
    outcome = spank("allocator", "opt:gandiva-tickets=9", environ=environ)
    assert outcome.control == {OPTION: "1", variable("cell"): "node"}


def test_a_default_alone_makes_no_gandiva_job(spank: Run) -> None:
    assert OPTION not in spank("allocator", environ={"SBATCH_GANDIVA_CELL": "node"}).control
    assert OPTION not in spank("allocator", environ={"SBATCH_GANDIVA": "0"}).control
    assert spank("allocator", environ={"SBATCH_GANDIVA": "yes"}).control == {OPTION: "1"}


@pytest.mark.parametrize(("name", "value"), [case for case in BAD if case[1] != ""])
def test_a_bad_default_is_named_and_left_to_the_server_to_refuse(spank: Run, name: str, value: str) -> None:
    environ_name = "SBATCH_GANDIVA_" + name.upper().replace("-", "_")
    outcome = spank("allocator", environ={environ_name: value})
    assert outcome.errors[0].startswith(f'gandiva: {environ_name}: got "')
    assert outcome.errors[0].endswith(TAKES[name])
    assert variable(name) in outcome.control


def test_a_bad_default_for_the_flag_itself(spank: Run) -> None:
    outcome = spank("allocator", environ={"SBATCH_GANDIVA": "maybe"})
    assert outcome.errors == ['gandiva: SBATCH_GANDIVA: got "maybe", takes 1 or 0']
    assert outcome.control == {OPTION: "maybe"}


def test_a_job_submitted_from_inside_a_job_inherits_nothing(spank: Run) -> None:
    outer = {
        OPTION: "1", variable("tickets"): "7", f"SLURM_SPANK_{OPTION}": "1",
        f"SLURM_SPANK_{variable('hook')}": "none", "GANDIVA_JOB": "4", "GANDIVA_SOCKET": "/run/n1.sock",
        "SLURM_RESTART_COUNT": "3", "GANDIVA_RESTART": "3", "GANDIVA_NODE": "n1",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40", "GANDIVA_CONF": "/etc/slurm/gandiva.yaml",
    }
    outcome = spank("allocator", environ=outer)
    assert outcome.mine == {"GANDIVA_CONF": "/etc/slurm/gandiva.yaml"}
    ordinary = {"SLURM_RESTART_COUNT": "3", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}
    assert spank("allocator", environ=ordinary).mine == ordinary


def test_a_step_takes_no_defaults(spank: Run) -> None:
    environ = {"SBATCH_GANDIVA_CELL": "bad", "SLURM_JOB_ID": "5"}
    outcome = spank("local", environ=environ)
    assert (outcome.errors, outcome.control) == ([], {})
    assert spank("local", environ={"SBATCH_GANDIVA_CELL": "node"}).control == {variable("cell"): "node"}


@pytest.mark.parametrize("argument", [
    "scoket=/run/x", "socket=run/x", "socket=/run/%x", "hook=lib", "hook=/a:/b", "hook=/a/%n", "partitions=",
    "partitions=a b", "socket", "", "clamp=1", "unbound=", "unbound=wait", "unbound=wait:", "unbound=wait:-1",
    "unbound=wait:1.5", "unbound=wait:99999", "unbound=start",
])
@pytest.mark.parametrize("context", ["allocator", "local", "remote", "slurmd"])
def test_a_wrong_plugstack_line_turns_the_plugin_off_and_nothing_else(
    spank: Run, context: str, argument: str
) -> None:
    words = [f"arg:{argument}", "env:SLURM_JOB_PARTITION=gandiva"]
    outcome = spank(context, *words, environ={"SBATCH_GANDIVA": "1"})
    [sentence] = outcome.errors
    assert sentence.startswith(f'gandiva: plugstack.conf: cannot take "{argument}"; the keys are socket=')
    assert (outcome.options, outcome.control, outcome.set) == ([], {}, {})
    assert set(outcome.rc.values()) == {0}


def test_a_right_plugstack_line_is_taken(spank: Run) -> None:
    words = ["arg:socket=/run/gandiva/%n.sock", "arg:hook=/usr/lib/gandiva/client/hook", "arg:partitions=a,b",
             "arg:unbound=wait:60", "arg:unbound=wait:0", "arg:unbound=fail"]
    outcome = spank("allocator", *words)
    assert outcome.errors == [] and len(outcome.options) == len(NAMES)


def test_the_last_of_two_values_counts(spank: Run, tmp_path: Path) -> None:
    """In a job without slots, which starts without gandivad."""
    job = ["arg:partitions=gandiva", "env:SLURM_JOB_PARTITION=gandiva"]
    hook = ["arg:hook=/h", f"arg:socket={tmp_path}/no.sock", *job]
    environ = {"SLURMD_NODENAME": "n1"}
    off = spank("remote", *hook, "opt:gandiva-hook=auto", "opt:gandiva-hook=none", environ=environ)
    on = spank("remote", *hook, "opt:gandiva-hook=none", "opt:gandiva-hook=auto", environ=environ)
    assert ("PYTHONPATH" in off.set, "PYTHONPATH" in on.set) == (False, True)
