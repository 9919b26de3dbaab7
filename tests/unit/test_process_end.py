"""The end of a process that leaves its memory to the system: open files are written whatever else is open."""

import subprocess
import sys

import pytest

END = """
import io, os, sys
from aligner_lib.jobs.process_end import leave_memory

class Response(io.RawIOBase):  # as http.client.HTTPResponse, once it was read
    def fileno(self):
        return self.fp.fileno()

{before}
written = open(sys.argv[1], "w")
written.write("the last line")
leave_memory(3)
"""


@pytest.mark.parametrize(
    "before",
    [
        "",
        "sys.stdout = None",
        "response = Response()",
        "closed = open(os.devnull); closed.close()",
        # a full pipe that nobody reads would block a flush for ever
        "pipe = os.fdopen(os.pipe()[1], 'w', 200_000); pipe.write('x' * 150_000)",
    ],
    ids=["nothing", "no stdout", "a stream without a file", "a closed file", "a full pipe"],
)
def test_the_process_writes_its_files_and_ends_with_its_status(tmp_path, before):
    file = tmp_path / "file"
    ended = subprocess.run(
        [sys.executable, "-c", END.format(before=before), file], stderr=subprocess.PIPE, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (3, b"")
    assert file.read_text() == "the last line"
