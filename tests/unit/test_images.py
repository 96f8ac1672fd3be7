"""The store of process images, and the picture of what an image needs: by files alone, without criu."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gandiva_slurm.model.ids import JobKey
from gandiva_slurm.node import carried, criu, images, imaging, picture, restoring

KEY = JobKey(7, 1)
ME = os.getuid()
MOST = 1 << 20
#: A gandivad, as its node's next one sees it, and others.
BY, NEXT, ELSEWHERE = "n1@aa", "n1@bb", "n2@cc"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    images.prepare(root)
    return root


def sealed(store: Path, key: JobKey = KEY, **files: bytes) -> Path:
    """An image of these files, sealed."""
    work = images.new_work(store, key, BY, ME, os.getgid())
    for name, data in (files or {"pages": b"p" * 5000, "core": b"c"}).items():
        (work / name).write_bytes(data)
    images.seal(store, work, key, ME, MOST, {"name": "job"})
    shutil.rmtree(work)
    return images.place_of(store, key)


def take(store: Path, key: JobKey = KEY, by: str = BY) -> Path:
    """Claim an image; return where it is."""
    images.claim(store, key, used := images.claim_place(store, key, by))
    return used


def test_an_image_is_read_and_verified_as_it_was_written(store: Path) -> None:
    place = sealed(store)
    manifest = images.read(store, KEY, ME)
    assert manifest["name"] == "job" and set(manifest["files"]) == {"pages", "core"}
    images.verify(place, KEY, manifest)
    assert all((place / name).stat().st_mode & 0o777 == 0o444 for name in manifest["files"])
    assert (store / "whole").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("change", ["edit", "add", "remove", "link"])
def test_an_image_that_was_changed_is_refused(store: Path, change: str) -> None:
    place = sealed(store)
    manifest = images.read(store, KEY, ME)
    if change == "add":
        (place / "more").write_bytes(b"")
    else:
        (place / "pages").unlink()
    if change == "edit":
        (place / "pages").write_bytes(b"q" + b"p" * 4999)
    elif change == "link":
        (place / "pages").symlink_to("/etc/passwd")
    with pytest.raises((images.BadImage, OSError)):
        images.verify(place, KEY, manifest)


@pytest.mark.parametrize("field, value", [("uid", ME + 1), ("job", "8.1"), ("version", 99)])
def test_another_users_or_jobs_image_is_refused(store: Path, field: str, value: object) -> None:
    file = sealed(store) / images.MANIFEST
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps(manifest | {field: value}))
    with pytest.raises(images.BadImage):
        images.read(store, KEY, ME)
    with pytest.raises(images.BadImage):
        images.read(store, JobKey(7, 2), ME)


def test_what_criu_does_not_write_is_not_sealed(store: Path) -> None:
    work = images.new_work(store, KEY, BY, ME, os.getgid())
    secret = store.parent / "secret"
    secret.write_text("root's")
    for make in (
        lambda path: path.symlink_to(secret),
        lambda path: os.link(secret, path),
        lambda path: os.mkfifo(path),
        lambda path: path.mkdir(),
        lambda path: (path.parent / "a file").touch(),
        lambda path: (path.parent / images.MANIFEST).touch(),
    ):
        make(work / "pages")
        with pytest.raises((images.BadImage, OSError)):
            images.seal(store, work, KEY, ME, MOST, {})
        assert not images.place_of(store, KEY).exists() and not list((store / "whole").iterdir())
        shutil.rmtree(work)
        work.mkdir()


def test_an_image_is_bounded_and_a_full_disk_leaves_none(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = images.new_work(store, KEY, BY, ME, os.getgid())
    (work / "pages").write_bytes(b"p" * 5000)
    with pytest.raises(images.BadImage, match="image_most_gib"):
        images.seal(store, work, KEY, ME, 4999, {})

    def full(source: Path, target: Path, uid: int, most: int) -> tuple[int, str]:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(images, "_copy", full)
    with pytest.raises(OSError, match="No space"):
        images.seal(store, work, KEY, ME, MOST, {})
    assert not list((store / "whole").iterdir())
    with pytest.raises(images.BadImage, match="allows"):
        images.check_room(store, MOST + 1, MOST)
    with pytest.raises(images.BadImage, match="free"):
        images.check_room(store, 1 << 60, 1 << 61)


def test_it_is_put_away_at_once_and_once(store: Path) -> None:
    sealed(store)
    assert images.has_any(store, 7) and not images.has_any(store, 70)
    (gone,) = images.put_away(store, KEY)
    assert not images.has_any(store, 7)
    images.remove(gone)
    assert images.put_away(store, KEY) == [] and not list((store / "whole").iterdir())


def test_old_images_are_swept_and_new_ones_stay(store: Path) -> None:
    old, new, waits = sealed(store), sealed(store, JobKey(8, 0)), sealed(store, JobKey(9, 1))
    work = images.new_work(store, KEY, BY, ME, os.getgid())
    for place in (old, work, waits):
        os.utime(place, (1, 1))
    images.sweep(store, None)
    assert old.exists() and not work.exists(), "while no controller is heard of no image is removed"
    images.sweep(store, {9})
    assert not old.exists() and new.exists()
    an_hour_ago = time.time() - 3600
    os.utime(new, (an_hour_ago, an_hour_ago))
    images.sweep(store, {9})
    assert new.exists()
    images.sweep(store, {9}, images.OWN_UNTOLD_S)
    assert not new.exists(), "nobody but this node has it, and nobody waits for it"
    images.sweep(store, set())
    assert waits.exists(), "its job was told of a moment ago"


def left(store: Path, key: JobKey, by: str) -> set[Path]:
    """What a gandivad leaves that is killed: criu's work, half of a copy, a claim, and what it put away."""
    work = images.new_work(store, key, by, ME, os.getgid())
    half = store / "whole" / f".{work.name}"
    half.mkdir()
    sealed(store, key)
    used = take(store, key, by)
    sealed(store, key)
    return {work, half, used, *images.put_away(store, key)}


def test_the_next_gandivad_of_a_node_finds_what_one_that_was_killed_has_left(store: Path) -> None:
    mine, others, now = left(store, KEY, BY), left(store, JobKey(8, 0), ELSEWHERE), JobKey(9, 3)
    place = sealed(store, now)
    at_work = images.new_work(store, now, NEXT, ME, os.getgid())
    found = {*images.left_behind(store, NEXT)}
    assert mine <= found and not {place, at_work} & found
    # What another node works on stays; what is put away is nobody's.
    assert {path.name.startswith(".gone-") for path in others & found} == {True}
    for path in found:
        images.remove(path)
    assert images.left_behind(store, NEXT) == [] and place.exists()


def test_a_jobs_next_image_takes_away_what_is_left_of_those_before(store: Path) -> None:
    """Of whichever node: one that was lost never starts again."""
    older, same = left(store, JobKey(7, 0), ELSEWHERE), left(store, KEY, ELSEWHERE)
    other, place = left(store, JobKey(70, 0), BY), sealed(store, KEY)
    found = {*images.outlived(store, KEY)}
    assert older <= found and place not in found and not other & found
    # This incarnation's may be restored elsewhere at this moment.
    assert all(path.name.startswith(".gone-") for path in same & found)
    assert {*images.begun(store, KEY, ELSEWHERE)} < same
    exchanged = {path for path in same if path.name.startswith(".gone-")}
    assert exchanged and {*images.begun(store, KEY, BY)} == exchanged


@pytest.mark.skipif(ME != 0, reason="root's files")
def test_a_directory_that_others_may_change_is_refused(tmp_path: Path) -> None:
    # pytest's own directory lies below /tmp, whose sticky bit keeps others from it.
    tmp_path.chmod(0o755)
    root = tmp_path / "images"
    assert images.why_not(root) == ""  # it is made there
    root.mkdir()
    assert images.why_not(root) == ""
    root.chmod(0o777)
    assert "may be changed by others" in images.why_not(root)
    root.chmod(0o755)
    tmp_path.chmod(0o775)
    assert str(tmp_path) in images.why_not(root)
    tmp_path.chmod(0o755)
    os.chown(tmp_path, 12345, -1)
    assert "may be changed by others" in images.why_not(root)
    (tmp_path / "link").symlink_to(root)
    assert images.why_not(tmp_path / "link")


def test_a_build_is_told_from_another(tmp_path: Path) -> None:
    mine = Path(sys.executable).resolve()
    copy = tmp_path / "python"
    shutil.copyfile(mine, copy)
    assert picture.build_id(copy) == picture.build_id(mine)
    (tmp_path / "text").write_text("a")
    first = picture.build_id(tmp_path / "text")
    (tmp_path / "text").write_text("b")
    assert first.startswith("bytes ") and picture.build_id(tmp_path / "text") != first
    for junk in (b"", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + b"\xff" * 200):
        (tmp_path / "text").write_bytes(junk)
        assert picture.build_id(tmp_path / "text").startswith("bytes ")


def test_a_picture_names_what_a_node_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried, "_CARRIED", ("/dev/shm/",))
    file = tmp_path / "lib.so"
    file.write_text("one")
    maps = f"7f00-7f01 r-xp 0 08:01 1 {file}\n7f00-7f01 rw-s 0 08:01 1 /dev/shm/x (deleted)\n"
    maps += "7f-80 rw-p 0 0:0 0 [heap]\n7f00-7f01 rw-s 0 08:01 1 /dev/shm/goes_along\n"
    taken = json.loads(json.dumps(picture.take([maps])))
    assert set(taken["files"]) == {str(file)} and picture.why_not_here(taken) == ""
    file.write_text("two")
    assert picture.why_not_here(taken) == f"{file} is another build on this node"
    file.unlink()
    assert "No such file" in picture.why_not_here(taken)
    assert "lack avx9000" in picture.why_not_here({"files": {}, "cpu": ["avx9000"]})


def test_criu_runs_as_the_user_with_two_rights_and_a_bound() -> None:
    user = criu.as_user("user1", 5001)
    assert user[0] == "setpriv" and "user1" in user and "--init-groups" in user
    assert criu.RIGHTS.split(",") == ["+checkpoint_restore", "+setpcap"]
    assert all("--no-default-config" in argv for argv in (criu.dump(9, Path("/i")),))
    both = (criu.dump(9, Path("/i")), criu.restore(Path("/i"), Path("/w")))
    assert all("--unprivileged" in argv and "--manage-cgroups=ignore" in argv for argv in both)
    assert criu.bounded(5)[0] == "timeout" and "--kill-after=2" in criu.bounded(5)


def test_a_bound_grows_with_the_image_and_gandivads_is_longer_than_that_of_what_it_waits_for() -> None:
    small, large = 250 << 20, 64 << 30
    assert criu.bound_s(small) < 130 and large / criu.bound_s(large) < 50 << 20
    for size in (0, small, large):
        assert imaging.most_s(size) > criu.bound_s(size) + size / (50 << 20), "dump, then copy"
        assert restoring.most_s(size) > criu.bound_s(size) + size / (50 << 20), "verified, then restored"


def test_a_process_needs_what_is_its_memorys_alone() -> None:
    held = bytearray(64 << 20)
    held[::4096] = b"x" * len(held[::4096])
    assert imaging.need_of([os.getpid()]) > len(held) and imaging.need_of([]) == 0


def test_criu_s_first_error_is_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert criu.why(log) == "criu wrote no log"
    log.write_text(
        "(00.1) Warn  (criu/x.c:1): w\n(00.2) Error (criu/files.c:9): Can't dump half of\x1b it\n"
        "(00.3) Error (a.c:1): FAILED\n"
    )
    assert criu.why(log) == "Can't dump half of  it"
    (tmp_path / "link").symlink_to(log)
    assert criu.why(tmp_path / "link") == "criu wrote no log"
    os.link(log, tmp_path / "second")
    assert criu.why(log) == "criu names no cause", "a second name of what may be another's"


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_a_build_id_of_the_linker_is_found(tmp_path: Path) -> None:
    source = tmp_path / "a.c"
    source.write_text("int a(void) { return 1; }\n")
    words = ["cc", "-shared", "-Wl,--build-id=0x0123456789abcdef", "-o", str(tmp_path / "a.so"), str(source)]
    subprocess.run(words, check=True, timeout=60)
    assert picture.build_id(tmp_path / "a.so") == "build 0123456789abcdef"
