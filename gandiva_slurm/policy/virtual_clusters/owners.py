"""Virtual clusters: the cells each one owns, and the views in which its gangs are placed."""

from __future__ import annotations

from collections.abc import Mapping

from gandiva_slurm.model.errors import ConfigError
from gandiva_slurm.policy.virtual_clusters.cells import PhysicalCell, VirtualCell, bind
from gandiva_slurm.policy.virtual_clusters.fit import View
from gandiva_slurm.policy.virtual_clusters.ledger import Ledger, Roots
from gandiva_slurm.policy.virtual_clusters.site import CellsSpec, Chain, VcSpec, by_level


class VirtualCluster:
    """One VC: what it owns wherever that is, and what it owns for good."""

    def __init__(
        self, name: str, spec: VcSpec, chains: Mapping[str, Chain], pinned: Mapping[str, PhysicalCell]
    ) -> None:
        """Build its trees; `pinned` are the cluster's pinned cells by name.

        Raises ConfigError for chains, kinds and pins that do not exist.
        """
        self.name = name
        trees: dict[str, list[VirtualCell]] = {}
        for grant in spec.grants:
            level = chains[grant.chain].level_of(grant.kind) if grant.chain in chains else 0
            if not level:
                raise ConfigError(f"cells: VC {name} owns {grant.kind} of {grant.chain}: there is none")
            new = [chains[grant.chain].build_virtual(name, level) for _ in range(grant.count)]
            trees.setdefault(grant.chain, []).extend(new)
        #: by chain and level: roots of the trees it owns
        self.roots = {chain: _roots(own, chains[chain].top) for chain, own in trees.items()}
        self.views = {chain: View(by_level(own, chains[chain].top), True) for chain, own in trees.items()}
        #: by the pin's name: its tree, and the physical cell behind it
        self.pins: dict[str, tuple[VirtualCell, PhysicalCell]] = {}
        for pin in spec.pins:
            if pin not in pinned:
                raise ConfigError(f"cells: VC {name} owns the pinned cell {pin}: there is none")
            cell = pinned[pin]
            self.pins[pin] = (chains[cell.chain].build_virtual(name, cell.level), cell)
        trees_of = {pin: by_level([root], root.level) for pin, (root, _) in self.pins.items()}
        self.pin_views = {pin: View(levels, True) for pin, levels in trees_of.items()}

    def roots_for(self, chain: str, pin: str) -> Roots | None:
        """Roots by level of a chain, or of a pinned cell; None when it does not own any."""
        if not pin:
            return self.roots.get(chain)
        if pin not in self.pins or self.pins[pin][1].chain != chain:
            return None
        root = self.pins[pin][0]
        return _roots([root], root.level)


def _roots(trees: list[VirtualCell], top: int) -> Roots:
    roots: Roots = [[] for _ in range(top + 1)]
    for tree in trees:
        roots[tree.level].append(tree)
    return roots


def pinned_cells(chains: Mapping[str, Chain]) -> dict[str, PhysicalCell]:
    """All pinned cells by name."""
    cells = (cell for chain in chains.values() for level in chain.cells for cell in level)
    return {cell.pin: cell for cell in cells if cell.pin}


def build_vcs(spec: CellsSpec, chains: Mapping[str, Chain]) -> dict[str, VirtualCluster]:
    """Build all VCs. Raises ConfigError."""
    pinned = pinned_cells(chains)
    return {name: VirtualCluster(name, vc, chains, pinned) for name, vc in spec.vcs.items()}


def build_ledgers(chains: Mapping[str, Chain], vcs: Mapping[str, VirtualCluster]) -> dict[str, Ledger]:
    """Count what the VCs own of each chain and hand them their pinned cells. Raises ConfigError."""
    pins = [(vc.name, root, cell) for vc in vcs.values() for root, cell in vc.pins.values()]
    ledgers = {}
    for name, chain in chains.items():
        empty: Roots = [[] for _ in range(chain.top + 1)]
        roots = {vc.name: vc.roots.get(name, empty) for vc in vcs.values()}
        pinned = {vc.name: [0] * (chain.top + 1) for vc in vcs.values()}
        for owner, _, cell in (pin for pin in pins if pin[2].chain == name):
            pinned[owner][cell.level] += 1
        ledgers[name] = Ledger(chain, roots, pinned)
    for owner, root, cell in pins:
        ledgers[cell.chain].claim(cell, owner)
        bind(cell, root)
    return ledgers
