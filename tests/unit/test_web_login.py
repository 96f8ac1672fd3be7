"""Whom `gandiva web` believes, and what of gandiva.yaml stops it."""

import os
import stat
from pathlib import Path

import pytest

from gandiva_slurm.cli.web.login import read_secret
from gandiva_slurm.config import load_config
from gandiva_slurm.model.errors import ConfigError, PeerError
from gandiva_slurm.sections import WebConfig
from gandiva_slurm.wire.door import open_socket_door

BASE = "cluster: c\npartitions: [p]\ncontroller: {host: c1}\n"


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o400)
    return path


def test_a_secret_is_read_where_no_other_user_may(secret):
    assert read_secret(str(secret)) == b"0123456789abcdef"
    assert read_secret("") is None


@pytest.mark.parametrize("mode", [0o404, 0o444, 0o420, 0o402, 0o666])
def test_a_secret_that_others_may_read_or_replace_is_refused(secret, mode):
    secret.chmod(mode)
    with pytest.raises(ConfigError, match="others may read or replace it; next: chown"):
        read_secret(str(secret))


def test_a_group_may_read_it_where_that_is_roots(secret):
    secret.chmod(0o440)
    status = secret.stat()
    if (status.st_uid, status.st_gid) == (0, 0):
        assert read_secret(str(secret)) == b"0123456789abcdef"
        os.chown(secret, 0, 1)
    with pytest.raises(ConfigError, match="others may read"):
        read_secret(str(secret))


@pytest.mark.parametrize("text", ["", "short", "0123456789abcdef\nsecond line of it", "x" * 5000])
def test_what_is_no_secret_is_refused(secret, text):
    secret.chmod(0o600)
    secret.write_text(text)
    with pytest.raises(ConfigError, match="expected one line of 16 to 4096 bytes"):
        read_secret(str(secret))


def test_a_secret_that_is_not_there_or_no_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"web.secret_file: .*No such file"):
        read_secret(str(tmp_path / "none"))
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(ConfigError, match="others may read or replace"):
        read_secret(str(tmp_path / "fifo"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("web: {listen: '127.0.0.1:8080'}", "secret_file or jwt_key_file is needed where listen is a port"),
        ("web: {listen: '0.0.0.0:8080', secret_file: /s}", "expected a socket's path or 127.0.0.1:port"),
        ("web: {listen: 'login1:8080', secret_file: /s}", "expected a socket's path or 127.0.0.1:port"),
        ("web: {listen: '127.0.0.1:0', secret_file: /s}", "expected a socket's path or 127.0.0.1:port"),
        ("web: {listen: '/" + "x" * 107 + "'}", "has 107 bytes at most"),
        ("web: {user_header: 'X: Y'}", "user_header"),
        ("web: {secret_file: here}", "secret_file"),
        ("web: {jwt_key_file: here}", "jwt_key_file"),
        ("web: {color: red}", "color: unknown key"),
    ],
)
def test_a_wrong_section_stops_it(tmp_path, line, said):
    file = tmp_path / "gandiva.yaml"
    file.write_text(BASE + line + "\n")
    with pytest.raises(ConfigError, match=r"gandiva.yaml:4: web") as told:
        load_config(file)
    assert said in str(told.value)


def test_the_example_shows_the_defaults():
    example = Path(__file__).parents[2] / "slurm_conf/gandiva.yaml"
    assert load_config(example).web == WebConfig()


def test_it_is_off_unless_told(tmp_path):
    file = tmp_path / "gandiva.yaml"
    file.write_text(BASE)
    assert load_config(file).web.listen == ""


async def test_a_dead_ones_socket_is_taken_and_a_living_ones_is_not(tmp_path):
    path = str(tmp_path / "web.sock")
    first = open_socket_door({}, path, "GET")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
    with pytest.raises(PeerError, match=f"cannot listen at {path}: Address already in use"):
        open_socket_door({}, path, "GET")
    await first.cleanup()
    await open_socket_door({}, path, "GET").cleanup()


async def test_another_file_in_the_sockets_place_stays(tmp_path):
    path = tmp_path / "file"
    path.write_text("kept")
    with pytest.raises(PeerError, match="no socket"):
        open_socket_door({}, str(path), "GET")
    assert path.read_text() == "kept"
    with pytest.raises(PeerError, match="No such file or directory"):
        open_socket_door({}, str(tmp_path / "none" / "web.sock"), "GET")
