"""What tests of the client of models share."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture
def dropped_clients() -> Iterator[None]:
    """The client keeps connections whose event loop has ended: they are dropped here, not in a later test."""
    yield
    import litellm

    litellm.in_memory_llm_clients_cache.flush_cache()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
