"""A stand-in for the SPANK plugin: binds this task at its node, then becomes the program.

Usage: task.py JOB RESTART STEP SLOTS PROGRAM...

It asks on the connection that root's hook has left it (stepd.pl), else on the socket of all, as older plugins
do. How long it took, with that hook, is appended to bind.JOB, in seconds.
"""

import os
import socket
import sys
import time

#: Much longer than the plugin's: what is tried is the node, on whatever machine.
BOUND_S = 30.0
AGAIN_S = 0.1


def ask(link, line: str) -> str:
    link.settimeout(BOUND_S)
    link.sendall(line.encode())
    data = b""
    while not data.endswith(b"\n"):
        part = link.recv(4096)
        if not part:
            break
        data += part
    return data.decode()


def ask_as_root_left_it(question: str) -> str:
    with socket.socket(fileno=int(os.environ.pop("GANDIVA_LINK"))) as link:
        answer = "LATER"
        while answer.startswith("LATER"):
            answer = ask(link, f"BIND 2 {question}")
            time.sleep(AGAIN_S if answer.startswith("LATER") else 0)
        return answer


def bind(question: str) -> str:
    answer = ask_as_root_left_it(question) if "GANDIVA_LINK" in os.environ else ""
    if not answer:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.setblocking(False)  # as the plugin: where the backlog is full, it fails at once
            link.connect(os.environ["GANDIVA_SOCKET"])
            answer = ask(link, f"BIND 1 {question}")
    return answer


def main() -> None:
    job, restart, step, slots, *program = sys.argv[1:]
    task = os.environ.get("SLURM_LOCALID", "0")
    begin_s = time.monotonic()
    try:
        answer = bind(f"{job} {restart} {step} {task} {slots} {slots}\n").split()
    except OSError as err:
        answer = ["NO", str(err)]
    took_s = time.monotonic() - begin_s + float(os.environ.pop("GANDIVA_TOOK", 0))
    with open(f"bind.{job}", "a") as out:
        out.write(f"{took_s} {' '.join(answer[:1])}\n")
    if answer[:1] == ["OK"]:
        os.environ.update(word.split("=", 1) for word in answer[1:])
    else:
        print("gandiva:", *answer[1:], file=sys.stderr, flush=True)
    os.execv(program[0], program)


main()
