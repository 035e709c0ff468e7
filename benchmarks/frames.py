"""Time and memory to turn a table of ten million events into transitions.

    python benchmarks/frames.py [--rows 10000000]

Each method runs in a separate process, whose processor time and peak memory are printed. ``bare`` is the same process
when it only reads the file (or frame) with pandas, as a user would have done anyway. The table is unsorted, with a
million users, dates in ISO 8601, twenty pages and two groups; sessions end after half an hour. The target is one minute
and 2 GB.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

PAGES = [f"page {k}" for k in range(20)]
NAMES = {"id": "user", "time": "at", "state": "page", "gap": "30min", "group": "arm"}


def write(path: Path, rows: int) -> None:
    """Write the same events as .csv, .csv.gz and .parquet."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    at = np.datetime64("2026-01-01", "s") + rng.integers(0, 90 * 86400, rows).astype("timedelta64[s]")
    user = rng.integers(0, max(1, rows // 10), rows)
    page, arm = (pa.DictionaryArray.from_arrays(codes.astype(np.int8), names).cast(pa.string())
                 for codes, names in ((rng.integers(0, 20, rows), PAGES), (user % 2, ["a", "b"])))  # fmt: skip
    table = pa.table({"page": page, "at": at, "user": user, "arm": arm})
    pyarrow.parquet.write_table(table, path / "events.parquet")
    pyarrow.csv.write_csv(table, path / "events.csv")
    with pa.output_stream(str(path / "events.csv.gz"), compression="gzip") as out:
        pyarrow.csv.write_csv(table, out)


def work(way: str, path: Path) -> None:
    """Run one method in this process; print its processor time in seconds and its peak memory in bytes."""
    import pandas as pd

    import diffbisim as db

    begin = time.process_time()
    if way == "bare csv":
        pd.read_csv(path / "events.csv", parse_dates=["at"])
    elif way == "bare parquet":
        pd.read_parquet(path / "events.parquet")
    elif way == "frame":
        frame = pd.read_parquet(path / "events.parquet")
        begin = time.process_time()
        groups = db.Transitions.from_frame(frame, **NAMES)
    else:
        groups = db.read_transitions(path / f"events.{way}", **NAMES)
    took = time.process_time() - begin
    if not way.startswith("bare"):
        for data in groups.values():
            data.chain()
    print(took, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10**7)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.worker:
        way, folder = settings.worker
        return write(Path(folder), settings.rows) if way == "write" else work(way, Path(folder))
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, __file__, "--rows", str(settings.rows), "--worker", "write", folder], check=True
        )
        print(f"{settings.rows:,} rows{'':12s}processor time   peak of memory")
        for way in ("frame", "parquet", "csv", "csv.gz", "bare csv", "bare parquet"):
            done = subprocess.run(
                [sys.executable, __file__, "--worker", way, folder], capture_output=True, text=True, check=True
            )
            seconds, peak = map(float, done.stdout.split())
            ours = not way.startswith("bare")
            failed |= ours and (seconds > 60 or peak > 2 * 2**30)
            print(f"{way:20s}{seconds:16.1f} s{peak / 2**30:14.2f} GB")
    sys.exit(failed)


if __name__ == "__main__":
    main()
