"""One running local backend for the tests of a process, with a store of its own."""

import pytest


@pytest.fixture
def anyio_backend():
    return "asyncio"
