"""A Slurm that answers from a tape. Linked as squeue, sinfo, scontrol and sacctmgr into a directory on PATH.

$FAKE_SLURM names a directory with tape.json (what real daemons answered once, see contract_world.Tape) and
claims/. The n-th call with the same arguments gets the n-th recorded answer, the last one for ever. A call
that is not on the tape is said loudly: the port asks Slurm something else than when the tape was made.
"""

import hashlib
import json
import os
import sys


def main() -> int:
    home = os.environ["FAKE_SLURM"]
    argv = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
    with open(os.path.join(home, "tape.json"), encoding="utf-8") as file:
        entries = [entry for entry in json.load(file) if entry["who"] == "port" and entry["argv"] == argv]
    if not entries:
        print(f"not on the tape: {' '.join(argv)}", file=sys.stderr)
        return 97
    entry = entries[min(claim(home, argv), len(entries) - 1)]
    out = entry["out"]
    if "out_file" in entry:
        with open(os.path.join(home, entry["out_file"]), encoding="utf-8") as file:
            out = file.read()
    sys.stdout.write(out)
    sys.stderr.write(entry["err"])
    return int(entry["rc"])


def claim(home: str, argv: list[str]) -> int:
    """Return how often these arguments were seen before; two calls at once get two numbers."""
    name = hashlib.sha256("\0".join(argv).encode()).hexdigest()[:16]
    number = 0
    while True:
        try:
            os.close(
                os.open(
                    os.path.join(home, "claims", f"{name}.{number}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY
                )
            )
            return number
        except FileExistsError:
            number += 1


if __name__ == "__main__":
    sys.exit(main())
