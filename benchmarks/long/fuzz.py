"""Fuzzing: damaged files must not crash, hang, exhaust the memory, or raise anything but a DiffbisimError.

    python benchmarks/long/fuzz.py [--mutations 100000] [--seed 0] [--jobs 2] [--failures fuzz-failures]

The files and mutations are those of tests/mutations.py. They are read in subprocesses, a few thousand files each. A
subprocess that is killed by a signal has crashed, five seconds of processor time for one file are a hang, and more than
1 GB of memory is too much. Files that fail are stored with a description. The exit code is 1 if there are any.
"""

import argparse
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import numpy as np

from mutations import Sample, attempt, mutated, samples

SECONDS, BYTES, CHUNK = 5, 10**9, 5_000


def damaged(kinds: dict[str, Sample], seed: int, k: int) -> tuple[Sample, dict[str, bytes], np.random.Generator]:
    """Return mutation k for a seed."""
    rng = np.random.default_rng([seed, k])
    sample = list(kinds.values())[k % len(kinds)]
    return sample, mutated(sample, rng), rng


def work(seed: int, first: int, last: int) -> None:
    """Process mutations first … last-1 in a subprocess, with a line of output when each begins and ends."""
    kinds = samples()
    for sample in kinds.values():  # load all compiled code before the timer starts
        with tempfile.TemporaryDirectory() as folder:
            attempt(sample, sample.files, Path(folder), np.random.default_rng(0))
    for k in range(first, last):
        print(json.dumps({"begins": k}), flush=True)
        sample, files, rng = damaged(kinds, seed, k)
        outcome, how = "refused", ""
        signal.setitimer(
            signal.ITIMER_PROF, SECONDS
        )  # SIGPROF kills the process at the end of it; compiled code handles no other signal
        try:
            with tempfile.TemporaryDirectory() as folder:
                outcome = "read" if attempt(sample, files, Path(folder), rng) else "refused"
        except Exception:
            outcome, how = "raised", traceback.format_exc()
        signal.setitimer(signal.ITIMER_PROF, 0)
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if peak > BYTES:
            outcome, how = "memory", f"{how}\n{peak:,} bytes"
        print(json.dumps({"k": k, "kind": sample.name, "outcome": outcome, "how": how, "peak": peak}), flush=True)
        if peak > BYTES:
            return  # the peak memory of a process never decreases, so continue in another one


def run(seed: int, first: int, last: int) -> list[dict]:
    """Process mutations first … last-1 in as many subprocesses as needed."""
    rows: list[dict] = []
    while first < last:
        command = [sys.executable, __file__, "--seed", str(seed), "--worker", str(first), str(last)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
            code, out, err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as error:
            code, out, err = -signal.SIGPROF, (error.stdout or b"").decode(), "no answer"
        begun = first
        for line in map(json.loads, out.splitlines()):
            if "begins" in line:
                begun = line["begins"]
            else:
                rows.append(line)
        finished = rows[-1]["k"] + 1 if rows and rows[-1]["k"] >= first else first
        if finished < last and code:
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            outcome = "hang" if code == -signal.SIGPROF else "crash"
            rows.append({"k": begun, "kind": "", "outcome": outcome, "how": f"{name}\n{err[-2000:]}", "peak": 0})
            finished = begun + 1
        if finished == first:
            raise RuntimeError(f"a subprocess ended without a word: {err}")
        first = finished
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"))
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.worker:
        return work(settings.seed, *settings.worker)
    begin, kinds = time.monotonic(), samples()
    cuts = [*range(0, settings.mutations, CHUNK), settings.mutations]
    with ThreadPoolExecutor(settings.jobs) as pool:
        parts = pool.map(lambda k: run(settings.seed, cuts[k], cuts[k + 1]), range(len(cuts) - 1))
        rows = [row for part in parts for row in part]
    outcomes = ("read", "refused", "raised", "crash", "hang", "memory")
    names = list(kinds)
    counts = Counter((names[row["k"] % len(names)], row["outcome"]) for row in rows)
    print(f"{len(rows):,} damaged files, seed {settings.seed}, {time.monotonic() - begin:.0f} s")
    print(f"{'':14s}" + "".join(f"{outcome:>9s}" for outcome in outcomes))
    for name in names:
        print(f"{name:14s}" + "".join(f"{counts[name, outcome]:9,d}" for outcome in outcomes))
    totals = Counter(row["outcome"] for row in rows)
    print(f"{'all':14s}" + "".join(f"{totals[outcome]:9,d}" for outcome in outcomes))
    print(f"largest peak {max(row['peak'] for row in rows) / 1e6:,.0f} MB")
    bad = [row for row in rows if row["outcome"] not in ("read", "refused")]
    for row in bad:
        folder = settings.failures / f"{settings.seed}-{row['k']}-{row['outcome']}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in damaged(kinds, settings.seed, row["k"])[1].items():
            (folder / name).write_bytes(content)
        (folder / "how.txt").write_text(row["how"], encoding="utf-8")
    if bad:
        print(f"{len(bad)} failures are in {settings.failures}")
    sys.exit(1 if bad or len(rows) != settings.mutations else 0)


if __name__ == "__main__":
    main()
