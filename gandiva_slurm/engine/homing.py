"""Back to its own virtual cluster: who was parked for long on others' GPUs, and has room at home again.

A job that borrows stays where it is while it runs. Once it has waited as long as an opportunistic one does
for its promotion, it is moved (`moving`) in its next turn, with the bars and budgets of all moves: in a turn
it saves itself, and while it is parked nobody knows when the owners leave it one.
"""

from __future__ import annotations

from dataclasses import replace

from gandiva_slurm.engine.follow import Cycle
from gandiva_slurm.engine.moving import begin_move
from gandiva_slurm.engine.owners import told_vc
from gandiva_slurm.engine.placing import in_order, need_now
from gandiva_slurm.engine.planner import bar_of, is_there, room_for_moves
from gandiva_slurm.engine.state import SECOND_NS, JobRecord
from gandiva_slurm.model import job as states
from gandiva_slurm.policy.classes import PATIENCE_NS
from gandiva_slurm.policy.draft import Draft
from gandiva_slurm.policy.placement import Board


def bring_home(at: Cycle, board: Board) -> None:
    """Begin to move the borrowers that are in a turn at last, had waited long, and find room at home."""
    room = room_for_moves(at)
    full: set[tuple[object, ...]] = set()
    for record in in_order(at, *states.SLICED):
        if not record.is_borrowing:
            continue
        if record.state == states.SUSPENDED:
            record.without_ns = record.since_ns
        elif record.state == states.RUNNING and at.now_ns - record.since_ns >= at.settings.quantum_ns:
            record.without_ns = 0
        has_waited = record.without_ns and record.since_ns - record.without_ns >= PATIENCE_NS
        is_ripe = has_waited and record.state == states.RUNNING
        if is_ripe and room > 0 and is_there(at, record) and not bar_of(at, record):
            room -= _bring_home(at, board, record, full)


def _bring_home(at: Cycle, board: Board, record: JobRecord, full: set[tuple[object, ...]]) -> bool:
    need = replace(need_now(at, record), is_opportunistic=False)
    if need.shape in full:  # a board only fills up
        return False
    place = board.best(need, [site for site in board.sites.values() if site.may_take(need)])
    if place is None:
        full.add(need.shape)
        return False
    draft = Draft(board)
    draft.leave(need.job_id, tuple(record.places))
    draft.keep(need, place)
    waited_s = (record.since_ns - record.without_ns) // SECOND_NS
    why = f"{told_vc(need.vc)} has room for it again, after {waited_s} s without GPUs on others'"
    begin_move(at, record, dict(place.parts), (why,))
    return True
