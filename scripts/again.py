"""Run the tests that failed in the last run once more, alone and in order; `make test` calls it.

Real sandboxes, engines and servers share few cores, and what fails beside others may pass without them. Many failures
are not a matter of load: then nothing is run, and the run has failed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

MOST = 10
_GROUP = re.compile(r"@[^@\]]*$")
"""What a distributed run adds to the name of a test."""


def main() -> int:
    record = Path(".pytest_cache/v/cache/lastfailed")
    failed = [_GROUP.sub("", name) for name in json.loads(record.read_text())] if record.is_file() else []
    if not 0 < len(failed) <= MOST:
        return 1
    print(f"\nOnce more, alone: {len(failed)} that failed", flush=True)
    command = [sys.executable, "-m", "pytest", "--hypothesis-profile=thorough", *failed]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
