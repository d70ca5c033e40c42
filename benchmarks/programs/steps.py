"""What the three steps do, the same for all: nothing, and in the recovery run the second one naps.

Only the standard library: peers run in an environment of their own.
"""

import os
import time
from pathlib import Path

NAMES = ("first", "second", "third")


def run(name: str, nap: float = 0.0) -> dict[str, str]:
    """Return a small result; with ``nap``, the second step records that it runs and sleeps."""
    if nap and name == "second":
        with Path(os.environ["BENCH_RUNS"]).open("a") as runs:
            runs.write(f"{os.getpid()}\n")
        time.sleep(nap)
    return {"step": name}
