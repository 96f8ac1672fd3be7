"""Directories shared with a mini cluster: what is refused who may do what, names that are swapped."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from gandiva_slurm.engine.lifecycle.event_handlers import _ending
from gandiva_slurm.mini import docker, entering, init, layout, mounts, record, shares, trees
from gandiva_slurm.mini.commands import mini
from gandiva_slurm.mini.layout import Layout
from gandiva_slurm.mini.shares import READ, WRITE, Share
from gandiva_slurm.mini.spec import USERS, MiniSpec
from gandiva_slurm.model.errors import GandivaError, UsageError
from gandiva_slurm.model.snapshot import SlurmJob

NOBODY_S = Share("/srv/x", 1, 2, 0o755, 0, 0)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A directory that everybody may write in, and nothing else is known of."""
    made = tmp_path / "work"
    made.mkdir()
    made.chmod(0o777)
    return made


@pytest.mark.parametrize(("place", "why"), [
    ("/", "holds more than one person's work"), ("/home", "holds more than"), ("/root", "holds more than"),
    ("/tmp", "the cluster has one of its own"), ("/var/tmp", "one of its own there"),
    ("/opt", "holds more than"), ("/var", "holds more than"), ("/home/user1", "one of its own there"),
    ("/etc", "/etc is the system's own"), ("/etc/slurm", "/etc is the system's own"),
    ("/run", "/run is the system's own"), ("/run/gandiva-mini/mini/etc", "/run is the system's own"),
    ("/usr", "/usr is"), ("/usr/local/share", "/usr is"), ("/proc", "/proc is"), ("/sys/fs", "/sys is"),
    ("/dev/shm", "/dev is"), ("/boot", "/boot is"), ("/var/lib/x", "/var/lib is"),
    ("/srv/me/.ssh", "secret keys"),
    ("/srv/a\nb", "cannot be printed")])
def test_what_is_never_shared(place: str, why: str) -> None:
    for backend in ("local", "docker:bookworm"):
        assert why in shares.refusal(Path(place), backend)


@pytest.mark.parametrize("place", ["/srv", "/srv/work", "/tmp/x", "/home/me", "/home/user1/x", "/root/x",
                                   "/etcetera", "/opt/work", "/data", "/var/tmp/x", "/srv/a b$c:d"])
def test_what_may_be_shared(place: str) -> None:
    assert shares.refusal(Path(place), "local") == shares.refusal(Path(place), "docker:forky") == ""


def test_containers_keep_what_their_image_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shares.refusal(Path("/opt/gandiva-slurm/x"), "local") == ""
    assert "of their own there" in shares.refusal(Path("/opt/gandiva-slurm/x"), "docker:bookworm")
    monkeypatch.setattr(layout, "BASE", Path("/srv/base/clusters"))
    for place in ("/srv", "/srv/base", "/srv/base/clusters", "/srv/base/clusters/mini/log"):
        assert "/srv/base/clusters, where the clusters' own files are" in shares.refusal(Path(place), "local")


def test_a_link_is_judged_as_what_it_leads_to(work: Path) -> None:
    (work / "link").symlink_to("/etc")
    said = rf"^--share {work}/link \(that is /etc\) is not shared: /etc is the system's own; next: "
    with pytest.raises(UsageError, match=said):
        shares.look(f"{work}/link", f"--share {work}/link", "local")
    (work / "real").mkdir(mode=0o755)
    (work / "good").symlink_to(work / "real")
    assert shares.look(f"{work}/good", "--share", "local").path == f"{work}/real"


def test_a_home_with_keys_is_refused_though_the_keys_are_a_link(work: Path) -> None:
    (work / ".ssh").symlink_to("/nowhere")
    with pytest.raises(UsageError, match=r"it holds \.ssh, as a home with secret keys does; next: "):
        shares.look(str(work), "--share", "local")


def test_what_is_no_directory_or_closed_is_said_with_what_to_do(work: Path) -> None:
    (work / "file").touch()
    with pytest.raises(UsageError, match=r"^--share x: Not a directory; next: "):
        shares.look(f"{work}/file", "--share x", "local")
    with pytest.raises(UsageError, match=r"^--share x: No such file or directory; next: "):
        shares.look(f"{work}/none", "--share x", "local")
    work.chmod(0o700)
    with pytest.raises(UsageError, match=rf"none of user1, .* may .*mode 0700.*chmod o\+rx {work}$"):
        shares.look(str(work), "--share x", "local")


@pytest.mark.parametrize(("share", "readers", "writers"), [
    (NOBODY_S, list(USERS), []), (replace(NOBODY_S, mode=0o777), list(USERS), list(USERS)),
    (replace(NOBODY_S, mode=0o700, uid=5002), ["user2"], ["user2"]),
    (replace(NOBODY_S, mode=0o770, gid=5003), ["user3"], ["user3"]),
    (replace(NOBODY_S, mode=0o077, uid=5001, gid=5001), ["user2", "user3"], ["user2", "user3"]),
    (replace(NOBODY_S, mode=0o711), [], []), (replace(NOBODY_S, mode=0o733), [], [])])
def test_modes_say_who_may_read_and_write(share: Share, readers: list[str], writers: list[str]) -> None:
    assert (share.users(READ), share.users(WRITE)) == (readers, writers)


def test_the_current_directory_is_shared_or_told(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.chdir(work)
    assert shares.choose((), "local", said.append) == (str(work),)
    work.chmod(0o755)
    assert shares.choose((), "local", said.append) == (str(work),)
    work.chmod(0o700)
    assert shares.choose((), "local", said.append) == ()
    monkeypatch.chdir("/etc")
    assert shares.choose((), "local", said.append) == ()
    monkeypatch.chdir("/")
    assert shares.choose((), "local", said.append) == ()
    assert [line.partition(";")[0] for line in said[:2]] == [
        f"sharing {work}", f"sharing {work}, read by user1, user2, user3, who may not write there"]
    assert said[2].startswith(f"note: the current directory {work} is not shared: none of user1, ")
    assert said[3].startswith("note: the current directory /etc is not shared: /etc is the system's")
    assert said[4].startswith("note: the current directory / is not shared: ") and len(said) == 5


def test_a_closed_current_directory_of_our_own_shows_read_only(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "python_trees", lambda: ([work], []))
    monkeypatch.chdir(work)
    work.chmod(0o700)
    said: list[str] = []
    assert shares.choose((), "local", said.append) == ()
    assert len(said) == 1 and "shown to them read-only; next: --share" in said[0]


def test_a_tree_of_our_own_is_shared_only_when_all_of_it_can_be_read(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "python_trees", lambda: ([work], []))
    share = shares.look(str(work), "--share", "local")
    shown = mounts.plan(tmp_path, *trees.python_trees(), [share])
    assert (shown["trees"], [path for path, _, _ in shown["shares"]]) == ([], [str(work)])
    (work / "closed").touch(mode=0o600)
    said = rf"may not read {work}/closed: .*chmod -R o\+rX {work} .*; next: share"
    with pytest.raises(UsageError, match=said):
        shares.look(str(work), "--share", "local")
    assert shares.look(str(work), "--share", "docker:bookworm").path == str(work)
    assert mounts.plan(tmp_path, *trees.python_trees())["trees"] == [(str(work), [("closed", 0o604)])]


def test_a_current_directory_that_was_deleted_is_told(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    (work / "gone").mkdir()
    monkeypatch.chdir(work / "gone")
    (work / "gone").rmdir()
    assert shares.choose((str(work),), "local", said.append) == (str(work),)
    assert said[0] == "note: the current directory was deleted, so it is not shared"


def test_what_lies_in_a_share_is_shared_once(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "ab"):
        (work / name).mkdir(mode=0o755)
    monkeypatch.chdir(work / "a")
    asked = (f"{work}/ab", f"{work}/a", f"{work}/ab/../a")
    said: list[str] = []
    assert shares.choose(asked, "local", said.append) == (f"{work}/ab", f"{work}/a")
    assert shares.choose((str(work),), "local", said.append) == (str(work),)


@pytest.mark.parametrize("place", ["/", "/etc", "/run", "/usr", "/root"])
def test_the_command_line_refuses_with_exit_2(place: str) -> None:
    done = CliRunner().invoke(mini, ["up", "--share", place])
    assert isinstance(done.exception, UsageError) and done.exception.exit_code == 2
    assert f"--share {place} is not shared: " in str(done.exception) and "next: " in str(done.exception)


def test_a_share_that_is_a_link_by_now_is_not_brought_up(work: Path) -> None:
    (work / "real").mkdir(mode=0o755)
    (work / "share").symlink_to(work / "real")
    with pytest.raises(GandivaError, match=f"{work}/share is now {work}/real"):
        shares.pin(MiniSpec(shares=(f"{work}/share",), backend="local"))


def swapped(share: Path, by: str) -> None:
    """Another thing at the path of a directory that was judged, as its owner may put there at any time."""
    share.rename(share.with_name("was"))
    if by == "directory":
        share.mkdir()
    else:
        share.symlink_to("/etc" if by == "link" else share.with_name("was"))


@pytest.mark.parametrize("by", ["directory", "link", "link to itself"])
def test_a_share_that_is_swapped_after_it_was_judged_is_not_bound(work: Path, by: str) -> None:
    (work / "share").mkdir(mode=0o755)
    judged = shares.look(f"{work}/share", "--share", "local")
    identity = (judged.device, judged.inode)
    os.close(init.hold(judged.path, identity))
    swapped(work / "share", by)
    with pytest.raises(SystemExit, match="gandiva: the shared directory"):
        init.hold(judged.path, identity)


def test_a_way_that_became_a_link_is_seen(work: Path) -> None:
    (work / "way/share").mkdir(parents=True)
    judged = shares.look(f"{work}/way/share", "--share", "local")
    (work / "way").rename(work / "was")
    (work / "way").symlink_to(work / "was")
    with pytest.raises(SystemExit, match="was changed while the cluster came up"):
        init.hold(judged.path, (judged.device, judged.inode))


def test_containers_show_what_was_judged_or_do_not_come_up(work: Path) -> None:
    inside = work / "root"
    (inside / "closed/way/share").mkdir(parents=True)
    (inside / "closed").chmod(0o700)
    seen = os.stat(inside / "closed/way/share")
    good = Share("/closed/way/share", seen.st_dev, seen.st_ino, 0o755, 0, 0)
    docker.require_shares(inside, [good])
    assert (inside / "closed").stat().st_mode & 0o777 == 0o701
    assert inside.stat().st_mode & 0o777 == 0o755
    with pytest.raises(GandivaError, match="was changed while the cluster came up; next: "):
        docker.require_shares(inside, [replace(good, inode=seen.st_ino + 1)])


def test_compose_binds_shares_by_their_own_names_but_for_the_database() -> None:
    spec = MiniSpec("x", backend="docker:trixie", shares=("/srv/a$b:c",))
    services = docker.compose_of(spec, docker.site_of(spec, Layout.of("x"), "10.99.9"), "10.99.9")["services"]
    bind = {"type": "bind", "source": "/srv/a$$b:c", "target": "/srv/a$$b:c"}
    assert [name for name, service in services.items() if bind in service["volumes"]] == ["ctl", "n1", "p1"]
    assert bind not in services["db"]["volumes"]


def test_a_share_below_a_closed_directory_is_bound_below_a_cover() -> None:
    closed = Share("/nowhere/share", 1, 2, 0o755, 0, 0)
    covers = mounts.covers_for([Path(closed.path)], {Path("/nowhere")}.__contains__)
    assert covers["/nowhere"] == "mode=711"


def test_records_of_before_shares_are_read(tmp_path: Path) -> None:
    at, spec = Layout(tmp_path), MiniSpec(shares=("/srv/a", "/srv/b"), backend="local")
    record.write_record(at, spec)
    assert record.recorded(at) == spec
    old = asdict(MiniSpec(backend="local"))
    del old["shares"], old["keep_logs"]
    at.record.write_text(json.dumps({"version": 1, "spec": old}))
    assert record.recorded(at) == MiniSpec(backend="local")


def kept(tmp_path: Path) -> tuple[Layout, Path]:
    """A cluster's directory with two logs, and where they are to be kept."""
    at, folder = Layout(tmp_path / "cluster"), tmp_path / "kept"
    at.log.mkdir(parents=True)
    (at.log / "a.log").write_text("told")
    (at.log / "b.log").write_text("told too")
    record.write_record(at, MiniSpec(keep_logs=str(folder), backend="local"))
    return at, folder


def test_logs_are_kept_when_the_directory_goes(tmp_path: Path) -> None:
    at, folder = kept(tmp_path)
    folder.mkdir()
    (tmp_path / "precious").write_text("old")
    (folder / "a.log").symlink_to(tmp_path / "precious")
    record.remove_directory(at)
    assert not at.root.exists() and (tmp_path / "precious").read_text() == "old"
    assert {it.name: it.read_text() for it in folder.iterdir()} == {"a.log": "told", "b.log": "told too"}


def test_logs_that_cannot_be_kept_are_told_and_stop_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at, folder = kept(tmp_path)
    folder.write_text("a file by now")
    record.remove_directory(at)
    assert not at.root.exists()
    assert f"gandiva: the logs are not kept in {folder}: File exists; next: " in capsys.readouterr().err
    for place in ("/proc/x", "/run/gandiva-mini/mini/log", str(folder)):
        with pytest.raises(UsageError, match=rf"^--keep-logs {place}: .*; next: name"):
            record.require_log_folder(place)


def test_scripts_that_are_not_inside_are_named(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.sh", "b.py"):
        (work / name).touch()
    (work / "inside/bin").mkdir(parents=True)
    (work / "inside/bin/sh").touch()
    cluster = SimpleNamespace(spec=MiniSpec("x", backend="local"),
                              environment=lambda user: {"HOME": "/home/x"},
                              path=lambda name: work / "inside" / name.lstrip("/"))
    monkeypatch.chdir(work)
    told = entering.hidden_files(cluster, ["sbatch", "-n", "1", "a.sh", "/bin/sh", "none.sh"], "user1")
    assert told == [f"{work}/a.sh is on this machine and not inside the mini cluster 'x'; "
                    f"next: gandiva mini down, then gandiva mini up --share {work}"]
    told = entering.hidden_files(cluster, ["srun", "sh", "-c", f"python '{work}/b.py' | cat"], "user1")
    assert [line.split()[0] for line in told] == [f"{work}/b.py"]
    assert entering.hidden_files(cluster, ["cat", "a.sh"], "user1") == []
    work.chmod(0o700)
    told = entering.hidden_files(cluster, ["sbatch", "a.sh"], "user1")
    assert "next: move it to a directory of its own that everybody may read" in told[0]


def test_an_end_without_output_is_told_as_such() -> None:
    job = SlurmJob(1, "u", 5001, "a", "gandiva", "FAILED", exit_code="15:53")
    said = _ending(job, ("n1", "n2"))
    assert said.code == "NoOutput" and "cannot be opened on n1,n2" in said.text and "--share DIR" in said.next
    assert _ending(replace(job, exit_code="0:53"), ()).code == "NoOutput"
    assert _ending(replace(job, exit_code="53:0"), ()).code == "Ended"
    assert _ending(replace(job, exit_code="0:9"), ()).code == "Ended"


def test_a_cluster_is_made_while_the_ends_of_others_take_away_the_directory_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "BASE", tmp_path / "all")
    make, ends = os.mkdir, iter([1, 2])

    def make_slowly(path: Path, mode: int = 0o777) -> None:
        make(path, mode)
        if Path(path) == layout.BASE and next(ends, None):
            record.remove_directory(Layout.of("other"))

    monkeypatch.setattr(os, "mkdir", make_slowly)
    at = Layout.of("ours")
    record.make_directory(at)
    assert at.root.is_dir() and next(ends, None) is None
    with pytest.raises(FileExistsError):
        record.make_directory(at)
