"""The pictures of docs/, taken of one mini cluster with trainings on it, so that they stay true.

`python -m tests.pictures`, as root: three minutes, with Chromium, on a quiet machine. It writes docs/top.svg
(`gandiva top`), docs/web.png (the page of `gandiva web`) and docs/report.svg (`gandiva report --plot`).
"""

from __future__ import annotations

import asyncio
import base64
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from gandiva_slurm.mini.cluster import MiniCluster
from tests import chromium
from tests.cluster.fleet import Fleet, own_cluster, wait_for
from tests.ports import free_port

DOCS = Path(__file__).parents[1] / "docs"
#: Of each job its user, its name, what it asks for, and how long a mini-batch of it takes.
JOBS = (
    ("user1", "resnet50", ("--gandiva-gpu-types=v100",), 1, 0.03),
    ("user1", "bert-large", (), 2, 0.05),
    ("user2", "vit-base", ("--gandiva-gpu-types=v100",), 1, 0.02),
    ("user2", "gpt2", (), 1, 0.04),
    ("user2", "gpt2-lr3", (), 1, 0.04),
    ("user3", "whisper", (), 1, 0.03),
    ("user3", "unet", (), 1, 0.06),
)
TRAIN = "import time, gandiva_slurm as gandiva\nfor _ in gandiva.steps(range(10**9)): time.sleep({})\n"
SIZE = (104, 20)
#: How long both are looked at before they are taken, s: they show who held the GPUs since they were opened.
LOOKED_S = 60

#: Runs `gandiva top` without a terminal, and prints what it shows then.
TOP = """
import asyncio, sys
from gandiva_slurm.cli import top
from gandiva_slurm.cli.top_screen import TopScreen
size, looked_s = (int(sys.argv[1]), int(sys.argv[2])), float(sys.argv[3])
def run(screen):
    async def show():
        async with screen.run_test(size=size) as pilot:
            await pilot.pause(looked_s)
            print(screen.export_screenshot(title="gandiva top"))
    asyncio.run(show())
TopScreen.run = run
top._watch(None, top.History(), None, 1.0)
"""


@contextmanager
def trainings() -> Iterator[Fleet]:
    """A cluster of two kinds of GPUs with all jobs on it, for as long as it is looked at."""
    with own_cluster("pictures", "v100:1x2,k80:1x2", 2.0) as made:
        fleet = Fleet(made)
        for user, name, flags, gpus, step_s in JOBS:
            script = f"exec python - <<'END'\n{TRAIN.format(step_s)}END"
            fleet.submit(user, script, f"--job-name={name}", *flags, gpus=gpus)
        wait_for(lambda: fleet.are_there(fleet.jobs), "all to live on a node", 120)
        fleet.mini.exec(["gandiva", "forecast", "--once"], user="slurm")
        yield fleet


def screen(mini: MiniCluster) -> str:
    """What `gandiva top` shows, as SVG."""
    words = ["python3", "-c", TOP, *map(str, SIZE), str(LOOKED_S)]
    return mini.exec(words, user="user1").stdout


@contextmanager
def served(mini: MiniCluster) -> Iterator[Path]:
    """`gandiva web` as a user without rights, at a socket."""
    home = mini.path("/home/user3")
    plain = mini.path("/etc/slurm/gandiva.yaml").read_text()
    (home / "web.yaml").write_text(f"{plain}\nweb: {{listen: /home/user3/web.sock}}\n")
    process = mini.popen(["gandiva", "-f", "web.yaml", "web"], user="user3", stdin=subprocess.DEVNULL)
    try:
        wait_for((home / "web.sock").exists, "gandiva web to serve")
        yield home / "web.sock"
    finally:
        process.terminate()
        process.wait(30)


async def page(socket: Path) -> bytes:
    """What the page shows user1 in Chromium, as PNG: behind a proxy, as it is to be."""
    port = free_port()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as session:

        async def forward(asked: web.Request) -> web.Response:
            heads = {"X-Remote-User": "user1"}
            async with session.get(f"http://web{asked.rel_url}", headers=heads) as told:
                kept = {name: told.headers[name] for name in ("Content-Type", "ETag") if name in told.headers}
                return web.Response(status=told.status, body=await told.read(), headers=kept)

        proxy = web.Application()
        proxy.router.add_get("/{path:.*}", forward)
        runner = web.AppRunner(proxy)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        with tempfile.TemporaryDirectory() as folder:
            async with chromium.opened(Path(folder), f"http://127.0.0.1:{port}/", {}) as browser:
                await browser.until("document.querySelectorAll('#space .job').length > 5")
                await asyncio.sleep(LOOKED_S)
                await browser.value("at('row-0').click()")
                await browser.until("document.querySelectorAll('#evidence li').length > 3")
                await asyncio.sleep(2)  # drawn anew once the page has its height
                told = await browser.call("Page.captureScreenshot", format="png")
        await runner.cleanup()
    return base64.b64decode(told["data"])


def report(mini: MiniCluster) -> bytes:
    """What each user had, drawn by `gandiva report`."""
    mini.exec(["gandiva", "report", "-S", "now-1hour", "--plot", "report.svg"], user="user1")
    return mini.path("/home/user1/report.svg").read_bytes()


def main() -> None:
    """Take all three."""
    with trainings() as fleet:
        began_s = time.monotonic()
        (DOCS / "top.svg").write_text(screen(fleet.mini))
        with served(fleet.mini) as socket:
            (DOCS / "web.png").write_bytes(asyncio.run(page(socket)))
        (DOCS / "report.svg").write_bytes(report(fleet.mini))
        print(f"taken within {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
