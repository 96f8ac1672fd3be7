"""`gandiva check --process-images N`: can this node make images of processes? By making N (ADR 0069)."""

from __future__ import annotations

import dataclasses
import os
import statistics
from pathlib import Path

import click

from gandiva_slurm.cli.client import to_json
from gandiva_slurm.config import load_config
from gandiva_slurm.model.errors import ConfigError, GandivaError, UsageError
from gandiva_slurm.node import image_rounds
from gandiva_slurm.node.image_subject import Failed, Round

#: The parts of a move, by the words of docs/images.md.
_PARTS = {
    "dump_s": "dump, by criu",
    "seal_s": "copy and digests",
    "verify_s": "verified",
    "restore_s": "restore",
}


def check(config_path: str | None, count: int, user: str, as_json: bool) -> int:
    """Make and restore `count` images one after the other; print what each part took. 1: a round failed."""
    if os.geteuid() != 0:
        raise UsageError("--process-images: root alone may make images; next: sudo, on the node in question")
    section = load_config(config_path).node
    if not section.image_dir:
        raise ConfigError("--process-images: node.image_dir is not set; next: name root's directory there")
    most = round(section.image_most_gib * (1 << 30))
    made: list[Round] = []
    why = ""
    try:
        node, has_card = os.uname().nodename, section.process_images_gpu
        for done in image_rounds.run(Path(section.image_dir), node, user, most, count, has_card):
            made.append(done)
            if not as_json and len(made) in {1, count // 4, count // 2}:
                click.echo(f"{len(made)} of {count}", err=True)
    except Failed as err:
        why = str(err)
    if as_json:
        rounds = [dataclasses.asdict(done) for done in made]
        click.echo(to_json({"wanted": count, "rounds": rounds, "failed": why}))
    else:
        _tell(made, section.process_images_gpu)
    if why:
        raise GandivaError(f"--process-images: image {len(made) + 1} of {count}: {why}; next: docs/images.md")
    return 0


def _tell(made: list[Round], has_card: bool) -> None:
    if not made:
        return
    largest = max(done.bytes for done in made)
    what = f"{largest >> 20} MiB the largest; all steps right"
    on_card = ", one of them on a GPU," if has_card else ""
    click.echo(f"images of two processes{on_card} made and restored: {len(made)}, {what}")
    for name, told in _PARTS.items():
        taken = [getattr(done, name) for done in made]
        click.echo(f"  {told:<17} {statistics.median(taken):.2f} s, the longest {max(taken):.2f} s")
