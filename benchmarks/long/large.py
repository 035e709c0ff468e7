"""One problem with very many pairs: certified gap, seconds and peak memory per pair; optionally killed and resumed.

    python benchmarks/long/large.py --states 1000            10⁶ pairs (half a minute, 0.2 GB)
    python benchmarks/long/large.py                          10⁸ pairs: about 8 GB, minutes
    python benchmarks/long/large.py --kill                   the same, killed (-9) once and resumed from its checkpoint
    python benchmarks/long/large.py --states 1000 --store /var/tmp      stores trees in files of this folder

The chains are random with four successors per state, the discount is 0.95 and the gap 1e-6. Each run is a separate
process. With ``--kill`` it is killed after ``--after`` iterations, in the middle of the next one, and restarted with
the same checkpoint. A line per iteration estimates the remaining time from the decrease of the gap so far. Peak memory
is that of the whole process (VmHWM, Linux), including costs and compiled code.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

TOL, DISCOUNT, SUCCESSORS = 1e-6, 0.95, 4


def peak() -> int:
    """Return the peak memory of this process in bytes."""
    rows = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(row for row in rows if row.startswith("VmHWM")).split()[1])


class Report:
    """Prints a line per iteration, with an estimate of the remaining time."""

    def __init__(self) -> None:
        from diffbisim.common.progress import TimeLeft

        self.began, self.count, self.left = time.perf_counter(), 0, TimeLeft(TOL)

    def __call__(self, row: Mapping[str, float]) -> None:
        gap, self.count = row["upper"] - row["lower"], self.count + 1
        left, so_far = self.left(gap), time.perf_counter() - self.began
        more = "" if left is None else f", about {left:.0f} s left"
        print(f"iteration {self.count}: {so_far:.0f} s, gap {gap:.1e}{more}", flush=True)


def run(given: argparse.Namespace) -> None:
    """Solve the problem in this process."""
    import diffbisim as db
    from diffbisim.solvers import Exact

    small = db.examples.random_sparse_chain(300, SUCCESSORS, rng=0)  # compiles
    db.distance(small, small, discount=DISCOUNT, solver=Exact(tol=TOL, threads=given.threads))
    n, rngs = given.states, (given.seed, given.seed + 1)
    X, Y = (db.examples.random_sparse_chain(n, SUCCESSORS, rng=rng) for rng in rngs)
    solver = Exact(
        tol=TOL, threads=given.threads, checkpoint=given.checkpoint, store=given.store, time_limit=given.time_limit
    )
    clock, processor = time.perf_counter(), time.process_time()
    result = db.distance(X, Y, discount=DISCOUNT, solver=solver, callback=Report())
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    gap, memory = (result.upper - result.lower) / result.problem.scale, peak()
    print(
        f"{n * n} pairs: {result.value:.9f} in [{result.lower:.9f}, {result.upper:.9f}], gap {gap:.1e}, "
        f"{'converged' if result.converged else result.status}\n{clock:.1f} s by the clock, {processor:.1f} s of "
        f"processors, {1e6 * processor / n**2:.2f} µs per pair; {result.work}\n"
        f"peak {memory / 1e9:.2f} GB, {memory / n**2:.1f} bytes per pair",
        flush=True,
    )


def killed(given: argparse.Namespace, command: list[str]) -> None:
    """Run in a separate process, kill it in the middle of an iteration, and run again."""
    with tempfile.TemporaryDirectory(dir=given.scratch) as folder:
        command = [*command, "--checkpoint", str(Path(folder, "table.npz"))]
        print("first run", flush=True)
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        spent, before = 0.0, time.perf_counter()
        for line in child.stdout:
            print(line, end="", flush=True)
            spent, before = time.perf_counter() - before, time.perf_counter()
            if line.startswith(f"iteration {given.after}:"):
                break
        time.sleep(spent / 2)
        child.kill()
        print(f"killed: {child.wait()}; its checkpoint has {Path(command[-1]).stat().st_size} bytes\nsecond run")
        subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=10_000, help="of each chain")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, help="all processors by default")
    parser.add_argument("--time-limit", type=float)
    parser.add_argument("--store", help="folder for the trees")
    parser.add_argument("--checkpoint", help="file to go on from")
    parser.add_argument("--kill", action="store_true", help="kill the run once, and resume")
    parser.add_argument("--after", type=int, default=3, help="iterations before the kill")
    parser.add_argument("--scratch", help="folder for the checkpoint of --kill; that for temporary files by default")
    given = parser.parse_args()
    if given.kill:
        kept = [word for word in sys.argv[1:] if word != "--kill"]
        killed(given, [sys.executable, __file__, *kept])
    else:
        run(given)


if __name__ == "__main__":
    main()
