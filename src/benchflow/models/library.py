"""LiteLLM, loaded when it is first needed, quietly and without asking the network for anything."""

from __future__ import annotations

import os
import threading
import warnings
from importlib.util import find_spec
from typing import Any, Final

from benchflow.models.failure import ModelFailure

_lock: Final = threading.Lock()  # the first two users may come at once


def require() -> None:
    """Raise `ModelFailure` when it is not installed."""
    if find_spec("litellm") is None:
        raise ModelFailure("Models need the extra models: pip install 'benchcube[models]'.", code="extra-missing")


def load() -> Any:
    """The module. It takes seconds the first time, so call it in a worker thread."""
    require()
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies, and not ours to mend
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        import litellm

        litellm.suppress_debug_info = True
        litellm.telemetry = False
        litellm.disable_aiohttp_transport = True
        litellm.drop_params = True
        _warm_up(litellm)
    return litellm


def _warm_up(litellm: Any) -> None:
    """Let it import and compile the rest of itself now, while its warnings are held back; nothing is sent."""
    question = [{"role": "user", "content": "ready?"}]
    litellm.completion(model="openai/none", messages=question, mock_response="ready", api_key="none")
