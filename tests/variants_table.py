"""All known-wrong variants, by room.

To add one: a row in its room's file, then `.venv/bin/python -m tests.variants --only NAME`. One whose test
is a command (`gandiva mini demo`, say) is a row like the others, with `command`, `says`, target "demo".
"""

from __future__ import annotations

from tests.variant_kit import Variant
from tests.variant_rooms import (
    aside,
    attacks,
    books,
    card,
    cells,
    charge,
    demo,
    demonstration,
    devices,
    door,
    frameworks,
    fuzz,
    kept,
    lead,
    memory,
    moves,
    packs,
    park,
    placement,
    plans,
    privacy,
    rank,
    rounds,
    saver,
    sim,
    slurm,
    spank,
    spans,
    stride,
    submit,
    sums,
    tickets,
    turns,
    wire,
)

#: Room: its variants.
ROOMS: dict[str, tuple[Variant, ...]] = {
    "The rank: its half of the park protocol": rank.VARIANTS,
    "The rank: its memory and its share": memory.VARIANTS,
    "The saver: what a training is saved with, and read from": saver.VARIANTS,
    "Frameworks without a line": frameworks.VARIANTS,
    "The node: its half of the park protocol": park.VARIANTS,
    "The node: turns, switches and orders": turns.VARIANTS,
    "The node: memory of its GPUs": card.VARIANTS,
    "The node: the charge and its ledger": charge.VARIANTS,
    "Stride: passes, gangs, users": stride.VARIANTS,
    "Gangs over nodes: rounds and orders": spans.VARIANTS,
    "Placement, packing and elastic sizes": placement.VARIANTS,
    "Whole plans, and the engine that makes them true": plans.VARIANTS,
    "Packs in whole plans": packs.VARIANTS,
    "A policy that decides: asked, remembered, left": lead.VARIANTS,
    "Rounds: on time, late, and passes handed over": rounds.VARIANTS,
    "Moves, time limits, fences and limits": moves.VARIANTS,
    "Tickets and trades": tickets.VARIANTS,
    "Virtual clusters' cells": cells.VARIANTS,
    "Controller: journal, ledger, recovery": books.VARIANTS,
    "The ledger: sums by day": sums.VARIANTS,
    "Nobody gets round it: work without paying": attacks.VARIANTS,
    "Nobody gets round it: GPUs of others": devices.VARIANTS,
    "What is private": privacy.VARIANTS,
    "Jobs that cause errors": aside.VARIANTS,
    "The daemons' TCP door and signs of life": door.VARIANTS,
    "Wire and configuration": wire.VARIANTS,
    "Hostile texts: messages, pages, flags, configurations": fuzz.VARIANTS,
    "Slurm: reading and acting": slurm.VARIANTS,
    "Slurm: job_submit.lua": submit.VARIANTS,
    "Slurm: the SPANK plugin": spank.VARIANTS,
    "What is kept between questions": kept.VARIANTS,
    "The simulator": sim.VARIANTS,
    "The demonstration's checks": demo.VARIANTS,
    "The demonstration": demonstration.VARIANTS,
}
ALL = tuple(variant for room in ROOMS.values() for variant in room)
