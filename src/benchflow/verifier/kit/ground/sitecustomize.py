"""Starts the interpreter hook of the verifier's ground, then the environment's own `sitecustomize`, if it has one."""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))

if sys.version_info >= (3, 6):
    sys.path.insert(0, _HERE)
    import verifier_ground  # type: ignore[import-not-found, unused-ignore] # beside this file in a box

    verifier_ground.install()
sys.path[:] = [entry for entry in sys.path if entry != _HERE]
del sys.modules[__name__]
try:
    import sitecustomize  # type: ignore[import-not-found, unused-ignore] # noqa: F401 - the next one on the path
except ImportError:
    sys.modules[__name__] = type(sys)(__name__)
