"""Known-wrong variants. Tickets and trades."""

from __future__ import annotations

from tests.variant_kit import Variant

VARIANTS = (
    Variant(
        "tickets-lost-in-the-split",
        "gandiva_slurm/policy/shares/associations.py:split",
        "        result[name] += 1\n",
        "        pass\n",
        "What rounding leaves of a user's tickets is lost.",
        ("tests/unit/test_shares.py::test_split_conserves_tickets",),
    ),
    Variant(
        "job-without-a-ticket",
        "gandiva_slurm/policy/shares/associations.py:split",
        "result = {name: 1 + whole for",
        "result = {name: whole for",
        "A job of small weight has no ticket and never runs.",
        ("tests/unit/test_shares.py::test_split_conserves_tickets",),
    ),
    Variant(
        "absent-users-hold-tickets",
        "gandiva_slurm/policy/shares/associations.py:_fractions",
        "ordered = sorted(leaves)",
        "ordered = sorted({*leaves, *tree.leaf_shares})",
        "Users without jobs keep their part of the tickets.",
        ("tests/unit/test_shares.py::test_flat_tree_gives_a_hundred_tickets_a_share_whoever_is_present",),
    ),
    Variant(
        "priority-of-no-weight",
        "gandiva_slurm/policy/shares/associations.py:job_weight",
        "return max(1, tickets) * (max(0, priority) + 1)",
        "return max(1, tickets)",
        "--gandiva-priority changes nothing.",
        ("tests/unit/test_shares.py::test_weight_rises_with_tickets_and_priority",),
    ),
    Variant(
        "entitled-beyond-demand",
        "gandiva_slurm/policy/shares/associations.py:entitled_shares",
        "capped = [user for user in open_users if demand_gpus[user] <= level * tickets[user]]",
        "capped = []",
        "A user is due more than the user asks for, and others what is left.",
        ("tests/unit/test_shares.py::test_entitled_shares_fill_like_water",),
    ),
    Variant(
        "tree-flattened",
        "gandiva_slurm/policy/shares/associations.py:_fractions",
        "wholes[account] *= parts[tree.parent(above)][above]",
        "pass",
        "The shares of accounts above a user's do not count.",
        ("tests/unit/test_shares.py::test_accounts_share_first_their_users_then",),
    ),
    Variant(
        "past-use-forgotten",
        "gandiva_slurm/policy/shares/tickets.py:_weighed",
        "factor: float = 0.5 ** min(used, _MOST_HALVINGS)",
        "factor: float = 1.0",
        "What a user used before does not count with a half-life.",
        ("tests/unit/test_tickets.py::test_past_use_fades_by_the_half_life",),
    ),
    Variant(
        "price-first-instead-of-second",
        "gandiva_slurm/policy/trading/market.py:Market._price_setter",
        "is_other = name not in (buyer, seller)",
        "is_other = name != seller",
        "A sale costs the buyer's own bid, not the next best.",
        ("tests/unit/test_trading.py::test_the_trading_run_leaves_two_users_in_the_middle_as_they_are",),
    ),
    Variant(
        "price-below-the-sellers-worth",
        "gandiva_slurm/policy/trading/market.py:Market._price_setter",
        "self._step[seller] < self._step[name] <= self._step[buyer]",
        "self._step[name] <= self._step[buyer]",
        "A seller gets less for a GPU than the GPU is worth to that seller.",
        ("tests/unit/test_trading.py::test_the_trading_run_leaves_two_users_in_the_middle_as_they_are",),
    ),
    Variant(
        "purse-bid-empty",
        "gandiva_slurm/policy/trading/market.py:Market._sale",
        "if (seller, buyer) in self._setters:",
        "if False:",
        "A bidder that empties another's purse buys below its own bid afterwards.",
        ("tests/unit/test_trading.py::test_the_trading_run_with_four_models_of_the_paper",),
    ),
    Variant(
        "sold-beyond-what-is-held",
        "gandiva_slurm/policy/trading/market.py:Market._amount",
        "amount = min(held[seller][fast], held[buyer][slow] / price)",
        "amount = held[seller][fast]",
        "A buyer pays with GPUs that it does not have.",
        ("tests/unit/test_trading.py::test_the_trading_run_with_four_models_of_the_paper",),
    ),
    Variant(
        "seller-gives-and-keeps",
        "gandiva_slurm/policy/trading/market.py:Market._settle",
        "            giver[name] -= part\n",
        "",
        "A seller keeps the GPUs that were sold.",
        ("tests/unit/test_trading.py::test_the_trading_run_leaves_two_users_in_the_middle_as_they_are",),
    ),
)
