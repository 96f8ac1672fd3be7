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
        """Return a job of this node's plan; with where its newest image is, if another node has that."""
        found = [
            (restart, name)
            for name, images in self._of.items()
            for job_id, restart in images
            if job_id == job.job_id and restart < job.restart
        ]
        restart, has = max(found, default=(-1, node))
        if has == node:
            return job
        return replace(job, image_at="{}:{}".format(*config.node_address(has)), image_restart=restart)
