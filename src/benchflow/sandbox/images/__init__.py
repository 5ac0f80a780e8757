"""Environment images of the local backend: layers, named images, and the Dockerfile builder."""

from benchflow.sandbox.images.builder import BuildOptions, DockerfileBuilder, RunLayer
from benchflow.sandbox.images.registry import ImageRecord, ImageRegistry
from benchflow.sandbox.images.run_step import RunStep
from benchflow.sandbox.images.store import LayerStore

__all__ = [
    "BuildOptions",
    "DockerfileBuilder",
    "ImageRecord",
    "ImageRegistry",
    "LayerStore",
    "RunLayer",
    "RunStep",
]
