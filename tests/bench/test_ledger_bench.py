"""What is asked of a ledger of ten million holds, and of a hundred million more of which only sums are left.

800 GPUs change hands each minute among four jobs each, for nine days; the sums of these are laid down ten times
more, further back, as retention leaves them. It takes some minutes and 3 GB of the temporary directory.
"""

from __future__ import annotations

import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gandiva_slurm.accounting.database import Transaction, open_reader
from gandiva_slurm.accounting.fairness import user_shares
from gandiva_slurm.accounting.ledger import Ledger, Tickets
from gandiva_slurm.accounting.parts import Window
from gandiva_slurm.accounting.queries import Filter, held_by_job, job_usage
from gandiva_slurm.model.snapshot import JobOptions, SlurmJob
from gandiva_slurm.wire.messages import Hold, NodeReport
from tests.bench.limits import judge, table

__all__ = ["table"]

NS, MINUTE, DAY = 10**9, 60, 86400
NODES, GPUS, SLOTS, USERS = 100, 8, 4, 40
#: holds of a job, and how many jobs follow each other in a slot of a GPU
TURNS, JOBS = 250, 13
HOLDS = NODES * GPUS * SLOTS * TURNS * JOBS
#: Holds of which only sums are left are so many times more.
OLDER = 10
#: a midnight, local
FIRST_S = int(time.mktime((2026, 9, 1, 0, 0, 0, 0, 0, -1)))
LAST_S = FIRST_S + TURNS * JOBS * SLOTS * MINUTE
#: What the file takes, and what should be left beside it.
ROOM = 8 << 30
#: ADR 0041: a job, or a day.
LIMIT_S = 0.3


def job_at(node: int, gpu: int, slot: int, number: int) -> SlurmJob:
    """The job that was the number-th in a slot of a GPU."""
    place = (node * GPUS + gpu) * SLOTS + slot
    job_id = 10_000_000 + number * NODES * GPUS * SLOTS + place
    begin_s = FIRST_S + number * TURNS * SLOTS * MINUTE
    end_s = begin_s + TURNS * SLOTS * MINUTE
    times = {"submit_s": begin_s - 30, "start_s": begin_s, "end_s": end_s}
    options = JobOptions(gpus=1)
    told = {"name": f"train-{job_id}", "nodes": (f"node{node:03}",), "options": options}
    return SlurmJob(job_id, f"user{place % USERS}", 1000, "lab", "gandiva", "COMPLETED", **times, **told)


def held(node: int, number: int, seq: int) -> Iterator[Hold]:
    """What a node's GPUs were held while its number-th jobs were there."""
    jobs = {(gpu, slot): job_at(node, gpu, slot, number) for gpu in range(GPUS) for slot in range(SLOTS)}
    for turn in range(TURNS):
        for (gpu, slot), job in jobs.items():
            t0_ns = (job.start_s + (turn * SLOTS + slot) * MINUTE) * NS + gpu * 7919
            seq += 1
            times = (t0_ns, t0_ns + MINUTE * NS - 40_000_000, 12_345_678)
            yield Hold(seq, job.job_id, 0, job.user, (gpu,), *times)


def fill(ledger: Ledger, number: int) -> float:
    """Write the number-th jobs of all nodes and their holds; return the processor time of a hold."""
    jobs = [job_at(n, g, s, number) for n in range(NODES) for g in range(GPUS) for s in range(SLOTS)]
    ledger.record_jobs(jobs, {f"node{n:03}": "v100" for n in range(NODES)})
    each = GPUS * SLOTS * TURNS
    took_s = 0.0
    for node in range(NODES):
        holds = tuple(held(node, number, number * each))
        for first in range(0, each, 2000):
            part = holds[first : first + 2000]
            report = NodeReport(f"node{node:03}", "5a5a5a5a-01234567", 0, 0, 0, GPUS, (), part, ())
            began_s = time.process_time()
            ledger.record_report(report)
            took_s += time.process_time() - began_s
    return took_s / (each * NODES)


def lay_down_older(ledger: Ledger) -> None:
    """Write jobs, runs and sums again and again, each time further back: as of holds that were removed."""
    span_s = -(-(LAST_S - FIRST_S) // DAY) * DAY
    for times in range(1, OLDER + 1):
        ids, s = times * 1_000_000, times * span_s
        ns = s * NS
        with Transaction(ledger._db) as db:
            db.execute(
                f"""INSERT INTO jobs SELECT ref + {ids}, job_id - {ids // 2}, submit_s - {s}, requeued_s - {s},
                restart, array_job_id, array_task_id, name, user, account, partition, state, gpus, type, node,
                start_s - {s}, end_s - {s}, exit_code FROM jobs WHERE job_id > 10000000"""
            )
            db.execute(
                f"""INSERT INTO runs SELECT runs.ref + {ids}, runs.restart, runs.start_s - {s}, runs.end_s - {s},
                released_ns, registered_ns, world, steps, suspends, reaims, off_boundary, moved_ns, first_ns,
                live_bytes, peak_bytes, runs.gpus FROM runs JOIN jobs USING (ref) WHERE job_id > 10000000"""
            )
            db.execute(f"INSERT INTO days SELECT start_ns - {ns}, end_ns - {ns} FROM days WHERE start_ns >= ?", (FIRST_S * NS,))
            db.execute(
                f"""INSERT INTO sums SELECT job_id - {ids // 2}, restart, node, day_ns - {ns}, shared_with, user,
                ref + {ids}, held_ns, parking_ns, begun_ns - {ns}, ended_ns - {ns} FROM sums
                WHERE job_id > 10000000"""
            )


def asked(path: Path, question: Callable[..., object], *args: object) -> tuple[float, object]:
    """Ask five times, each with a connection of its own as gandivactld does; return the median time."""
    took, answer = [], None
    for _ in range(5):
        began_s = time.perf_counter()
        with closing(open_reader(path)) as db:
            db.execute("BEGIN")
            answer = question(db, *args)
        took.append(time.perf_counter() - began_s)
    return statistics.median(took), answer


def memory_mib(path: Path) -> float:
    """Peak memory of a process that opens this ledger, less that of one which opens none."""
    text = "import sys, resource\nfrom gandiva_slurm.accounting.ledger import Ledger\nfrom pathlib import Path\n"
    text += "kept = [Ledger(Path(name)) for name in sys.argv[1:]]\n"
    text += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    runs = [subprocess.run([sys.executable, "-c", text, *names], capture_output=True, check=True, text=True)
            for names in ([str(path)], [])]  # fmt: skip
    with_it, without = (int(run.stdout) for run in runs)
    return (with_it - without) / 1024


@pytest.mark.timeout(1800)
def test_ten_million_holds_and_the_sums_of_a_hundred_million(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < ROOM:
        pytest.skip(f"{tmp_path} has less than {ROOM >> 30} GiB free")
    path = tmp_path / "ledger.sqlite"
    try:
        measure(path)
    finally:
        for file in tmp_path.iterdir():
            file.unlink()


def measure(path: Path) -> None:
    """Fill it, and ask."""
    with closing(Ledger(path)) as ledger:
        ledger._db.execute("PRAGMA synchronous=OFF")  # the disk's own time is not in it
        ledger.record_tickets([Tickets(f"user{n}", "lab", 100, 1 / USERS) for n in range(USERS)], 1)
        costs = [fill(ledger, number) for number in range(JOBS)]
        lay_down_older(ledger)
        began_s = time.perf_counter()
        ledger.tidy(LAST_S * NS, 30)
        idle_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        assert ledger.tidy(LAST_S * NS, 1), "there is more to remove"
        piece_s = time.perf_counter() - began_s
    with closing(open_reader(path)) as db:
        counts = [db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("holds", "sums", "jobs")]
    assert counts[0] > 10**7
    print(f"\n{counts[0]:,} holds, {counts[1]:,} sums, {counts[2]:,} jobs, {path.stat().st_size / 1e9:.1f} GB")
    judge("a hold written, first of all, µs of processor", costs[0] * 1e6, 0, "{:.1f}")
    judge("a hold written, last of all, µs of processor", costs[-1] * 1e6, 0, "{:.1f}")
    judge("upkeep with nothing to do, ms", idle_s * 1e3, 0, "{:.1f}")
    judge("a piece of removal, ms", piece_s * 1e3, 0)
    judge("memory of a ledger that is opened, MiB", memory_mib(path), 30)
    ask_all(path)
    print(f"peak of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB", end="")


def ask_all(path: Path) -> None:
    """Ask what `gandiva acct`, `share` and `queue` ask."""
    now_ns = LAST_S * NS
    job = job_at(50, 3, 2, 6)
    ever = Window(0, now_ns, now_ns)
    took_s, rows = asked(path, job_usage, ever, Filter(frozenset({job.job_id}), is_cut=False), ())
    assert [round(row["gpu_held_s"], 6) for row in rows] == [TURNS * 59.96]
    judge("acct -j JOB, ms", took_s * 1e3, LIMIT_S * 1e3, "{:.1f}")
    for what, day_s in (("of which single holds are kept", LAST_S // DAY * DAY - 2 * DAY), ("of sums alone", FIRST_S - 40 * DAY)):
        midnight_s = FIRST_S + round((day_s - FIRST_S) / DAY) * DAY
        day = Window(midnight_s * NS, (midnight_s + DAY) * NS, now_ns)
        for option, is_cut in (("-T, ", True), ("", False)):
            took_s, rows = asked(path, job_usage, day, Filter(is_cut=is_cut), ())
            judge(f"acct -a {option}a day {what}: {len(rows):,} jobs, ms", took_s * 1e3, LIMIT_S * 1e3)
        took_s, _ = asked(path, user_shares, day, NODES * GPUS, ())
        judge(f"share of that day, ms", took_s * 1e3, LIMIT_S * 1e3)
    took_s, _ = asked(path, held_by_job, Window(now_ns - 60 * NS, now_ns, now_ns), ())
    judge("what each job held in the last minute (queue), ms", took_s * 1e3, LIMIT_S * 1e3, "{:.1f}")
    odd = Window((LAST_S - 3 * DAY // 2) * NS, (LAST_S - DAY // 2) * NS, now_ns)
    took_s, _ = asked(path, held_by_job, odd, ())
    judge("the same of a day from noon to noon, ms", took_s * 1e3, 0)
