"""Tables: whatever text a job's owner chose, a row is one line."""

from unittest.mock import ANY

import pytest

from gandiva_slurm.cli import main
from gandiva_slurm.cli.table import Field, parsable_lines, sacct_lines, squeue_lines

FIELDS = [Field("JobID", 5, lambda row: "12"), Field("JobName", 30, lambda row: row["name"], left=True)]
FORGED = {"name": "x\n13|root\x1b[2J"}


@pytest.mark.parametrize(
    "lines",
    [
        squeue_lines(FIELDS, [FORGED], header=False),
        sacct_lines(FIELDS, [FORGED], header=False),
        parsable_lines(FIELDS, [FORGED], header=False, trailing=False),
    ],
)
def test_a_job_s_name_forges_no_line_and_drives_no_terminal(lines):
    shown = "\n".join(lines)
    assert shown.splitlines() == [ANY]
    assert "12" in shown and "x?13|root?[2J" in shown


@pytest.mark.parametrize("words", [(), ("mini",)])
def test_no_arguments_show_the_help_without_calling_it_an_error(words, capsys):
    with pytest.raises(SystemExit) as end:
        main.main(words)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("Usage: gandiva")
