"""gandiva.yaml as a file: where it lies, its text, and what of it a question to gandivactld needs.

A question is often asked by somebody who waits: to check the whole file takes longer than the answer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gandiva_slurm.model.errors import ConfigError

#: Environment variables that tell where the file lies, and where it lies when none does.
CONF_ENV, SLURM_CONF_ENV = "GANDIVA_CONF", "SLURM_CONF"
CONF_NAME, DEFAULT_DIRECTORY = "gandiva.yaml", "/etc/slurm"
#: A configuration is small; more than this is another file.
MAX_BYTES = 1024 * 1024
#: Where gandivactld listens, and as whom it answers, where the file does not tell.
PORT, SLURM_USER = 7321, "slurm"


class Peer(NamedTuple):
    """gandivactld as one who asks must know it."""

    host: str
    port: int = PORT
    slurm_user: str = SLURM_USER
    #: empty: munge's own default
    munge_socket: str = ""


def find_config(environ: Mapping[str, str] | None = None) -> Path:
    """Where the file lies: $GANDIVA_CONF, beside $SLURM_CONF, /etc/slurm; ConfigError when it is nowhere."""
    environ = os.environ if environ is None else environ
    if environ.get(CONF_ENV):
        return Path(environ[CONF_ENV])
    places = [Path(DEFAULT_DIRECTORY) / CONF_NAME]
    if environ.get(SLURM_CONF_ENV):
        places.insert(0, Path(environ[SLURM_CONF_ENV]).parent / CONF_NAME)
    for place in places:
        if place.exists():
            return place
    tried = ", ".join(str(place) for place in places)
    raise ConfigError(f"no {CONF_NAME}: looked at {tried}; write one, or name it with -f or ${CONF_ENV}")


def read(file: Path) -> str:
    """Return the text of the file; ConfigError where it cannot be read, or anybody may write it."""
    try:
        with open(file, encoding="utf-8") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            if mode & 0o002:
                raise ConfigError(f"{file}: everybody may write it (mode {mode & 0o7777:o}); chmod o-w it")
            text = stream.read(MAX_BYTES + 1)
    except OSError as err:
        raise ConfigError(f"{file}: {err.strerror}; name another with -f or ${CONF_ENV}") from err
    except UnicodeDecodeError as err:
        raise ConfigError(f"{file}: not UTF-8 text") from err
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{file}: longer than {MAX_BYTES} bytes; is this a {CONF_NAME}?")
    return text


def read_peer(path: str | os.PathLike[str] | None = None) -> Peer | None:
    """Return what the file tells of gandivactld, all else unchecked; None: it is not as it should be."""
    text = read(Path(path) if path is not None else find_config())
    try:
        told: Any = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        section = told["controller"]
        port, user = section.get("port", PORT), section.get("slurm_user", SLURM_USER)
        peer = Peer(section["host"], port, user, told.get("munge_socket", ""))
    except (
        yaml.YAMLError,
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ):
        return None
    is_whole = type(port) is int and all(
        isinstance(word, str) for word in (peer.host, user, peer.munge_socket)
    )
    return peer if is_whole and 0 < port < 1 << 16 else None
