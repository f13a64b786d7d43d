"""curl-rl: sample-efficient reinforcement learning from pixels around one contrastive objective (CURL).

Importing the package imports nothing heavy: names are resolved on first use, so that environment workers,
which import only `curl_rl.envs`, never pay for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what an editor and a type checker see
    from .agent import Agent as Agent
    from .agent import load as load
    from .augment import centre_crop as centre_crop
    from .augment import random_crop as random_crop
    from .augment import random_shift as random_shift
    from .build import train as train
    from .contrastive import Contrastive as Contrastive
    from .contrastive import info_nce as info_nce
    from .contrastive import momentum_copy as momentum_copy
    from .contrastive import momentum_update as momentum_update
    from .envs import make as make
    from .presets import configure as configure

__version__ = "0.1.0"

_HOME = {
    "Agent": "agent",
    "load": "agent",
    "centre_crop": "augment",
    "random_crop": "augment",
    "random_shift": "augment",
    "train": "build",
    "Contrastive": "contrastive",
    "info_nce": "contrastive",
    "momentum_copy": "contrastive",
    "momentum_update": "contrastive",
    "make": "envs",
    "configure": "presets",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"curl_rl.{_HOME[name]}"), name)
    raise AttributeError(f"module 'curl_rl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
