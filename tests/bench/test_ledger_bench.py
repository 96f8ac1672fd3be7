"""What is asked of a ledger of ten million holds, and of a hundred million more of which only sums are left.

800 GPUs change hands each minute among four jobs each, for nine days; the sums of these are laid down ten
times more, further back, as retention leaves them. It takes four minutes and 3 GB of the temporary directory.
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
from gandiva_slurm.accounting.days import local_day
from gandiva_slurm.accounting.fairness import user_shares
from gandiva_slurm.accounting.ledger import Ledger, Tickets
from gandiva_slurm.accounting.parts import Window
from gandiva_slurm.accounting.queries import Filter, held_by_job, job_usage
from gandiva_slurm.accounting.report import usage_report
from gandiva_slurm.model.snapshot import JobOptions, SlurmJob
from gandiva_slurm.wire.messages import Hold, NodeReport
from tests.bench.limits import judge, table

__all__ = ["table"]

NS, MINUTE, DAY = 10**9, 60, 86400
NODES, GPUS, SLOTS, USERS = 100, 8, 4, 40
#: holds of a job, and how many jobs follow each other in a slot of a GPU
TURNS, JOBS = 250, 13
HOLDS = NODES * GPUS * SLOTS * TURNS * JOBS
#: Holds of which only sums are left, as a multiple of those that are there.
OLDER = 10
#: a midnight, local
FIRST_S = int(time.mktime((2026, 9, 1, 0, 0, 0, 0, 0, -1)))
LAST_S = FIRST_S + TURNS * JOBS * SLOTS * MINUTE
#: What the file takes, and what should be left beside it.
ROOM = 8 << 30
#: ADR 0041: a job, or a day.
LIMIT_S = 0.3
#: A month by account and user.
REPORT_S = 3.0


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
        moved = {"refs": times * 1_000_000, "ids": times * 500_000, "s": times * span_s}
        moved |= {"ns": moved["s"] * NS, "first": 10_000_000, "midnight": FIRST_S * NS}
        with Transaction(ledger._db) as db:
            names = [name for _, name, *_ in db.execute("PRAGMA table_info(runs)")]
            columns = ", ".join(_OLDER_RUNS.get(name, f"runs.{name}") for name in names)
            runs = f"INSERT INTO runs SELECT {columns} FROM runs JOIN jobs USING (ref) WHERE job_id >= :first"
            for statement in (_OLDER_JOBS, runs, *_OLDER_SUMS):
                db.execute(statement, moved)


_OLDER_JOBS = """INSERT INTO jobs SELECT ref + :refs, job_id - :ids, submit_s - :s, requeued_s - :s, restart,
    array_job_id, array_task_id, name, user, account, partition, state, gpus, type, node, start_s - :s,
    end_s - :s, exit_code FROM jobs WHERE job_id >= :first"""
_OLDER_RUNS = {"ref": "runs.ref + :refs", "start_s": "runs.start_s - :s", "end_s": "runs.end_s - :s"}
_OLDER_SUMS = (
    "INSERT INTO days SELECT start_ns - :ns, end_ns - :ns FROM days WHERE start_ns >= :midnight",
    """INSERT INTO sums SELECT job_id - :ids, restart, node, day_ns - :ns, shared_with, user, ref + :refs,
    held_ns, parking_ns, begun_ns - :ns, ended_ns - :ns FROM sums WHERE job_id >= :first""",
)


def asked(path: Path, question: Callable[..., object], *args: object) -> tuple[float, object]:
    """Ask five times, each with a connection of its own as gandivactld does.

    The median of the processor's time is returned, for it shares the machine, and the clock's is printed.
    """
    took, clock, answer = [], [], None
    for _ in range(5):
        began_s, clock_s = time.thread_time(), time.perf_counter()
        with closing(open_reader(path)) as db:
            db.execute("BEGIN")
            answer = question(db, *args)
        took.append(time.thread_time() - began_s)
        clock.append(time.perf_counter() - clock_s)
    print(f"{question.__name__}: {', '.join(f'{s * 1e3:.1f}' for s in sorted(clock))} ms by the clock")
    return statistics.median(took), answer


def memory_mib(path: Path) -> float:
    """Peak memory of a process that opens this ledger, less that of one which opens none."""
    text = "import sys, resource\nfrom pathlib import Path\n"
    text += "from gandiva_slurm.accounting.ledger import Ledger\n"
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
    with closing(open_reader(path)) as db:
        tables = ("holds", "sums", "jobs")
        counts = {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}
    assert counts["holds"] > 10**7
    told = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    print(f"\n{told}, {path.stat().st_size / 1e9:.1f} GB")
    judge("a hold written, first of all, µs of processor", costs[0] * 1e6, 0, "{:.1f}")
    judge("a hold written, last of all, µs of processor", costs[-1] * 1e6, 0, "{:.1f}")
    judge("upkeep with nothing to do, ms", idle_s * 1e3, 0, "{:.1f}")
    judge("memory of a ledger that is opened, MiB", memory_mib(path), 30)
    ask_all(path)
    with closing(Ledger(path)) as ledger:
        began_s = time.perf_counter()
        assert ledger.tidy(LAST_S * NS, 1), "there is more to remove"
        judge("a piece of removal, ms", (time.perf_counter() - began_s) * 1e3, 0)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak of this process {peak_mib:,.0f} MiB", end="")


def ask_all(path: Path) -> None:
    """Ask what `gandiva acct`, `share` and `queue` ask."""
    now_ns = LAST_S * NS
    job = job_at(50, 3, 2, 6)
    ever = Window(0, now_ns, now_ns)
    took_s, rows = asked(path, job_usage, ever, Filter(frozenset({job.job_id}), is_cut=False), ())
    assert [round(row["gpu_held_s"], 6) for row in rows] == [TURNS * 59.96]
    judge("acct -j JOB, ms", took_s * 1e3, LIMIT_S * 1e3, "{:.1f}")
    for what, days in (("in the last two weeks", 5), ("of sums alone", -40)):
        midnight_s = local_day((FIRST_S + days * DAY + DAY // 2) * NS)[0] // NS
        day = Window(midnight_s * NS, (midnight_s + DAY) * NS, now_ns)
        for option, is_cut in (("-T, ", True), ("", False)):
            took_s, rows = asked(path, job_usage, day, Filter(is_cut=is_cut), ())
            judge(f"acct -a {option}a day {what}: {len(rows):,} jobs, ms", took_s * 1e3, LIMIT_S * 1e3)
        took_s, _ = asked(path, user_shares, day, NODES * GPUS, ())
        judge("share of that day, ms", took_s * 1e3, LIMIT_S * 1e3)
    days = [local_day((FIRST_S + days * DAY + DAY // 2) * NS)[0] for days in (-22, 8)]
    took_s, rows = asked(path, usage_report, Window(*days, now_ns), ())
    judge(f"report of a month: {sum(row['jobs'] for row in rows):,} jobs, ms", took_s * 1e3, REPORT_S * 1e3)
    noon_s = local_day((FIRST_S + 5 * DAY + DAY // 2) * NS)[0] // NS + DAY // 2
    odd = Window(noon_s * NS, (noon_s + DAY) * NS, now_ns)
    took_s, _ = asked(path, held_by_job, odd, ())
    judge("what each job held from a noon to the next, ms", took_s * 1e3, 0)
    took_s, _ = asked(path, held_by_job, Window(now_ns - 60 * NS, now_ns, now_ns), ())
    judge("what each job held in the last minute (queue), ms", took_s * 1e3, LIMIT_S * 1e3, "{:.1f}")
