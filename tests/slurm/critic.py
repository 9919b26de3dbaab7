"""A critic in small: announces itself, serves until the actor is done (or fails, if it was told to)."""

import os
import sys
import time
from pathlib import Path

from cluster.rendezvous import announce

run, *told = sys.argv[1:]
if told == ["fail"]:
    raise OSError("port 5567 is taken")
announce(run, "critic", port=5567, attempt=os.environ["ALIGNER_JOB_ATTEMPT"])
print("critic ready", flush=True)
deadline = time.monotonic() + 120
while not (Path(run) / "critic-stop").exists() and time.monotonic() < deadline:
    time.sleep(0.05)
