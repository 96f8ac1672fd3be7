"""On which node the process image lies that a job goes on from, where nodes fetch images from each other."""

from __future__ import annotations

from dataclasses import replace

from gandiva_slurm.config import Config
from gandiva_slurm.wire.messages import NodeReport, PlannedJob


class ImagePlaces:
    """What nodes have told of their images."""

    def __init__(self) -> None:
        self._of: dict[str, frozenset[tuple[int, int]]] = {}

    def note(self, report: NodeReport) -> None:
        """Take a node's word on what it has."""
        self.forget(report.node)
        if report.images:
            self._of[report.node] = frozenset(report.images)

    def forget(self, node: str) -> None:
        """This node is none of ours any more."""
        self._of.pop(node, None)

    def named(self, job: PlannedJob, node: str, config: Config) -> PlannedJob:
        """Return a job of this node's plan; with where its last incarnation's image is, if another has it."""
        former = (job.job_id, job.restart - 1)
        has = next((name for name, images in self._of.items() if former in images and name != node), None)
        return replace(job, image_at="{}:{}".format(*config.node_address(has))) if has else job
