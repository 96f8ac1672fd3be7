"""A mini cluster sees what its user shares, and nothing else; its logs may be kept."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gandiva_slurm.mini import cluster as clusters
from gandiva_slurm.mini import init, layout, localfiles, probe, record
from gandiva_slurm.mini.cluster import MiniCluster
from gandiva_slurm.mini.layout import Layout
from gandiva_slurm.mini.spec import MiniSpec
from tests import patience
from tests.cluster.fleet import Fleet, said
from tests.cluster.seen import check_hostile, check_jobs, check_sentences, gandiva, places

WAIT_S = 60.0


@pytest.fixture
def name(slurm_here: None) -> Iterator[str]:
    """A cluster of the test's own; taken down whatever happens."""
    made = f"share-{os.getpid()}"
    yield made
    clusters.down(made)


def test_jobs_run_where_their_user_stands_and_in_what_is_shared(name: str, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with places() as place:
        up = gandiva("mini", "up", "--no-daemons", "--nodes", "v100:1x1", "--share", str(place["shared"]),
                     "--keep-logs", str(logs), name=name, cwd=place["here"])
        assert up.returncode == 0, up.stderr
        assert f"sharing {place['here']}\n" in up.stderr and f"sharing {place['shared']}\n" in up.stderr
        check_jobs(name, place)
        check_sentences(name, place)
        check_hostile(MiniCluster.attach(name), place)
        assert gandiva("mini", "down", name=name, cwd=place["here"]).returncode == 0
        assert (place["here"] / "job.sh").exists() and (place["shared"] / "job.sh").exists()
        assert str(place["here"]) not in Path("/proc/mounts").read_text()
    assert not Layout.of(name).root.exists()
    assert "slurmctld" in (logs / "slurmctld.log").read_text()


def test_why_names_the_output_that_could_not_be_opened(mini: MiniCluster) -> None:
    job = mini.exec(["sbatch", "--parsable", "-p", "gandiva", "--gres=gpu:1", "-o", "/root/%j.out", "--wrap",
                     "true"], user="user1").stdout.strip()
    Fleet(mini).wait_ended(int(job))

    def why() -> dict:
        return json.loads(said(mini, "why", "--json", job, user="user1"))

    most_s = WAIT_S * patience.slowness()
    probe.wait_until(lambda: why()["state"] == "ENDED", "gandivactld to see the end", most_s)
    told = why()
    assert told["code"] == "NoOutput" and "--share DIR" in told["next"]
    assert any(line.startswith("StdOut=/root/") for line in told["evidence"])


def test_a_fifo_as_working_directory_keeps_nobody_waiting(mini: MiniCluster) -> None:
    mini.exec(["sh", "-c", "mkfifo ~/fifo"], user="user2")
    done = mini.exec(["sbatch", "--chdir=/home/user2/fifo", "--wrap", "true"], user="user2", timeout_s=120)
    assert "the working directory /home/user2/fifo does not exist" in done.stderr
    mini.exec(["sh", "-c", "rm ~/fifo"], user="user2")


@pytest.mark.local
def test_an_up_that_is_killed_leaves_what_it_shared(name: str) -> None:
    at = Layout.of(name)
    with places() as place:
        up = subprocess.Popen([str(layout.bin_dir() / "gandiva"), "mini", "up", "--no-daemons"],
                              env=os.environ | {"GANDIVA_MINI": name}, stderr=subprocess.DEVNULL,
                              cwd=place["here"])
        probe.wait_until((at.root / "ready").exists, "the mounts", WAIT_S * patience.slowness())
        init_pid = probe.children(int(at.outer_pid.read_text()))[0]
        assert str(place["here"]).replace(" ", "\\040") in Path(f"/proc/{init_pid}/mounts").read_text()
        up.send_signal(signal.SIGKILL)
        up.wait()
        assert gandiva("mini", "down", name=name, cwd=place["here"]).returncode == 0
        assert (place["here"] / "job.sh").exists() and not at.root.exists()
        assert place["here"].name not in Path("/proc/mounts").read_text()
        assert probe.start_ticks(init_pid) is None


@pytest.mark.local
def test_a_share_that_is_swapped_while_it_comes_up_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of the directory above puts a link to /etc there once the share was judged."""
    judge = localfiles.shares.pin
    with places() as place:
        def judge_and_swap(spec: MiniSpec) -> list:
            judged = judge(spec)
            place["here"].rename(place["here"].with_name("was"))
            place["here"].symlink_to("/etc")
            return judged

        monkeypatch.setattr(localfiles.shares, "pin", judge_and_swap)
        with pytest.raises(clusters.GandivaError, match=r"(?s)process 1 ended.*gandiva: the shared"):
            MiniCluster.up(MiniSpec(name, daemons=False, shares=(str(place["here"]),)))
        place["here"].unlink()
    assert not Layout.of(name).root.exists()


@pytest.mark.local
def test_a_full_disk_is_told_and_stops_no_down(name: str, tmp_path: Path) -> None:
    tiny, at = tmp_path / "tiny", Layout.of(name)
    tiny.mkdir()
    init.mount("tmpfs", str(tiny), "tmpfs", 0, "size=64k")
    try:
        at.log.mkdir(parents=True)
        (at.log / "big.log").write_bytes(b"x" * 1_000_000)
        (at.log / "small.log").write_text("small")
        record.write_record(at, MiniSpec(name, keep_logs=record.require_log_folder(str(tiny))))
        down = gandiva("mini", "down", name=name, cwd=tmp_path)
        assert down.returncode == 0 and not at.root.exists()
        assert "1 of 2 logs are not kept whole" in down.stderr and "big.log (No space left" in down.stderr
        assert (tiny / "small.log").read_text() == "small"
    finally:
        subprocess.run(["umount", str(tiny)], check=True)
