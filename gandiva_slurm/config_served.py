"""Sections of gandiva.yaml on what is shown to others than Slurm's users: a Prometheus, and browsers."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_ADDRESS = re.compile(r"^(?P<host>[^:\s]+):(?P<port>\d{1,5})$")
#: Where a secret may be sent in clear text.
LOOPBACK = ("127.0.0.1", "localhost")
#: The longest path of a unix socket, in bytes, its final zero aside.
MOST_PATH = 107


class Section(BaseModel):
    """A section: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def is_address(text: str) -> bool:
    """True for host:port with a port there may be."""
    match = _ADDRESS.match(text)
    return match is not None and 1 <= int(match["port"]) <= 65535


class MetricsConfig(Section):
    """What `gandiva metrics` shows a Prometheus, and where (docs/metrics.md)."""

    #: host:port; empty: it does not serve
    listen: str = ""
    #: how often gandivactld is asked, however often Prometheus asks here
    interval_s: float = Field(default=15, ge=1, le=3600)
    #: figures of each user, too
    users: bool = False

    @field_validator("listen")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        if value and not is_address(value):
            raise ValueError(f"expected host:port with a port of 1..65535, or nothing, got {value!r}")
        return value


class WebConfig(Section):
    """Where `gandiva web` serves its API and its page, and how it knows who asks (docs/web.md)."""

    #: the path of a unix socket, or a host:port of the loopback; empty: it does not serve
    listen: str = ""
    #: the request header in which the reverse proxy names the user
    user_header: str = Field(default="X-Remote-User", pattern=r"^[A-Za-z][A-Za-z0-9-]{0,63}$")
    #: a file with the secret that the proxy sends along; needed on host:port
    secret_file: str = Field(default="", pattern=r"^(/.*)?$")

    @field_validator("listen")
    @classmethod
    def _socket_or_loopback(cls, value: str) -> str:
        if value.startswith("/"):
            if len(value.encode()) > MOST_PATH:
                raise ValueError(f"the path of a socket has {MOST_PATH} bytes at most")
        elif value and not (is_address(value) and value.rpartition(":")[0] in LOOPBACK):
            raise ValueError(f"expected a socket's path or 127.0.0.1:port, behind a proxy, got {value!r}")
        return value

    @model_validator(mode="after")
    def _secret_beside_a_port(self) -> WebConfig:
        if self.listen and not self.listen.startswith("/") and not self.secret_file:
            raise ValueError("secret_file is needed where listen is a port: anyone here may connect to it")
        return self
