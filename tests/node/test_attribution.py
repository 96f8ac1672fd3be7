"""Who holds each GPU, in the files of DCGM's exporter and of jobstats, beside a real gandivad."""

from __future__ import annotations

from pathlib import Path

from tests.node.harness import HERE, a_planned_job, uid_of

LOOP = [str(HERE / "scripts" / "loop.py"), "4"]


def holder(where: Path, gpu: int = 0) -> str:
    """What is told of a GPU now; "" where nothing is."""
    try:
        return (where / str(gpu)).read_text()
    except FileNotFoundError:
        return ""


def test_files_follow_each_change_of_hands_over_a_kill(make_node, tmp_path):
    places = tmp_path / "dcgm", tmp_path / "gpustat"
    settings = dict(zip(("dcgm_mapping_dir", "gpustat_dir"), map(str, places), strict=True))
    node = make_node(gpus=1, quantum_s=3600, **settings)
    dcgm, gpustat = places
    node.plan(*[a_planned_job(n, f"user{n}", (0,)) for n in (1, 2)])
    for job_id in (1, 2):
        node.start_job(job_id, LOOP)
        node.wait(lambda job_id=job_id: job_id in node.states())
    for job_id in (1, 2, 1):
        node.give_turn(job_id)
        node.wait(lambda job_id=job_id: holder(dcgm) == f"{job_id}\n")
        node.wait(lambda job_id=job_id: holder(gpustat) == f"{job_id} {uid_of(f'user{job_id}')}\n")
    node.kill9()
    (dcgm / "0").write_text("99\n")
    (dcgm / "3").write_text("98\n")
    node.start()
    node.wait(lambda: (holder(dcgm), holder(dcgm, 3)) == ("1\n", ""))
    node.give_turn(2)
    node.wait(lambda: holder(dcgm) == "2\n")
    for job_id in (1, 2):
        node.kill_job(job_id, 0)
    node.wait(lambda: not any(list(place.iterdir()) for place in places))


def test_a_place_that_cannot_be_written_costs_no_turn(make_node, tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    node = make_node(gpus=1, quantum_s=0.2, dcgm_mapping_dir=str(tmp_path / "open"))
    node.plan(*[a_planned_job(n, f"user{n}", (0,)) for n in (1, 2)])
    for job_id in (1, 2):
        node.start_job(job_id, LOOP)
    node.wait(lambda: all(node.resident(job_id).suspends >= 3 for job_id in (1, 2)))
    assert list((tmp_path / "open").iterdir()) == []
    assert (node.base / "gandivad.log").read_text().count("others own it, or may write it") == 1
