"""Images from registries: the OCI distribution protocol, spoken directly; no engine is needed.

`obtain_image` gives an image of the local store and pulls it as the policy says; `pull_image` always asks the registry.
"""

from benchflow.sandbox.images.distribution.pull import ImageUnavailable, obtain_image, pull_image
from benchflow.sandbox.images.distribution.reference import Reference, parse_reference
from benchflow.sandbox.pulling import Credentials, PullPolicy, PullProgress, PullSettings

__all__ = [
    "Credentials",
    "ImageUnavailable",
    "PullPolicy",
    "PullProgress",
    "PullSettings",
    "Reference",
    "obtain_image",
    "parse_reference",
    "pull_image",
]
