"""Whether a plan can be: what no cluster can do is found before anything of it is done."""

from __future__ import annotations

from collections.abc import Sequence

from gandiva_slurm.policy.packing.room import fits
from gandiva_slurm.policy.port import Cluster, JobView, Plan, View


def fault_of(view: View, plan: Plan) -> str:
    """Return the first thing that is wrong with a plan, "" when nothing is."""
    on: dict[int, list[JobView]] = {}
    for job_id, gpus in plan.runs.items():
        job = view.jobs.get(job_id)
        wrong = unfit(view.cluster, view.down, job, gpus) if job else "there is no such live job"
        if wrong or job is None:
            return _put(job_id, gpus, wrong)
        for gpu in gpus:
            on.setdefault(gpu, []).append(job)
    for jobs in on.values():
        job, *others = jobs
        wrong = unpaired(job, plan.runs[job.job_id], [(mate, plan.runs[mate.job_id]) for mate in others])
        wrong = wrong or _lacking(view, job, others, plan.runs[job.job_id])
        if wrong:
            return _put(job.job_id, plan.runs[job.job_id], wrong)
    if plan.wake_ns is not None and plan.wake_ns <= view.now_ns:
        return "asks to be asked again at once"
    return ""


def unfit(cluster: Cluster, down: frozenset[int], job: JobView, gpus: tuple[int, ...]) -> str:
    """Say why a job cannot have these GPUs, whatever else is there; "" when it can."""
    wrong = ""
    if not job.min_size <= len(gpus) <= job.max_size:
        is_elastic = job.max_size > job.min_size
        wrong = f"it takes {f'{job.min_size} to {job.max_size}' if is_elastic else job.size} GPUs"
    elif not gpus or [*gpus] != sorted({*gpus}) or not 0 <= gpus[0] <= gpus[-1] < cluster.size:
        wrong = f"GPUs are distinct, in order, 0..{cluster.size - 1}"
    elif not down.isdisjoint(gpus):
        wrong = f"GPUs {sorted(down.intersection(gpus))} are down"
    elif not all(job.accepts(cluster.type_of[gpu]) for gpu in gpus):
        wrong = f"it accepts only {', '.join(job.gpu_types)}"
    elif not cluster.share(gpus, job.cell) and not cluster.may_be_over(gpus, job):
        wrong = f"its GPUs must share a {job.cell}"
    elif not cluster.are_even(gpus, job.nodes):
        wrong = f"it takes as many GPUs on each of {job.nodes} node(s)"
    elif job.hosts is not None and not cluster.hosts_of(gpus) <= job.hosts:
        wrong = "it may not use that node"
    elif job.gpus and not job.can_migrate and gpus != job.gpus:
        wrong = f"it cannot be moved from GPUs {[*job.gpus]}"
    return wrong


def unpaired(job: JobView, gpus: tuple[int, ...], others: Sequence[tuple[JobView, tuple[int, ...]]]) -> str:
    """Say why a job cannot share its GPUs with these on theirs; "" when it can."""
    for mate, theirs in others:
        if len(others) > 1 or theirs != gpus:
            return f"two jobs may share all their GPUs, not more jobs, not some GPUs (job {mate.job_id})"
        if not (job.can_pack and mate.can_pack):
            return f"it or job {mate.job_id} may not be packed"
    return ""


def _lacking(view: View, job: JobView, others: Sequence[JobView], gpus: tuple[int, ...]) -> str:
    """Say that jobs do not fit into the memory of a GPU together; "" when they do."""
    if not others or not view.card_bytes:
        return ""
    card = min(view.card_bytes[host] for host in view.cluster.hosts_of(gpus))
    peaks = [each.peak_bytes for each in (job, *others)]
    if card and all(peaks) and fits(card, peaks, ()):
        return ""
    mates = ", ".join(str(mate.job_id) for mate in others)
    return f"it and job {mates} are not known to fit into its memory together"


def _put(job_id: int, gpus: tuple[int, ...], wrong: str) -> str:
    return f"puts job {job_id} on GPUs {[*gpus]}: {wrong}"
