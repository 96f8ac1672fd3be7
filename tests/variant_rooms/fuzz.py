"""Known-wrong variants. Hostile texts: messages, pages, flags and configurations."""

from __future__ import annotations

from tests.variant_kit import Variant

TESTS = "tests/fuzz/test_fuzz.py"
DRAWN = f"{TESTS}::test_what_is_drawn_is_taken_or_refused_in_words"
FLAGS = f"{TESTS}::test_plugin_and_script_say_the_same_of_hostile_flags"
KEPT = f"{TESTS}::test_what_was_found_once_is_refused_in_words_now"
ASKED = f"{TESTS}::test_a_controller_answers_what_is_drawn"

VARIANTS = (
    Variant(
        "stranger-fills-the-log",
        "gandiva_slurm/node/door.py:Door._serve",
        'often.info("refused", f"',
        'logging.getLogger(__name__).info(f"',
        "Whoever connects to the node's socket writes into its log as often.",
        ("tests/unit/test_node_door.py",),
    ),
    Variant(
        "field-of-any-type",
        "gandiva_slurm/wire/messages.py:_build",
        "values[name] = reader(raw[name])",
        "values[name] = raw[name]",
        "A message's fields are of whatever type came.",
        (f"{DRAWN}[planned]",),
    ),
    Variant(
        "nested-without-end",
        "gandiva_slurm/wire/messages.py:read",
        "except (ValueError, RecursionError) as err:",
        "except ValueError as err:",
        "Brackets in brackets are an internal error.",
        (f"{KEPT}[report.nested.hex]",),
    ),
    Variant(
        "plan-of-any-number-of-gpus",
        "gandiva_slurm/node/planning.py:check_plan",
        "not 0 <= plan.gpus <= _MOST_GPUS",
        "plan.gpus < 0",
        "A plan may tell of more GPUs than there is memory to count them.",
        ("tests/unit/test_node_planning.py::test_what_is_impossible_is_refused",),
    ),
    Variant(
        "question-nested-without-end",
        "gandiva_slurm/controller/api.py:Api._data",
        "except (ValueError, KeyError, TypeError, RecursionError) as err:",
        "except (ValueError, KeyError, TypeError) as err:",
        "Brackets in brackets are an internal error.",
        (ASKED,),
    ),
    Variant(
        "boundary-told-as-it-is",
        "gandiva_slurm/node/part.py:stand_of",
        "min(view[W_SEQ], SANE_SEQ) for",
        "view[W_SEQ] for",
        "A page's word keeps its node's answers from being read.",
        (f"{DRAWN}[page]",),
    ),
    Variant(
        "a-gang-may-refuse",
        "gandiva_slurm/node/charging.py:look_at_refusal",
        "bound_ns = node.settings.refusal_bound_ns if waiting else 0",
        "bound_ns = 0",
        "What ranks write on their pages keeps their gang on its GPUs.",
        (f"{DRAWN}[page]",),
    ),
    Variant(
        "answer-past-its-room",
        "spank/bind.c:read_line",
        "recv(talk->fd, reply + used, size - 1 - used, MSG_DONTWAIT)",
        "recv(talk->fd, reply + used, size - used, MSG_DONTWAIT)",
        "An answer of gandivad's may end a byte past its buffer.",
        (FLAGS,),
    ),
    Variant(
        "value-shown-as-it-is",
        "spank/options.c:gandiva_option_check",
        "gandiva_printable(value, shown, sizeof(shown));",
        "snprintf(shown, sizeof(shown), \"%s\", value);",
        "A value's control characters reach the terminal.",
        (FLAGS,),
    ),
    Variant(
        "script-takes-longer-names",
        "slurm_conf/gandiva_words.lua:is_name",
        "#text <= 64",
        "#text <= 65",
        "The script takes a name that the plugin refuses.",
        ("tests/unit/test_job_submit_lua.py", FLAGS),
    ),
    Variant(
        "value-that-cannot-be-built",
        "gandiva_slurm/yaml_lines.py:_Loader.construct_object",
        "except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError) as err:",
        "except MemoryError as err:",
        "A date of month 13 in gandiva.yaml is an internal error.",
        (f"{DRAWN}[config]", "tests/unit/test_config.py"),
    ),
)
