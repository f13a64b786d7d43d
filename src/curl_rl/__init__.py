"""curl-rl: sample-efficient reinforcement learning from pixels around one contrastive objective (CURL).

Importing the package imports nothing heavy: names are resolved on first use, so that environment workers,
which import only `curl_rl.envs`, never pay for PyTorch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_LAZY = {"make": "curl_rl.envs"}
__all__ = ["__version__", "make"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'curl_rl' has no attribute {name!r}")
