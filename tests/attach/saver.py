"""Saves checkpoint after checkpoint until it is killed: `saver.py DIRECTORY FIRST [behind]`. Needs no torch.

With `behind`, as a training does that goes on meanwhile: by a thread.
"""

import sys

from gandiva_slurm.client import checkpoint
from gandiva_slurm.client.checkpoint import Store

#: Large enough for a kill to fall into the writing.
BYTES = 1 << 20


def content(count: int) -> bytes:
    return count.to_bytes(4, "big") * (BYTES // 4)


def save(store: Store, count: int) -> str:
    return checkpoint.save(store, count, lambda out: _write(out, content(count)), {})


def _write(out, data: bytes) -> None:
    for start in range(0, len(data), BYTES // 16):
        out.write(data[start : start + BYTES // 16])


if __name__ == "__main__":
    store, count = Store(sys.argv[1], "train", 0, 1, "5", 0), int(sys.argv[2])
    vault = None
    if sys.argv[3:] == ["behind"]:
        from gandiva_slurm.client.vault import Vault

        vault = Vault(store, [])
    while True:
        if vault:
            vault.write_behind(count, {"content": content(count)}, "")
            vault.settle()
        else:
            save(store, count)
        print(count, flush=True)
        count += 1
