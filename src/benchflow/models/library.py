"""LiteLLM, imported on first use, without output and without network access."""

from __future__ import annotations

import os
import threading
import warnings
from importlib.util import find_spec
from typing import Any, Final

from benchflow.models.failure import ModelFailure

_lock: Final = threading.Lock()  # the first two callers may arrive at once


def require() -> None:
    """Raise `ModelFailure` if it is not installed."""
    if find_spec("litellm") is None:
        raise ModelFailure(
            "Models need the extra 'models'; install with: pip install 'benchcube[models]'", code="extra-missing"
        )


def load() -> Any:
    """The module. The first import takes seconds, so call it in a worker thread."""
    require()
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of its own dependencies
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        import litellm

        litellm.suppress_debug_info = True
        litellm.telemetry = False
        litellm.disable_aiohttp_transport = True
        litellm.drop_params = True
        _warm_up(litellm)
    return litellm


def _warm_up(litellm: Any) -> None:
    """Trigger its late imports now, while its warnings are suppressed; nothing is sent."""
    question = [{"role": "user", "content": "ready?"}]
    litellm.completion(model="openai/none", messages=question, mock_response="ready", api_key="none")
