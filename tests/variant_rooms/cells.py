"""Known-wrong variants. Virtual clusters' cells."""

from __future__ import annotations

from tests.variant_kit import Variant

VARIANTS = (
    Variant(
        "promise-of-others-broken",
        "gandiva_slurm/policy/virtual_clusters/ledger.py:Ledger._keeps_promises",
        "            if spare[above.level] < 1:\n                return False\n",
        "",
        "A cell is handed out that others are owed.",
        (
            "tests/property/test_cells_safety.py::test_invariants_hold_through_failures_preemptions_and_"
            "demotions",
        ),
    ),
    Variant(
        "vcs-own-too-much",
        "gandiva_slurm/policy/virtual_clusters/ledger.py:Ledger._check_fit",
        "if needed > available:",
        "if False:",
        "Virtual clusters are promised more than there is.",
        ("tests/unit/test_cells.py::test_promises_that_do_not_fit_the_cluster_are_refused",),
    ),
    Variant(
        "cell-not-given-back",
        "gandiva_slurm/policy/virtual_clusters/ledger.py:Ledger._let_go_of",
        "            self.release(cell, virtual.vc)\n",
        "            pass\n",
        "A cell that nobody uses any more is not given back.",
        ("tests/unit/test_cells.py::test_cells_split_for_a_small_request_and_merge_when_it_ends",),
    ),
    Variant(
        "bad-cell-merged-away",
        "gandiva_slurm/policy/virtual_clusters/ledger.py:Ledger.heal",
        "if above is not None and all(child.is_healthy for child in above.children):",
        "if above is not None:",
        "A cell with a bad child counts as healthy when another child heals.",
        (
            "tests/property/test_cells_safety.py::test_invariants_hold_through_failures_preemptions_and_"
            "demotions",
        ),
    ),
    Variant(
        "doomed-cells-left-open",
        "gandiva_slurm/policy/virtual_clusters/ledger.py:Ledger._doom",
        "while numbers[level] > self._healthy(level):",
        "while False:",
        "A virtual cluster places jobs on cells that no healthy one can stand behind.",
        ("tests/unit/test_cells.py::test_no_bad_node_is_bound_while_a_healthy_one_is_free",),
    ),
    Variant(
        "cell-used-unseen-above",
        "gandiva_slurm/policy/virtual_clusters/cells.py:Cell.occupy",
        "        for cell in self.line():\n            cell.used",
        "        for cell in [self]:\n            cell.used",
        "A GPU in use leaves the cells above it free.",
        ("tests/unit/test_cells.py::test_sixteen_small_jobs_of_one_vc_leave_the_other_vc_its_node",),
    ),
    Variant(
        "lost-node-is-the-owners",
        "gandiva_slurm/policy/virtual_clusters/virtual.py:VirtualClusters.follow",
        "if self._owned and self.cells.bad_nodes:",
        "if False:",
        "Jobs that draw on nothing anybody owns keep the node that is left, and owners wait.",
        ("tests/unit/test_led_owners.py::"
         "test_an_owner_that_comes_while_a_node_is_down_has_what_is_left_at_once",),
    ),
    Variant(
        "what-nobody-owns-is-bound-first",
        "gandiva_slurm/policy/virtual_clusters/virtual.py:VirtualClusters._follow_names",
        '[*owned, ""]',
        '["", *owned]',
        "While a node is down the jobs that draw on nothing anybody owns choose first.",
        ("tests/unit/test_led_owners.py::test_a_lost_node_is_taken_first_from_what_nobody_owns[n2]",),
    ),
)
