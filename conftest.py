"""Keeps what tests write away from the user's own folders, and lets the processes they start be interrupted."""

import atexit
import os
import shutil
import signal
import tempfile

_cache = tempfile.mkdtemp(prefix="cube-cache-")
os.environ["CUBE_CACHE_DIR"] = _cache
atexit.register(shutil.rmtree, _cache, ignore_errors=True)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in the background ignores interrupts, and so would everything the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
