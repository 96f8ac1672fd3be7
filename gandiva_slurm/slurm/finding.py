"""What `gandiva check` finds: a fault, where it is, and its cure."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Gandiva does not work, or breaks a promise.
ERROR = "error"
#: Gandiva works, but something is worse than it must be.
WARNING = "warning"


@dataclass(frozen=True)
class Finding:
    """One misconfiguration. `text` is the whole of it as one sentence."""

    level: str
    what: str
    where: str
    cure: str
    text: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", f"{self.where}: {self.what}; {self.cure}")


def error(where: str, what: str, cure: str) -> Finding:
    """Return a finding that must be mended."""
    return Finding(ERROR, what, where, cure)


def warning(where: str, what: str, cure: str) -> Finding:
    """Return a finding that should be mended."""
    return Finding(WARNING, what, where, cure)
