"""A gang without PyTorch: its ranks go in step over a socket, start at once, and take next to no CPU.

Copied into a user's home and run there: python light_gang.py PREFIX STOP_FILE, with RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT set. Each rank writes PREFIX.RANK.steps, a line a step.
"""

import os
import socket
import sys
import time

import gandiva_slurm as gandiva

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ADDRESS = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def meet() -> list[socket.socket]:
    """Rank 0 has a line to everybody, the others one to it."""
    if RANK == 0:
        server = socket.create_server(ADDRESS)
        return [server.accept()[0] for _ in range(WORLD - 1)]
    end = time.monotonic() + 60
    while True:
        try:
            return [socket.create_connection(ADDRESS)]
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def agree(lines: list[socket.socket], wants_end: bool) -> bool:
    """All ranks have come to this step; True when one of them wants to end."""
    mine = b"\x01" if wants_end else b"\x00"
    if RANK == 0:
        said = [line.recv(1) for line in lines]
        any_end = wants_end or any(byte != b"\x00" for byte in said)
        for line in lines:
            line.sendall(b"\x01" if any_end else b"\x00")
        return any_end
    lines[0].sendall(mine)
    return lines[0].recv(1) != b"\x00"


def main() -> None:
    """Go in step until the file exists."""
    prefix, stop_file = sys.argv[1:]
    lines = meet()
    with open(f"{prefix}.{RANK}.steps", "w", buffering=1) as steps:
        while not agree(lines, os.path.exists(stop_file)):
            time.sleep(0.01)
            steps.write(f"{time.monotonic_ns()}\n")
            gandiva.step()


if __name__ == "__main__":
    main()
