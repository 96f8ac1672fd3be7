"""A real node, as the node floor has it."""

from tests.node.conftest import make_node

__all__ = ["make_node"]
