"""On a real Slurm: `gandiva web` takes the tokens that slurmctld gives, until they expire, and no others."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from gandiva_slurm.cli.web.token import TOKEN_HEADER
from gandiva_slurm.mini.cluster import MiniCluster
from tests.cluster.fleet import Fleet, own_cluster, wait_for
from tests.skips import NO_JWT

#: Slurm's own key, where slurmctld looks for it, and the copy that `gandiva web` reads.
KEY, COPY, LISTEN = "jwt_hs256.key", "/run/gandiva-web.key", "127.0.0.1:8321"
#: Serves as a user without rights, until it is ended.
SERVE = """
import os, subprocess, sys, tempfile
folder = tempfile.mkdtemp()
with open(sys.argv[1]) as file, open(folder + "/gandiva.yaml", "w") as copy:
    copy.write(file.read() + f"\\nweb: {{listen: '{sys.argv[2]}', jwt_key_file: {sys.argv[3]}}}\\n")
os.execvp("gandiva", ["gandiva", "-f", folder + "/gandiva.yaml", "web"])
"""
ASK = """
import json, sys, urllib.error, urllib.request
asked = urllib.request.Request(f"http://{sys.argv[1]}/api/v1/{sys.argv[2]}", headers=json.loads(sys.argv[3]))
try:
    with urllib.request.urlopen(asked, timeout=20) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as answer:
    print(answer.code, answer.read().decode())
except OSError as err:
    print(0, json.dumps(str(err)))
"""


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[MiniCluster]:
    with own_cluster("tokens", "v100:1x1", 1.0) as made:
        if made.exec(["sh", "-c", "ls /usr/lib/*/slurm*/auth_jwt.so"], check=False).returncode:
            pytest.skip(NO_JWT)
        give_tokens(made)
        yield made


def give_tokens(mini: MiniCluster) -> None:
    """Have slurmctld give tokens."""
    where = f"{mini.site.at.spool}/slurmctld/{KEY}"
    for path, user in ((where, "slurm"), (COPY, "user3"), ("/run/other.key", "slurm")):
        inside = mini.path(path)
        inside.write_bytes(mini.path(where).read_bytes() if path == COPY else os.urandom(32))
        mini.exec(["sh", "-c", f"chown {user} {path} && chmod 400 {path}"])
    with mini.path("/etc/slurm/slurm.conf").open("a") as conf:
        conf.write(f"\nAuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key={where}\n")
    mini.kill("slurmctld")
    mini.start_daemon("slurmctld")
    wait_for(lambda: mini.exec(["squeue", "-h"], check=False).returncode == 0, "Slurm to answer")


@pytest.fixture
def served(fleet: Fleet) -> Iterator[Fleet]:
    words = ["python3", "-c", SERVE, "/etc/slurm/gandiva.yaml", LISTEN, COPY]
    process = fleet.mini.popen(words, user="user3", stdin=subprocess.DEVNULL)
    try:
        wait_for(lambda: told(fleet, "health", {})[0] == 401, "gandiva web to serve", 60)
        yield fleet
    finally:
        process.kill()
        process.wait()


def told(fleet: Fleet, path: str, heads: dict[str, str]) -> tuple[int, dict[str, object]]:
    words = ["python3", "-c", ASK, LISTEN, path, json.dumps(heads)]
    status, _, body = fleet.mini.exec(words, user="user2").stdout.partition(" ")
    return int(status), json.loads(body)


def token_for(fleet: Fleet, user: str, lifespan_s: int = 600) -> str:
    text = fleet.mini.exec(["scontrol", "token", f"lifespan={lifespan_s}"], user=user).stdout
    return text.strip().removeprefix("SLURM_JWT=")


def test_a_token_of_slurms_names_its_user(served: Fleet) -> None:
    token = token_for(served, "user1")
    for heads in ({TOKEN_HEADER: token}, {"Authorization": f"Bearer {token}"}):
        status, health = wait_for(
            lambda heads=heads: (answer := told(served, "health", heads))[0] != 503 and answer, "a look"
        )
        assert (status, health["user"]) == (200, "user1"), health
    heads = {TOKEN_HEADER: token}
    status, answer = wait_for(lambda: (one := told(served, "jobs", heads))[0] != 503 and one, "its jobs")
    assert status == 200 and answer["jobs"] == []


def test_what_has_expired_or_was_not_given_is_refused(served: Fleet) -> None:
    short = token_for(served, "user1", 1)
    said = wait_for(
        lambda: (answer := told(served, "health", {TOKEN_HEADER: short}))[0] == 401 and answer[1],
        "the token to expire",
    )
    assert "has expired" in str(said["error"])
    token = token_for(served, "user1")
    for wrong in (token[:-4] + "AAAA", token.rpartition(".")[0] + ".", "x"):
        status, answer = told(served, "health", {TOKEN_HEADER: wrong})
        assert status == 401 and "not one that this cluster's Slurm has given" in str(answer["error"])
    assert told(served, "health", {"X-Remote-User": "user1"})[0] == 401, "nobody's proxy is at a port"


@pytest.mark.parametrize("path", ["spool", "/run/other.key"])
def test_a_key_that_is_not_its_users_stops_the_start(fleet: Fleet, path: str) -> None:
    key = f"{fleet.mini.site.at.spool}/slurmctld/{KEY}" if path == "spool" else path
    words = ["python3", "-c", SERVE, "/etc/slurm/gandiva.yaml", LISTEN, key]
    done = fleet.mini.exec(words, user="user3", check=False)
    assert done.returncode == 2 and "web.jwt_key_file" in done.stderr
