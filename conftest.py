"""Keeps what tests write away from the user's own folders."""

import atexit
import os
import shutil
import tempfile

_cache = tempfile.mkdtemp(prefix="cube-cache-")
os.environ["CUBE_CACHE_DIR"] = _cache
atexit.register(shutil.rmtree, _cache, ignore_errors=True)
