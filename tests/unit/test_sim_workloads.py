"""Workloads of others: every format read, every wrong row named with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gandiva_slurm.model.errors import UsageError
from gandiva_slurm.policy.port import Cluster
from gandiva_slurm.sim.clusters import read_cluster
from gandiva_slurm.sim.job import Spec
from gandiva_slurm.sim.truth import Oracle, read_oracle
from gandiva_slurm.sim.workloads.load import Source, load

DATA = Path(__file__).parents[1] / "data"
THROUGHPUTS = DATA / "gavel" / "simulation_throughputs.json.xz"
S = 10**9
MIXED = Cluster([("v100", 4)] * 3 + [("p100", 4)] * 3 + [("k80", 4)] * 3)
PLAIN = Cluster([("gpu", 8)])
SACCT = """JobID|User|Submit|Start|End|Elapsed|AllocTRES|State
7|ann|2026-03-01T10:00:00|2026-03-01T10:05:00|2026-03-01T11:05:00|01:00:00|cpu=4,gres/gpu=2,node=1|COMPLETED
7.batch||2026-03-01T10:05:00|2026-03-01T10:05:00|2026-03-01T11:05:00|01:00:00|cpu=4,gres/gpu=2|COMPLETED
8|bob|2026-03-01T10:00:30|Unknown|Unknown|00:00:00|billing=1|CANCELLED by 0
9|bob|2026-03-01T10:01:00|2026-03-01T10:01:00|2026-03-02T11:02:03|1-01:01:03|gres/gpu:gpu=4,gres/gpu=4|FAILED
10|bob|2026-03-01T10:01:00|2026-03-01T10:01:00|2026-03-02T11:02:03|1-01:01:03|cpu=1,mem=1G|COMPLETED
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "w"
    path.write_text(text)
    return path


def read(path: Path, format_: str, cluster: Cluster = PLAIN, **more: object) -> list[Spec]:
    return load(Source(path, format_, **more), cluster)[0]  # type: ignore[arg-type]


def test_gavel_has_mini_batches_models_and_arrivals() -> None:
    jobs = read(DATA / "gavel" / "gavel_poisson200_s0.trace", "gavel", MIXED, throughputs=THROUGHPUTS)
    assert len(jobs) == 200 and jobs[1].submit_ns == 173 * S
    assert (jobs[0].model, jobs[0].steps, jobs[0].size) == ("Transformer (batch size 128)", 15684, 1)


def test_gavels_seven_columns(tmp_path: Path) -> None:
    line = "A3C\tpython3 main.py\t--max-steps\t0\t500\t{}\t{}\n"
    path = write(tmp_path, line.format("1456.000000", 1) + line.format("100.000000", 1))
    jobs = read(path, "gavel", MIXED, throughputs=THROUGHPUTS)
    assert [(job.job_id, job.submit_ns, job.steps) for job in jobs] == [(1, 0, 500), (0, 1356 * S, 500)]


def test_gavel_jobs_keep_to_types_on_which_they_can_run(tmp_path: Path) -> None:
    line = "ResNet-50 (batch size 128)\tcmd\tdir\t-n\t1\t500\t4\t1\t-1.0\t0\n"
    jobs = read(write(tmp_path, line), "gavel", MIXED, throughputs=THROUGHPUTS)
    assert jobs[0].gpu_types == ("v100", "p100")


def test_elasticflow_rows_come_in_any_order_from_zero(tmp_path: Path) -> None:
    text = "job_id,submission_time,duration,num_gpu\nb,500,0.2,2\na,100.9,7.6,1\n"
    jobs = read(write(tmp_path, text), "elasticflow")
    assert [(job.name, job.submit_ns, job.length_ns) for job in jobs] == [("a", 0, 8 * S), ("b", 400 * S, S)]


def test_muri_is_in_milliseconds() -> None:
    jobs = read(DATA / "muri" / "trace3_head.csv", "muri", Cluster([("gpu", 64)]))
    assert len(jobs) == 40
    assert (jobs[1].submit_ns, jobs[1].length_ns, jobs[1].steps) == (1456 * S, 926133 * S, 1005573)


def test_sacct_replays_what_held_gpus(tmp_path: Path) -> None:
    jobs = read(write(tmp_path, SACCT), "sacct")
    assert [(job.name, job.user, job.size, job.length_ns // S, job.submit_ns // S) for job in jobs] == [
        ("7", "ann", 2, 3600, 0),
        ("9", "bob", 4, 90063, 60),
    ]
    assert jobs[0].gpu_types == () and jobs[1].gpu_types == ("gpu",)


def test_sacct_with_bars_at_line_ends(tmp_path: Path) -> None:
    text = "".join(line + "|\n" for line in SACCT.splitlines())
    assert [job.name for job in read(write(tmp_path, text), "sacct")] == ["7", "9"]


def test_our_own_format_has_everything(tmp_path: Path) -> None:
    head = "job_id,submit_s,gpus,length_s,user,tickets,class,gpu_types,min_gpus,max_gpus,pack\n"
    jobs = read(write(tmp_path, head + "x,0.5,2,1.25,ann,300,opportunistic,gpu,1,4,never\n"), "gandiva")
    job = jobs[0]
    assert (job.name, job.user, job.tickets, job.job_class) == ("x", "ann", 300, "opportunistic")
    assert (job.length_ns, job.min_size, job.max_size, job.can_pack, job.can_migrate) == (
        1_250_000_000,
        1,
        4,
        False,
        True,
    )


def test_users_are_dealt_out_by_row_and_taken_from_a_column(tmp_path: Path) -> None:
    path = write(tmp_path, "job_id,submission_time,duration,num_gpu\na,3,1,1\nb,2,1,1\nc,1,1,4\n")
    assert [job.user for job in read(path, "elasticflow", users=2)] == ["user0", "user1", "user0"]
    assert [job.user for job in read(path, "elasticflow", users_column="num_gpu")] == ["4", "1", "1"]
    assert [job.user for job in read(path, "elasticflow", users_column="1")] == ["c", "b", "a"]
    assert [job.name for job in read(path, "elasticflow", limit=2)] == ["c", "b"]


HEAD = "job_id,submission_time,duration,num_gpu\n"


@pytest.mark.parametrize(
    ("format_", "text", "sentence"),
    [
        ("elasticflow", HEAD + "a,0,ten,1\n", ":2: duration is 'ten'; it takes a number"),
        ("elasticflow", HEAD + "a,0,nan,1\n", ":2: duration is nan; it takes a number from 0"),
        ("elasticflow", HEAD + "a,0,1,1\nb,0,1,0\n", ":3: num_gpu is 0; it takes a number from 1"),
        ("elasticflow", HEAD + "a,0,1,1.5\n", ":2: num_gpu is 1.5; it takes a whole number"),
        ("elasticflow", HEAD + "a,-1,1,1\n", ":2: submission_time is -1; it takes a number from 0"),
        ("elasticflow", HEAD + "a,0,1\n", ":2: 3 fields, the header has 4"),
        ("elasticflow", HEAD + "a,0,1,9\n", ":2: asks for 9 GPUs, --cluster has 8 of a type"),
        ("elasticflow", "job_id,duration\n", ":1: has no column submission_time num_gpu; it takes job_id"),
        ("elasticflow", HEAD.strip() + ",colour\n", ":1: has unknown columns colour; it takes job_id"),
        ("elasticflow", HEAD.strip() + ",duration\na,0,1,1,2\n", ":1: has twice the column duration"),
        ("elasticflow", HEAD + "a,0,1e12,1\n", ":2: runs for more than ten years, or comes after 2100"),
        ("elasticflow", HEAD + "a,1e300,1,1\n", ":2: runs for more than ten years, or comes after 2100"),
        ("elasticflow", HEAD, "no jobs in it"),
        ("elasticflow", "", ":1: has no column job_id"),
        ("gavel", "a\tb\n", ":1: 2 tab-separated fields; a trace has 10 or 7"),
        ("gavel", "A3C\tc\td\ta\t0\t9\t1\t1\t-1\t0\n", ":1: the job has mini-batches and no run time"),
        ("muri", "job_id,num_gpu,submit_time,duration\n1,1,x,3\n", ":2: submit_time is 'x'"),
        ("sacct", "JobID|Submit|Elapsed\n1|2026-03-01T10:00:00|01:00\n", ":2: no column tells GPUs"),
        (
            "sacct",
            "JobID|Submit|AllocTRES\n1|2026-03-01T10:00:00|gres/gpu=1\n",
            ":2: no column tells the run",
        ),
        ("sacct", "JobID|Submit|Elapsed|ReqTRES\n1|soon|01:00|gres/gpu=1\n", ":2: Submit is 'soon'"),
        ("sacct", "JobID|Submit|Elapsed|ReqTRES\n1|5|1h|gres/gpu=1\n", ":2: Elapsed is '1h'; it takes"),
        ("sacct", "JobID|Submit|Elapsed|ReqTRES\n1|5|01:00|gres/gpu:a9=1\n", ":2: asks for GPU type 'a9'"),
        ("gandiva", "job_id,submit_s,gpus\na,0,1\n", ":2: a job has length_s, or model and steps"),
        ("gandiva", "job_id,submit_s,gpus,length_s,class\na,0,1,1,best\n", ":2: class is 'best'; it takes"),
        (
            "gandiva",
            "job_id,submit_s,gpus,length_s,tickets\na,0,1,1,0\n",
            ":2: tickets is 0; it takes 1..1000",
        ),
        ("gandiva", "job_id,submit_s,gpus,length_s,max_gpus\na,0,2,1,1\n", ":2: max_gpus is 1; it takes 2.."),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, format_: str, text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(write(tmp_path, text), format_)
    assert sentence in str(caught.value)


def test_rates_are_asked_of_who_needs_them_only(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + "a,0,1,1\n")
    with pytest.raises(UsageError, match=":2: the job has a run time, so --throughputs has no part in it"):
        read(path, "elasticflow", MIXED, throughputs=THROUGHPUTS)
    trace = write(tmp_path, "GPT-9\tc\td\ta\t0\t9\t1\t1\t-1\t0\n")
    with pytest.raises(UsageError, match=":1: the throughputs have no model 'GPT-9'"):
        read(trace, "gavel", MIXED, throughputs=THROUGHPUTS)
    with pytest.raises(UsageError, match="has no GPU type 'gpu'; it has k80, p100, v100"):
        read(trace, "gavel", throughputs=THROUGHPUTS)


def test_the_users_column_must_be_there(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + "a,0,1,1\n")
    with pytest.raises(UsageError, match="there is no column 'owner'; there are job_id"):
        read(path, "elasticflow", users_column="owner")


@pytest.mark.parametrize("text", ["v100", "v100:0x4", "v100:3x4,", "v100:3*4", ":3x4", "v100:99999x9999"])
def test_wrong_clusters_are_told(text: str) -> None:
    with pytest.raises(UsageError, match="--cluster: "):
        read_cluster(text)


def test_a_cluster_is_read() -> None:
    cluster = read_cluster("v100:2x4,k80:1x2")
    assert cluster.counts == {"v100": 8, "k80": 2} and len(cluster.hosts) == 3


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"v100": {"x": {"null": 1}}}', '{"v100": {"(\'m\', 1)": {}}}']
)
def test_a_file_that_has_no_throughputs_is_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="is not a table of throughputs"):
        read_oracle(write(tmp_path, text))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    for look in (lambda path: read(path, "muri"), read_oracle):
        with pytest.raises(UsageError, match="No such file"):
            look(tmp_path / "none")


def test_gavels_throughputs() -> None:
    oracle: Oracle = read_oracle(THROUGHPUTS)
    model = "ResNet-18 (batch size 16)"
    assert oracle.rates.alone(model, 1, "v100") == pytest.approx(32.353384328946916)
    pair = oracle.rates.packed(model, "ResNet-18 (batch size 64)", "v100")
    assert pair == pytest.approx((32.353384328946916, 24.093231895382736))
    assert oracle.rates.packed("ResNet-18 (batch size 64)", model, "v100") == pytest.approx(pair[::-1])
    largest = oracle.rates.alone(model, 8, "v100", False)
    assert oracle.rates.alone(model, 32, "v100", False) == pytest.approx(4 * largest)
    assert oracle.rates.alone("none", 1, "v100") == 0
