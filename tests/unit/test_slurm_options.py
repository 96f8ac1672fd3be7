"""The gandiva record in AdminComment: what is ours is read, hostile text never crashes or misleads."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gandiva_slurm.model.snapshot import JobOptions
from gandiva_slurm.slurm.options import MAX_CHARS, read_options

WHOLE = {
    "v": 1, "tickets": 7, "priority": 9, "class": "opportunistic", "vc": "lab", "types": "v100,p100",
    "cell": "switch", "elastic": "1-4", "pack": "never", "migrate": "never", "hook": "none", "gpus": 2,
    "type": "v100", "user_hold": True,
}  # fmt: skip


def text(**changes: object) -> str:
    return "gandiva:" + json.dumps(WHOLE | changes, separators=(",", ":"))


def test_a_whole_record() -> None:
    assert read_options(text(), 1) == JobOptions(
        tickets=7, priority=9, job_class="opportunistic", vc="lab", types=("v100", "p100"), cell="switch",
        elastic="1-4", pack="never", migrate="never", hook="none", gpus=2, gpu_type="v100", user_hold=True,
    )  # fmt: skip


def test_two_nodes_are_for_an_elastic_job_of_one() -> None:
    def most(**changes: object) -> int:
        options = read_options(text(max_nodes=2, **changes), 1)
        return options.max_nodes if options is not None else 0

    assert (most(), most(elastic=""), most(nodes=2)) == (2, 1, 1)


def test_a_short_record_has_defaults() -> None:
    assert read_options('gandiva:{"v":1,"gpus":1}', 1) == JobOptions(gpus=1)


@pytest.mark.parametrize(
    "comment", ["", "jobstats:AbC", "gandiva:", "gandiva", '{"v":1,"gpus":1}', "gandiva: {}"]
)
def test_a_comment_without_a_record(comment: str) -> None:
    assert read_options(comment, 1) is None


def test_text_of_others_before_and_after() -> None:
    options = read_options(f"JS1:x gandiva: {{ {text()} more {{text}}", 1)
    assert options is not None and options.tickets == 7


def test_the_last_of_several_records_counts() -> None:
    options = read_options(f"{text(tickets=1)} {text(tickets=2)}", 1)
    assert options is not None and options.tickets == 2


def test_a_record_inside_a_users_string_is_a_string() -> None:
    options = read_options(text(vc=text(tickets=1000, vc="")), 1)
    assert options is not None and options.tickets == 7


@pytest.mark.parametrize(
    "record",
    [
        text()[:-1],
        text(v=2),
        text(v="1"),
        text(gpus=0),
        text(gpus="2"),
        text(gpus=True),
        text(gpus=10**9),
        text(gpus=3, nodes=2),
        "gandiva:{" + '"a":{' * 3000,
        "gandiva:{" + "9" * 5000,
        text(vc="x" * MAX_CHARS),
    ],
)
def test_an_unreadable_record_is_said_and_left_alone(record: str, caplog: pytest.LogCaptureFixture) -> None:
    assert read_options(record, 17) is None
    assert "job 17" in caplog.text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tickets", 0),
        ("tickets", 1001),
        ("tickets", 1.5),
        ("priority", -1),
        ("class", "root"),
        ("pack", []),
        ("cell", None),
        ("max_nodes", 3),
        ("max_nodes", True),
    ],
)
def test_an_impossible_value_is_replaced_by_the_default(
    key: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    options = read_options(text(**{key: value}), 17)
    assert options is not None
    assert (
        getattr(options, {"class": "job_class"}.get(key, key))
        == vars(JobOptions())[{"class": "job_class"}.get(key, key)]
    )
    assert f"job 17: its gandiva record has an impossible value for {key}" in caplog.text


def test_words_lose_what_could_forge_a_log_line() -> None:
    options = read_options(text(vc="a\nb\x1b[0m c", types="v100,,\n"), 1)
    assert options is not None
    assert options.vc == "ab[0mc"
    assert options.types == ("v100",)


@given(st.text(max_size=300))
def test_any_text_is_survived(comment: str) -> None:
    read_options(comment, 1)
    read_options("gandiva:{" + comment, 1)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=5
    )
)
def test_any_value_of_any_field_is_survived(value: object) -> None:
    for key in WHOLE:
        read_options(text(**{key: value}), 1)
