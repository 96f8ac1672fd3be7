"""A mini cluster whose jobs have simulated cards, which its nodes' gandivad reads as it reads NVML."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, own_cluster, wait_for
from tests.device import backend, card

GIB, MIB = 1 << 30, 1 << 20
#: A card, and what each process's context takes of it: gandivad counts on a real one's, of 1 GiB.
TOTAL, CONTEXT = 3 * GIB, GIB // 2
#: Of the card a training has so much for good, and so much more within each step: two do not fit together.
LIVE, WORK = 48 * MIB, 1100 * MIB
TRAIN = Path(__file__).parents[1] / "gpu/train.py"
#: A script that does not give its memory back.
HOLDER = """
import os, sys, time, torch
from tests.gpu import device
import gandiva_slurm as gandiva
ballast = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device=device.kind())
model = torch.nn.Linear(8, 8).to(device.kind())
while not os.path.exists(sys.argv[2]):
    model(torch.ones(1, 8, device=device.kind())).sum().backward()
    time.sleep(0.02)
    gandiva.step()
"""
#: A script whose device has seconds of work queued whenever an optimizer's step has returned.
AHEAD = """
import json, os, sys, torch
from tests.gpu import device
import gandiva_slurm as gandiva
kind, losses = device.kind(), []
torch.manual_seed(3)
model = torch.nn.Linear(256, 256).to(kind)
optimizer = torch.optim.AdamW(model.parameters())
while len(losses) < int(sys.argv[2]) and not os.path.exists(sys.argv[4]):
    loss = model(torch.ones(8, 256, device=kind)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    losses.append(loss.item().hex())
    device.queue(float(sys.argv[3]))
    optimizer.step()
with open(sys.argv[1] + ".tmp", "w") as file:
    json.dump(losses, file)
os.replace(sys.argv[1] + ".tmp", sys.argv[1])
"""


@contextmanager
def card_cluster(
    name: str,
    library: Path,
    quantum_s: float,
    cards: int = 1,
    client_wait_s: float = 600,
    **settings: dict[str, Any],
) -> Iterator[MiniCluster]:
    """One node with its cards. What runs inside has them in its environment, gandivad and jobs alike.

    `client_wait_s`: jobs here have clients, and one that is frozen while it imports PyTorch keeps what it has
    on the card.
    """
    plain = MiniCluster.environment

    def with_card(self: MiniCluster, user: str = "root") -> Mapping[str, str]:
        paths = [self.at.root / f"card{number}" for number in range(cards)]
        for path in paths:
            if not path.exists():
                card.make(path, TOTAL, CONTEXT).chmod(0o666)
        return {**plain(self, user), **backend.environment(library, *paths)}

    memory = {"gpu_memory_mib": TOTAL // MIB, "client_wait_s": client_wait_s}
    with (
        mock.patch.object(MiniCluster, "environment", with_card),
        own_cluster(name, f"v100:1x{cards}", quantum_s, node=memory, **settings) as made,
    ):
        yield made


class CardFleet(Fleet):
    """Trainings on the card."""

    def fill(self, user: str, name: str, live: int = LIVE, work: int = WORK) -> int:
        """Submit a training that takes so much of the card, in bytes, until `stop(name)`."""
        words = f"~/{name}.json 1000000 {live} {work} ~/{name}.stop"
        return self.submit(user, f"exec python {TRAIN} {words}", "--mem=6000")

    def hold(self, user: str, name: str, size: int) -> int:
        """Submit a training that keeps `size` bytes while it is parked."""
        script = f"export GANDIVA_TIER=hold\nexec python - {size} ~/{name}.stop <<'END'{HOLDER}END"
        return self.submit(user, script, "--mem=6000")

    def run_ahead(self, user: str, name: str, queued_s: float) -> int:
        """Submit a training that has these seconds queued behind each step, until `stop(name)`."""
        words = f"~/{name}.json 1000000 {queued_s} ~/{name}.stop"
        return self.submit(user, f"exec python - {words} <<'END'{AHEAD}END", "--mem=6000")

    def used(self, number: int = 0) -> list[int]:
        """Bytes of each process on a card, as one inside sees it."""
        path = str(self.mini.at.root / f"card{number}")
        look = f"from tests.device import card; print([*card.used(card.Path({path!r})).values()])"
        return json.loads(self.mini.exec(["python", "-c", look]).stdout)

    def losses(self, user: str, name: str) -> list[str]:
        """The losses of a training that was stopped, once it has written them."""
        self.stop(user, name)
        path = self.home(user, f"{name}.json")
        wait_for(path.exists, f"the losses of {name}", 60)
        return json.loads(path.read_text())

    def why(self, job: int) -> str:
        """What `gandiva why` tells of a job; "" before the controller has seen it."""
        told = self.mini.exec(["gandiva", "why", str(job)], check=False)
        return " ".join(told.stdout.split())


def alone(library: Path, directory: Path, steps: int) -> list[str]:
    """The losses of `fill` on a card of its own, without Slurm."""
    return _losses_of([TRAIN], library, directory, steps, [LIVE, WORK])


def alone_ahead(library: Path, directory: Path, steps: int) -> list[str]:
    """The losses of `run_ahead` on a card of its own, without Slurm and with nothing queued."""
    return _losses_of(["-c", AHEAD], library, directory, steps, [0.0])


def _losses_of(program: list[Any], library: Path, directory: Path, steps: int, words: list[Any]) -> list[str]:
    path, out = card.make(directory / f"card.{steps}", TOTAL, CONTEXT), directory / f"{steps}.json"
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "GANDIVA"))}
    argv = [sys.executable, *program, out, steps, *words, directory / "none"]
    subprocess.run([*map(str, argv)], env=kept | backend.environment(library, path), check=True, timeout=300)
    return json.loads(out.read_text())
