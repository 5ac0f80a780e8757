"""Environment images of the local backend: layers, named images, and the Dockerfile builder."""

from benchflow.sandbox.images.build.builder import BuildOptions, DockerfileBuilder, RunLayer
from benchflow.sandbox.images.build.run_step import RunStep
from benchflow.sandbox.images.image_registry import ImageRecord, ImageRegistry
from benchflow.sandbox.images.layer_store import LayerStore

__all__ = [
    "BuildOptions",
    "DockerfileBuilder",
    "ImageRecord",
    "ImageRegistry",
    "LayerStore",
    "RunLayer",
    "RunStep",
]
