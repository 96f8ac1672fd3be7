"""The exception tree. Every message says what, where and the next step.

GandivaError
├── ConfigError        gandiva.yaml or a Slurm file is wrong: file, key, what is allowed (exit 2)
├── UsageError         a command was typed wrong (exit 2)
├── NotNow             cannot be done yet; waiting may help
├── SlurmUnreachable   slurmctld or slurmdbd did not answer in time; the old picture stays, stale (exit 3)
├── SlurmRefused       Slurm answered no; its own sentence is kept
│   └── SlurmBusy      Slurm answered not yet; the same call may be granted a moment later (a NotNow too)
├── PeerError          a gandiva daemon did not answer, or answered what is not ours (exit 3)
│   └── PeerBusy       it cannot do this yet; the same question may be answered a moment later (a NotNow too)
└── AuthError          a message was not signed by whom it must be
"""


class GandivaError(Exception):
    """Root of every error this package raises on purpose."""

    exit_code = 1


class ConfigError(GandivaError):
    """Configuration is wrong; the daemon does not start."""

    exit_code = 2


class UsageError(GandivaError):
    """A command was used wrongly."""

    exit_code = 2


class NotNow(GandivaError):
    """Cannot be done yet."""


class SlurmUnreachable(GandivaError):
    """Slurm did not answer before the deadline."""

    exit_code = 3


class SlurmRefused(GandivaError):
    """Slurm answered no."""


class SlurmBusy(SlurmRefused, NotNow):
    """Slurm answered that it cannot do this yet."""


class PeerError(GandivaError):
    """A gandiva daemon did not answer, or not in our protocol."""

    exit_code = 3


class PeerBusy(PeerError, NotNow):
    """A gandiva daemon cannot do this yet."""


class AuthError(GandivaError):
    """A message does not carry the signature it must."""

    exit_code = 3
