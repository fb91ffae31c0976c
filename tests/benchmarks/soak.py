"""Twenty sessions over mixed pages at once: python tests/benchmarks/soak.py [--seconds 120]

Every number that a session is shown is compared with what a server shows that serves one session
alone; each checkpoint may be loaded once; and once they are gone the memory must be back near where
it was. Exit code 0 only when all of that holds.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

PROMPTS = {
    "shakespeare": ("JULIET:\nGood night! Parting is such sweet sorr", "ROMEO:\nWhat say", "a"),
    "induction": ("abcdefabcdef", "aabbaabb"),
}
STEPS = {"shakespeare": (0, 512, None), "induction": (None,)}
MOST_GROWTH = 300
"""MB"""
TOLERANCE = 1e-4
"""float32 results differ by their last digits between threads' shapes"""
SESSIONS_LAST = 130
"""seconds: Streamlit keeps a closed session for two minutes, for the case that it comes back"""


def main() -> int:
    from streamlit_client import Client, numbers

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument(
        "--rest", type=float, default=SESSIONS_LAST, help="seconds between the end and the measure"
    )
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--loads", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.loads)

    views = list(visits())
    with server() as (address, _, _):
        expected = {}
        for view in views:
            with Client(address) as client:
                expected[view] = [look(client, numbers, *view), move(client, numbers, view[0])]
    print(f"{len(views)} views, each alone: {sum(len(e[0][1]) for e in expected.values())} charts")

    with server() as (address, process, loads):
        with Client(address) as client:
            look(client, numbers, *views[0])
        before = resident(process)
        told = Told()
        ends = time.monotonic() + options.seconds
        threads = [
            threading.Thread(target=person, args=(i, address, views, expected, ends, told, numbers))
            for i in range(options.sessions)
        ]
        for thread in threads:
            thread.start()
        peak = 0.0
        while any(thread.is_alive() for thread in threads):
            peak = max(peak, resident(process))
            time.sleep(0.5)
        print(f"{options.sessions} sessions, {told.runs} runs, {told.charts} charts compared")
        print(
            f"runs took {np.median(told.took):.2f} s in the middle, {max(told.took):.2f} s at most"
        )
        time.sleep(options.rest)
        with Client(address) as client:
            look(client, numbers, *views[0])
        time.sleep(2)
        after = resident(process)
        counted = Counter(loads.read_text().splitlines())
    print(f"memory: {before:.0f} MB before, {peak:.0f} MB at most, {after:.0f} MB after")
    print(f"{len(counted)} checkpoints, loaded {sum(counted.values())} times")
    problems = told.problems
    problems += [f"{name} was loaded {n} times" for name, n in counted.items() if n > 1]
    if after - before > MOST_GROWTH:
        problems.append(f"memory grew by {after - before:.0f} MB, and {MOST_GROWTH} are allowed")
    for problem in problems[:20]:
        print("WRONG:", problem)
    print("all as it should be" if not problems else f"{len(problems)} problems")
    return bool(problems)


def visits() -> Iterator[tuple[str, tuple[tuple[str, Any], ...]]]:
    """Pages with links to them."""
    from explorer_server import PAGES

    for page, (model, prompts) in itertools.product(PAGES, PROMPTS.items()):
        for i, step in enumerate(STEPS[model]):
            query = {"model": model, "prompt": prompts[i % len(prompts)]}
            query |= {"step": step} if step is not None else {}
            # The first page of the navigation has the bare address.
            yield "" if page == PAGES[0] else page.lower(), tuple(query.items())


def look(client: Any, numbers: Any, page: str, query: tuple) -> list:
    client.open(page, **dict(query))
    return [client.sentences, [numbers(spec) for spec in client.charts.values()]]


def move(client: Any, numbers: Any, page: str) -> list:
    """The position to 1, where there is a slider for it."""
    if "pos" in client.widgets:
        client.move(page, "pos", 1)
    return [client.sentences, [numbers(spec) for spec in client.charts.values()]]


class Told:
    """What the sessions report."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.took: list[float] = [0.0]
        self.runs = self.charts = 0


def person(
    i: int, address: str, views: list, expected: dict, ends: float, told: Told, numbers: Any
) -> None:
    from streamlit_client import Client

    chance = random.Random(i)
    while time.monotonic() < ends:
        view = chance.choice(views)
        try:
            with Client(address) as client:
                for which, act in enumerate(
                    (
                        lambda c=client, v=view: look(c, numbers, *v),
                        lambda c=client, v=view: move(c, numbers, v[0]),
                    )
                ):
                    began = time.monotonic()
                    found = act()
                    told.took.append(time.monotonic() - began)
                    told.runs += 1
                    told.charts += len(found[1])
                    if difference := differs(found, expected[view][which]):
                        told.problems.append(f"{view}, {('opened', 'moved')[which]}: {difference}")
        except Exception as error:
            told.problems.append(f"{view}: {type(error).__name__}: {error}")


def differs(found: list, expected: list) -> str:
    """What two looks at the same view differ in; empty when in nothing."""
    if found[0] != expected[0]:
        return f"it says {found[0]}, alone it says {expected[0]}"
    if len(found[1]) != len(expected[1]):
        return f"{len(found[1])} charts, alone {len(expected[1])}"
    for chart, (ours, theirs) in enumerate(zip(found[1], expected[1], strict=True)):
        if [a.shape for a in ours] != [a.shape for a in theirs]:
            return f"chart {chart} has other shapes"
        for a, b in zip(ours, theirs, strict=True):
            if not np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
                return f"chart {chart} is off by {np.nanmax(np.abs(a - b)):.2e}"
    return ""


@contextmanager
def server() -> Iterator[tuple[str, int, Path]]:
    """A server of its own; gives its address, its process, and the file of what it loaded."""
    from explorer_server import wait_until_healthy

    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        loads = Path(folder) / "loads.txt"
        loads.touch()
        command = [sys.executable, __file__, "--serve", str(port), "--loads", str(loads)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            address = f"http://127.0.0.1:{port}"
            wait_until_healthy(address, process)
            yield address, process.pid, loads
        finally:
            process.terminate()
            process.wait(timeout=30)


def serve(port: int, loads: Path) -> int:
    """Streamlit's own server with every load of a checkpoint written down."""
    from streamlit.web import bootstrap

    import model

    load = model.load

    def counted(path: Any, step: Any = None, **settings: Any) -> Any:
        with loads.open("a") as file:
            file.write(f"{path} {step}\n")
        return load(path, step, **settings)

    model.load = counted
    options = {"server.port": port, "server.headless": True, "server.fileWatcherType": "none"}
    bootstrap.load_config_options(
        {name.replace(".", "_"): value for name, value in options.items()}
    )
    sys.argv = ["explorer.py"]
    bootstrap.run(str(ROOT / "apps" / "explorer.py"), False, [], {})
    return 0


def resident(process: int) -> float:
    """Its memory in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
