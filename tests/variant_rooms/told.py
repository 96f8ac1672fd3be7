"""Known-wrong variants. What users, managers and monitoring are told."""

from __future__ import annotations

from tests.variant_kit import Variant

VARIANTS = (
    Variant(
        "a-page-says-how-busy",
        "gandiva_slurm/accounting/busy.py:Busy.due",
        "if item.gpu_percent >= 0 and held_ns > 0:",
        "if held_ns > 0:",
        "Time that NVML did not look at counts as seen.",
        ("tests/unit/test_report.py::test_what_was_held_counts_as_busy_as_nvml_saw_it",),
    ),
    Variant(
        "a-refused-write-counts-as-done",
        "gandiva_slurm/accounting/ledger.py:Ledger.record_report",
        "busy = self._busy.due(report)",
        "busy = self._busy.due(report)\n        self._busy.written(busy)",
        "What a full disk refused of a job's busy time is forgotten.",
        ("tests/unit/test_report.py::test_a_full_disk_loses_none_of_it_and_none_counts_twice",),
    ),
    Variant(
        "a-pack-charged-twice-in-reports",
        "gandiva_slurm/accounting/report.py:usage_report",
        "job.held += part.halves",
        "job.held += 2 * part.held_ns",
        "A report charges what two jobs shared to both in full.",
        ("tests/unit/test_report.py::test_its_sums_are_those_of_acct",),
    ),
    Variant(
        "others-in-reports",
        "gandiva_slurm/controller/api.py:Api._report",
        "and curtained.may_see_usage(row, viewer)",
        "",
        "A report tells of others though Slurm hides them.",
        ("tests/controller/test_privacy.py::test_others_are_in_no_answer",),
    ),
    Variant(
        "a-formula-in-a-report",
        "gandiva_slurm/cli/report.py:csv_lines",
        "_plain(cell)",
        "cell",
        "An account's name runs as a formula in the spreadsheet that opens a report.",
        ("tests/unit/test_report.py::test_csv_has_a_line_a_row_and_no_formula",),
    ),
    Variant(
        "lost-work-is-useful",
        "gandiva_slurm/cli/advice.py:useful_part",
        "/ held_s * once",
        "/ held_s",
        "Mini-batches that were done again count as useful.",
        ("tests/unit/test_eff.py::test_what_was_done_again_is_not_useful",),
    ),
    Variant(
        "each-scrape-asks-gandivactld",
        "gandiva_slurm/cli/metrics.py:Page.show",
        "asyncio.get_running_loop().call_later(READ_S, guest.transport.abort)",
        "await self.refresh()",
        "Each scrape is a question to gandivactld, and one that does not read is waited for.",
        (
            "tests/controller/test_metrics.py::test_however_often_it_is_scraped_gandivactld_is_asked_once",
            "tests/controller/test_metrics.py::test_one_that_does_not_read_is_left",
        ),
    ),
    Variant(
        "old-figures-while-it-is-down",
        "gandiva_slurm/cli/metrics.py:Page._fail",
        "self.text = page(None, _own(False, took_s))",
        "pass",
        "While gandivactld does not answer its last figures are shown as if they were of now.",
        ("tests/controller/test_metrics.py::test_a_wrong_answer_is_no_answer",),
    ),
    Variant(
        "questions-pile-up",
        "gandiva_slurm/cli/metrics.py:Page.refresh",
        "if self._asked is not None and not self._asked.done():",
        "if False:",
        "A gandivactld that hangs is asked again and again.",
        ("tests/controller/test_metrics.py::test_a_question_that_hangs_is_bounded_and_no_other_is_put",),
    ),
    Variant(
        "figures-for-everybody",
        "gandiva_slurm/controller/api.py:Api._figures",
        "if not all(viewer.sees_every(what) for what in (JOBS, USAGE, NODES)):",
        "if not viewer.sees_every(JOBS):",
        "Figures of usage and nodes are given to everybody though Slurm hides them.",
        ("tests/controller/test_metrics.py::test_figures_are_operators_where_slurm_hides_something",),
    ),
    Variant(
        "a-series-for-every-user",
        "gandiva_slurm/controller/figures.py:_users",
        "ordered[:MOST_USERS] + ([_sum(rest)] if rest else [])",
        "ordered",
        "Series grow with users without a bound.",
        (
            "tests/controller/test_metrics.py"
            "::test_series_do_not_grow_with_jobs_nor_with_users_beyond_a_bound",
        ),
    ),
    Variant(
        "a-metric-renamed",
        "gandiva_slurm/cli/families.py:_of_family",
        "metric(family.name, family.text,",
        "metric(family.name.replace('_gpus', '_cards'), family.text,",
        "A metric has another name than dashboards, alerts and documentation.",
        ("tests/unit/test_monitoring.py::test_the_page_has_what_the_table_says_and_nothing_else",),
    ),
    Variant(
        "files-in-a-directory-of-others",
        "gandiva_slurm/node/attribution.py:Files._open",
        "if status.st_uid != os.geteuid() or status.st_mode & 0o022:",
        "if status.st_uid != os.geteuid():",
        "Root writes and removes files where any user may put others in their place.",
        ("tests/unit/test_node_attribution.py::test_a_directory_that_others_may_write_is_refused",),
    ),
    Variant(
        "a-holder-that-could-not-be-written-stays",
        "gandiva_slurm/node/attribution.py:Files._tell",
        "failure = err\n                _remove(directory, str(gpu))",
        "failure = err",
        "On a full disk a GPU goes on being told as the last holder's.",
        ("tests/unit/test_node_attribution.py::test_a_full_disk_leaves_no_wrong_name",),
    ),
    Variant(
        "a-file-written-where-it-stands",
        "gandiva_slurm/node/attribution.py:_replace",
        'fresh = f".{name}.new"',
        "fresh = name",
        "A file is written in its place: a reader sees half of it, a kill leaves none.",
        ("tests/unit/test_node_attribution.py::test_a_kill_at_any_moment_leaves_whole_files",),
    ),
    Variant(
        "what-was-left-stays",
        "gandiva_slurm/node/attribution.py:Files._tell",
        'if name.startswith(".") or int(name) not in wanted:',
        'if name.startswith("."):',
        "A GPU's holder of before a kill of gandivad is told for ever.",
        (
            "tests/unit/test_node_attribution.py"
            "::test_what_a_killed_one_left_is_cleared_and_other_files_are_left_alone",
        ),
    ),
    Variant(
        "released-gpus-are-told-as-held",
        "gandiva_slurm/node/ledger.py:Ledger.end",
        "self._append(dataclasses.asdict(hold))\n        self.on_change()",
        "self._append(dataclasses.asdict(hold))",
        "A GPU that its job has released stays told as that job's.",
        ("tests/unit/test_node_attribution.py::test_each_change_of_the_books_is_heard_of",),
    ),
    Variant(
        "old-looks-as-new",
        "gandiva_slurm/cli/top.py:_watch",
        'trouble = f"what is shown is old: {err}"',
        'trouble = ""',
        "While gandivactld is away its last state is shown as if it were of now.",
        (
            "tests/unit/test_top.py"
            "::test_it_goes_on_while_gandivactld_is_away_and_rests_longer_where_a_look_takes_long",
        ),
    ),
    Variant(
        "a-name-steers-the-terminal",
        "gandiva_slurm/cli/top.py:frame",
        "[printable(line)[:width]",
        "[line[:width]",
        "A user's text steers another's terminal.",
        ("tests/unit/test_top.py::test_a_users_text_steers_no_terminal",),
    ),
)
