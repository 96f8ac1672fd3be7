"""From what a site writes down to trees of cells: kinds of cells, physical cells, what each VC owns.

A chain is all physical trees with the same kind of cell on top, named after it. A VC owns cells of a chain by
level and number (`CellGrant`), and pinned cells by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gandiva_slurm.model.errors import ConfigError
from gandiva_slurm.policy.virtual_clusters.cells import LEAF, PhysicalCell, VirtualCell


@dataclass(frozen=True, slots=True)
class CellKind:
    """A kind of cell: `count` of `child`; `is_node`: one of these is one node. Unlisted kinds are GPUs."""

    child: str
    count: int
    is_node: bool = False


@dataclass(frozen=True, slots=True)
class CellSpec:
    """A physical cell. Nodes must be named; GPUs are numbered in their node; what is left out is counted."""

    kind: str = ""
    name: str = ""
    pin: str = ""
    children: tuple[CellSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class CellGrant:
    """`count` cells of `kind`, cut from `chain` where needed."""

    chain: str
    kind: str
    count: int


@dataclass(frozen=True, slots=True)
class VcSpec:
    """What a VC owns."""

    grants: tuple[CellGrant, ...] = ()
    pins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CellsSpec:
    """A cluster in cells. Chains of a GPU type are tried in the order of `cells`."""

    kinds: Mapping[str, CellKind]
    cells: Sequence[CellSpec]
    vcs: Mapping[str, VcSpec] = field(default_factory=dict)


class Chain:
    """Shape of one chain, and all its physical cells by level."""

    def __init__(self, name: str, kinds: Mapping[str, CellKind]) -> None:
        """Follow the kinds from the top down to the GPU."""
        self.name = name
        kind_names = [name]
        while kind_names[-1] in kinds:
            kind_names.append(kinds[kind_names[-1]].child)
        #: by level, from 1; place 0 is empty
        self.kinds = ("", *reversed(kind_names))
        self.top = len(kind_names)
        self.gpu_type = kind_names[-1]
        #: children of a cell, by level
        self.widths = (0, 0, *(kinds[kind].count for kind in self.kinds[2:]))
        sizes = [0, 1]
        for width in self.widths[2:]:
            sizes.append(sizes[-1] * width)
        #: GPUs of a cell, by level
        self.sizes = tuple(sizes)
        node_levels = [level for level in range(2, self.top + 1) if kinds[self.kinds[level]].is_node]
        self.node_level = node_levels[0] if node_levels else 0
        if not self.node_level:
            raise ConfigError(f"cells: {name} holds no node; next: mark one of its kinds as the node")
        self.cells: list[list[PhysicalCell]] = [[] for _ in range(self.top + 1)]

    def level_of(self, kind: str) -> int:
        """Level of a kind of cell in this chain, 0 when it is not in it."""
        return self.kinds.index(kind, 1) if kind in self.kinds[1:] else 0

    def add(self, spec: CellSpec) -> PhysicalCell:
        """Build one physical tree."""
        return self._build(spec, self.top, "", 0)

    def _build(self, spec: CellSpec, level: int, node: str, number: int) -> PhysicalCell:
        cell = PhysicalCell(self.name, level, self.sizes[level], level >= self.node_level)
        cell.pin = spec.pin
        self.cells[level].append(cell)
        if level == self.node_level:
            node, number = spec.name, 0
        if level == LEAF:
            cell.index = int(spec.name) if spec.name else number
            cell.nodes = (node,)
            return cell
        width = self.widths[level]
        below = spec.children or (CellSpec(),) * width
        if len(below) != width:
            raise ConfigError(f"cells: a {self.kinds[level]} has {width} children, {len(below)} are listed")
        first = (int(spec.name) if spec.name and level < self.node_level else number) * width
        for offset, child_spec in enumerate(below):
            child = self._build(child_spec, level - 1, node, first + offset)
            child.parent = cell
            cell.children.append(child)
        cell.nodes = (node,) if level <= self.node_level else tuple(n for c in cell.children for n in c.nodes)
        return cell

    def build_virtual(self, vc: str, level: int) -> VirtualCell:
        """Build the tree of one cell that a VC owns."""
        root = self._virtual(level)
        for cell in walk(root):
            cell.vc, cell.root = vc, root
        return root

    def _virtual(self, level: int) -> VirtualCell:
        cell = VirtualCell(self.name, level, self.sizes[level], level >= self.node_level)
        for _ in range(self.widths[level]):
            child = self._virtual(level - 1)
            child.parent = cell
            cell.children.append(child)
        return cell


def walk(root: VirtualCell) -> Iterator[VirtualCell]:
    """A tree's cells, parents before children."""
    yield root
    for child in root.children:
        yield from walk(child)


def by_level(roots: Sequence[VirtualCell], top: int) -> list[list[VirtualCell]]:
    """Sort all cells of these trees into levels, in order."""
    levels: list[list[VirtualCell]] = [[] for _ in range(top + 1)]
    for root in roots:
        for cell in walk(root):
            levels[cell.level].append(cell)
    return levels


def build_chains(spec: CellsSpec) -> dict[str, Chain]:
    """Build all physical cells; chains in the order in which they are listed first.

    Raises ConfigError when a cell and its kind do not agree, or a node has no name.
    """
    chains: dict[str, Chain] = {}
    for cell in spec.cells:
        if cell.kind not in chains:
            chains[cell.kind] = Chain(cell.kind, spec.kinds)
        root = chains[cell.kind].add(cell)
        if "" in root.nodes:
            raise ConfigError(f"cells: a node of {cell.kind} has no name; next: write it")
    return chains
