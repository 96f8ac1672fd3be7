"""Why a job is where it is: the one place for codes and their wording.

Each code has a sentence, facts filled in, and what will change it; `gandiva why` prints them as they are.
Nodes send a bare code with a detail (`of_node`); unknown codes of a newer node are shown, not refused.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """One dominant reason: a code for programs, a sentence, what proves it, and what will change it."""

    code: str
    text: str
    evidence: tuple[str, ...] = ()
    next: str = ""


#: code → (sentence, what will change it). Facts in braces are filled in by `because`.
CATALOGUE: dict[str, tuple[str, str]] = {
    # waiting, before a place is found
    "New": ("seen for the first time", "it is placed in this cycle if anything fits"),
    "HeldByUser": (
        "held by its owner",
        "its owner lifts that: scontrol update JobId={job} StartTime=now",
    ),
    "RequeuedHeld": (
        "requeued in held state: by its owner, or because it could not be launched",
        "its owner lifts that: scontrol update JobId={job} StartTime=now",
    ),
    "Dependency": ("waits for other jobs: {dependency}", "those jobs end as the dependency asks"),
    "DependencyFailed": ("what it waits for cannot come: {dependency}", "cancel it: scancel {job}"),
    "BeginTime": ("not to begin before the time it was submitted with", "that time comes"),
    "NoNodes": ("no node of its partition {partition} is known", "slurmctld shows a node of that partition"),
    "NoSuchType": (
        "no node has GPUs of type {types}",
        "cancel it and ask for one of: {known}",
    ),
    "NoSuchVc": (
        "--gandiva-vc={vc}: gandiva.yaml has no virtual cluster of that name",
        "cancel it (scancel {job}) and name one of: {known}; or an operator adds it to virtual_clusters",
    ),
    "TooManyGpus": (
        "asks for {gpus} GPUs on a node, the largest that may take it has {most}",
        "cancel it and ask for {most} or fewer",
    ),
    "TooWide": (
        "asks for {gpus} GPUs of one {cell}, the largest that may take it has {most}",
        "cancel it and ask for {most} or fewer, or for another --gandiva-cell",
    ),
    "TooMuchMemory": (
        "asks for {memory_mib} MiB of memory on a node, the largest that may take it has {most}",
        "cancel it and ask for less with --mem",
    ),
    "TooManyCpus": (
        "asks for {cpus} CPUs on a node, the largest that may take it has {most}",
        "cancel it and ask for fewer",
    ),
    "TooFewNodes": (
        "asks for {nodes} nodes of one GPU type with {gpus} GPU(s) on each; large enough: {most}",
        "cancel it and ask for fewer nodes",
    ),
    "WrongNodes": (
        "Slurm has it for {nodes} node(s), it was submitted for {want}",
        "an operator sets NumNodes={want} again (scontrol update), or cancel it and submit it anew",
    ),
    "NodesDown": ("{none_are} in service", "one that is not comes back, its gandivad too"),
    "NoFreeMemory": (
        "{none_have} {memory_mib} MiB of memory left; parked jobs keep theirs",
        "a job on one of these nodes ends",
    ),
    "NoFreeSlots": (
        "{none_have} a free slot on {gpus} GPU(s)",
        "a job on one of these nodes ends (the last slot of a GPU is kept for users who are not on it yet)",
    ),
    "NotPending": ("Slurm shows it as {state}", "Slurm shows it pending: it is placed then"),
    "Released": ("released by someone else than Gandiva", "Gandiva holds it again and places it"),
    "NoRoomYet": (
        "its turn has come where there is no free slot, or too little memory, yet",
        "parked jobs have left there, or a job ends",
    ),
    "MadeWay": ("saved and requeued, to make way", "its turn comes"),
    "Requeued": ("requeued; its place is given back", "it is placed anew in two seconds, if anything fits"),
    "Limit": ("Slurm does not start it: {words} ({word})", "{then}; asked again every {wait_s} s"),
    "BehindLimit": (
        "waits behind job {job}, which a limit of Slurm's keeps waiting",
        "job {job} starts, ends, or asks again in vain: then this one may ask",
    ),
    "Reserved": (
        "reserved for others before its time limit would be over: {names}",
        "the reservation ends, or its owner asks for less time (--time)",
    ),
    "Unfit": (
        "no node that takes jobs now can restore it from its image: {unfit}",
        "another node takes jobs again; to begin anew, submit it again",
    ),
    "StartFailed": ("Slurm did not start it on {node}: {why}", "the next try comes in {wait_s} s"),
    # being started
    "Starting": ("released to start on {node}, GPUs {gpus}", "Slurm starts it, or {deadline_s} s pass"),
    "NodeLost": ("{node} went down before the job started there", "it is placed anew in this cycle"),
    # on a node
    "Running": ("holds its GPUs", "its quantum ends and others wait"),
    "Packed": (
        "shares its GPU with job {mate}: together they train {gain:.2f} times as fast as by turns",
        "either is slowed down too much, or ends",
    ),
    "PackTrial": (
        "shares its GPU with job {mate}, to see whether both train faster so than by turns",
        "both were measured together, {least_s} s of turns at least",
    ),
    "PackUndone": (
        "takes turns with job {mate} again: {why}",
        "it is packed with another",
    ),
    "Promoted": (
        "guaranteed from now on, after {waited_s} s without GPUs: {why}",
        "its turn comes, as for other guaranteed jobs",
    ),
    "Started": ("Slurm started it", "its ranks register at their first boundary"),
    "SetAside": (
        "not scheduled, for it alone causes an error in gandivactld: {why}; all others are",
        "it is tried again when it is changed or requeued (`gandiva update JOB priority=N`, `scontrol "
        "requeue`), or by another release; gandivactld's log has the traceback: report it",
    ),
    "Adopted": ("found running on {node}", "nothing to be done"),
    "Unbound": ("runs on {node}, which GPUs is not known yet", "the node reports them, or they are assigned"),
    "NodeDown": ("its node {node} is down; Slurm has not given it up", "Slurm requeues it or {node} returns"),
    "WarmingUp": ("has not passed enough boundaries to be parked yet", "its ranks pass a few mini-batches"),
    "NotParkable": ("cannot be parked at a boundary now", "its ranks register and pass boundaries again"),
    "NoClient": (
        "its processes never registered: it is frozen whole, not parked",
        "import gandiva_slurm in the script, or leave --gandiva-hook=auto on",
    ),
    "Parking": ("parks at its next boundary", "its last rank releases its GPUs"),
    "NoGpuMemory": (
        "parked: its memory would not fit in beside what others keep on its GPU while they are parked",
        "they end, are moved away, or keep less",
    ),
    "NoMemoryToBegin": (
        "has not begun: its memory would not fit in beside what others keep on its GPU while they are parked",
        "they end, are moved away, or keep less",
    ),
    "ResumeFailed": (
        "parked: its memory could not be taken back onto its GPU, and its turn was given on",
        "it is tried again, ever more seldom; others end, or keep less of its GPU",
    ),
    "Parked": ("parked in memory: others hold its GPUs", "its user's turn, or its park's bound, comes"),
    "NotRestored": (
        "its image cannot be restored here: it waits to be started elsewhere",
        "another node takes jobs; if none does within a minute, it begins anew here",
    ),
    "WaitingTurn": (
        "waits: users with less GPU time for their tickets go first",
        "its turn comes, and a slot that it may have",
    ),
    "IdleGpus": (
        "holds GPUs that have been idle for {idle_s} s of that time, by NVML",
        "it uses them, or all others go before it where the site has that on",
    ),
    "IdleParked": (
        "has only what all others leave: its GPUs were idle for {idle_s} s of the time it held them, by NVML",
        "it uses them in a turn that nobody else wants, or in one that it gets after a long wait",
    ),
    "Resuming": ("comes back to its GPUs", "its ranks are back"),
    "Frozen": ("frozen whole until its next turn", "its turn comes, or the bound of a freeze is reached"),
    # being moved
    "Leaving": (
        "saves itself in its next turn, to go on on {to}: {why}",
        "it has saved itself, or {deadline_s} s pass: then it goes on where it is",
    ),
    "Forgotten": (
        "ended in Slurm ({exit}): a requeue has killed it that slurmctld, killed itself, has forgotten",
        "it is requeued once more, and goes on from what it saved",
    ),
    "ImageBroke": (
        "ended in Slurm ({exit}): criu was killed while it made its image, and its trap killed the job",
        "it is requeued, and begins anew",
    ),
    "Unrestored": (
        "is requeued to go on from its image on another node, for this one could not restore it: {why}",
        "Slurm requeues it; if it is still here after a minute, it begins anew",
    ),
    "ToBegin": (
        "has not begun, and is to begin on {to}: {why}",
        "its node says so, too; if its first turn came before that, it goes on where it is",
    ),
    "Growing": (
        "saves itself in its next turn, to go on with more GPUs, on {to}: {why}",
        "it has saved itself, or {deadline_s} s pass: then it goes on as it is",
    ),
    "Shrinking": (
        "saves itself in its next turn, to go on with fewer GPUs, on {to}: {why}",
        "it has saved itself, or {deadline_s} s pass: then it goes on as it is",
    ),
    "Draining": (
        "saves itself in its next turn, to leave: {why}",
        "it has saved itself, or {deadline_s} s pass: then it goes on where it is",
    ),
    "MakingWay": (
        "saves itself in its next turn, to make way: {why}",
        "it has saved itself, or {deadline_s} s pass: then it goes on where it is",
    ),
    "Signalled": (
        "was sent {signal}, upon which it saves itself to go on on {to}",
        "it requeues itself, or ends non-zero; after {grace_s} s it goes on where it is",
    ),
    "GoesBack": (
        "is requeued to go on on {to} from its own newest file{age}; what it did since is done again",
        "Slurm requeues it",
    ),
    "EndedToMove": (
        "ended non-zero ({exit}) upon its signal, and is requeued to go on on {to}",
        "Slurm requeues it",
    ),
    "EndedLate": (
        "ended non-zero ({exit}) upon its signal, later than it was to",
        "it is requeued, and placed anew",
    ),
    "StillThere": (
        "waits: processes of its former start {key} are still on {node}, which is told to stop them",
        "they are gone: two starts at once would write the same files",
    ),
    "SharesForGood": (
        "shares {where} with {others}: it cannot be moved: {why}",
        "add one of: gandiva.attach() in its script, a framework that is known, "
        "--gandiva-checkpoint=signal|self",
    ),
    "Saved": ("has saved itself to go on on {to}", "Slurm requeues it"),
    "NotBegun": ("had not begun, and is to begin on {to}", "Slurm requeues it"),
    "Imaged": ("an image of its processes is made, to go on on {to}", "Slurm requeues it"),
    "MovedOut": ("saved and requeued; its place on {to} is kept", "Slurm shows it held: it is started there"),
    "MoveFailed": ("was not moved to {to}: {why}", "{then}; no move is tried again for {wait_s} s"),
    "TargetLost": (
        "{node} takes no jobs now, so it does not go on on {to}",
        "{then}",
    ),
    # leaving
    "Ended": ("finished: {state}", "nothing"),
    "NoOutput": (
        "ended by signal 53, as Slurm ends a job whose output or error file cannot be opened on {nodes}",
        "submit it again with --chdir, --output and --error in directories that its owner may write in on "
        "every node (a mini cluster sees those named in: gandiva mini up --share DIR)",
    ),
    "Stale": ("incarnation {key} is not the newest of its job, {newest} is", "its node stops it"),
    "Leftover": ("its job is finished in Slurm, its processes are not gone", "its node stops them"),
    "Elsewhere": ("incarnation {key} is on {node}, Slurm shows it on {home}", "{node} stops it"),
    "Strange": ("Slurm does not know a job {job}", "its node stops it"),
}


#: What a node says of a job whose tasks are stopped before their program begins.
UNBORN = ("WaitingTurn", "NoMemoryToBegin", "NotRestored")


def because(code: str, *evidence: str, **facts: object) -> Reason:
    """Return the reason of this code; KeyError when the code or a fact of its wording is missing."""
    text, then = CATALOGUE[code]
    return Reason(code, text.format(**facts), tuple(evidence), then.format(**facts))


def of_node(code: str, detail: str) -> Reason:
    """Return a reason that a node sent; what it fills in is its detail."""
    text, then = CATALOGUE.get(code, (f"its node says {code}", ""))
    if "{" in text + then:
        text, then = detail or code, ""
    return Reason(code, text, (detail,) if detail else (), then)
