"""Environments: `make(task)` gives a Gymnasium one for DMControl, Atari, anything of Gymnasium's, or a fake.

Importing this package imports no simulator: a worker pays only for the environments it holds.
"""

from curl_rl.envs.atari import AtariProtocol
from curl_rl.envs.fleet import EnvironmentLost, Fleet
from curl_rl.envs.seeds import episode_seed
from curl_rl.envs.spec import Description, EnvSpec, describe, make
from curl_rl.envs.tasks import ATARI26, DMC6, DMC16, DMC28, FAKE, Task, resolve

__all__ = [
    "ATARI26",
    "DMC6",
    "DMC16",
    "DMC28",
    "FAKE",
    "AtariProtocol",
    "Description",
    "EnvSpec",
    "EnvironmentLost",
    "Fleet",
    "Task",
    "describe",
    "episode_seed",
    "make",
    "resolve",
]
