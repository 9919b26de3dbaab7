"""A critic in small: announces itself, serves until the actor is done, or fails where its options say so.

Like Triton it has a child in a session of its own.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from cluster.rendezvous import announce

run, *options = sys.argv[1:]
if options == ["fail"]:
    raise OSError("port 5567 is taken")
server = subprocess.Popen(["sleep", "600"], start_new_session=True)
announce(run, "critic", port=5567, attempt=os.environ["ALIGNER_JOB_ATTEMPT"])
print("critic ready", flush=True)
deadline = time.monotonic() + 120
while not (Path(run) / "critic-stop").exists() and time.monotonic() < deadline:
    time.sleep(0.05)
server.kill()
