"""Starts the interpreter hook of the verifier's ground, then is the `encodings.aliases` of the interpreter."""

import sys

if sys.version_info >= (3, 6):
    sys.path.insert(0, "/run/verifier-ground/python")
    import verifier_ground  # type: ignore[import-not-found, unused-ignore] # there in a box

    verifier_ground.install()
    sys.path.remove("/run/verifier-ground/python")

import _frozen_importlib_external as _external

_native = _external.SourceFileLoader(__name__, __file__[: -len("/__init__.py")] + ".py")
exec(_native.get_code(__name__))  # type: ignore[arg-type] # noqa: S102 - the file that this one stands before
