"""A stand-in for the SPANK plugin: binds this task at the node's socket, then becomes the program.

Usage: task.py JOB RESTART STEP SLOTS PROGRAM...
"""

import os
import socket
import sys

#: Much longer than the plugin's: what is tried is the node, on whatever machine.
BOUND_S = 30.0


def bind(line: bytes) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(BOUND_S)
        link.connect(os.environ["GANDIVA_SOCKET"])
        link.sendall(line)
        data = b""
        while not data.endswith(b"\n"):
            part = link.recv(4096)
            if not part:
                break
            data += part
        return data.decode()


def main() -> None:
    job, restart, step, slots, *program = sys.argv[1:]
    task = os.environ.get("SLURM_LOCALID", "0")
    try:
        answer = bind(f"BIND 1 {job} {restart} {step} {task} {slots} {slots}\n".encode()).split()
    except OSError as err:
        answer = ["NO", str(err)]
    if answer[:1] == ["OK"]:
        os.environ.update(word.split("=", 1) for word in answer[1:])
    else:
        print("gandiva:", *answer[1:], file=sys.stderr, flush=True)
    os.execv(program[0], program)


main()
