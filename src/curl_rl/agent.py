"""A trained agent apart from its run: exported as one file, loaded and played in a few lines.

agent = curl_rl.load("agent.safetensors")
env = agent.make_env()
observation, _ = env.reset(seed=0)
agent.begin()
observation, reward, *_ = env.step(agent.act(observation))
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors

from .build import environment_spec, open_run
from .config import Config, SACConfig, from_json, to_json
from .errors import UserError
from .evaluate import FrameStacks
from .log import disk_error, replace_file
from .population import Population
from .sac import SAC
from .tuning import resolve_precision

FORMAT = "curl-rl agent, version 1"


class Agent:
    """The deterministic policy of one trial, and the stack of frames that it sees."""

    def __init__(self, network: SAC, config: Config, card: dict[str, Any]):
        self.network, self.config, self.card = network.eval(), config, card
        self._stacks: FrameStacks | None = None
        self._first = True

    def make_env(self, **changes: Any) -> gymnasium.Env:
        """The environment that it was trained for, as evaluation sees it; `EnvSpec` has the fields one may change."""
        return dataclasses.replace(environment_spec(self.config), training=False, **changes).make()

    def begin(self) -> None:
        """The next observation is an episode's first."""
        self._first = True

    def act(self, observation: np.ndarray) -> np.ndarray:
        """The action for the newest observation, as the environment gives it."""
        if self._stacks is None:
            depth, before_start = self.config.env.frame_stack, self.card["before_start"]
            self._stacks = FrameStacks(1, depth, observation.shape, observation.dtype, before_start)
        if self._first:
            self._stacks.begin(np.ones(1, bool), observation[None])
        else:
            self._stacks.push(observation[None])
        self._first = False
        with torch.no_grad():
            return self.network.act(torch.from_numpy(self._stacks.array()))[0].float().numpy()


def export(run: Path, file: Path) -> None:
    """The newest agent of a run as FILE (safetensors, its card inside) and FILE's card as JSON beside it."""
    with open_run(run) as parts:
        learner, config = parts.learner, parts.config
        if not isinstance(learner, Population):
            raise UserError(f"{run} holds a random agent, and there is nothing in it to export.")
        network = learner.trial(0)
        card = {
            "format": FORMAT,
            "config": to_json(config),
            "observation_shape": list(network.observation_shape),
            "actions": network.actions,
            "before_start": parts.fleet.descriptions[0].before_start,
            "env_steps": parts.env_steps,
            "evaluation": parts.last_evaluation,
            "versions": parts.versions,
        }
    tensors = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, file) from error
    replace_file(file, save_tensors(tensors, metadata={"card": json.dumps(card)}))
    replace_file(file.with_suffix(".json"), (json.dumps(card, indent=2) + "\n").encode())


def load(file: str | Path) -> Agent:
    """The agent in a file that `curl-rl export` wrote; nothing else is needed, and nothing in the file can run code."""
    try:
        with safe_open(str(file), framework="pt") as content:
            card = json.loads((content.metadata() or {}).get("card", "null"))
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118  (no dict)
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"{file} is not a file of tensors that can be read ({error}).") from error
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise UserError(f"{file} holds no agent of curl-rl; `curl-rl export RUN FILE` writes one.")
    config = from_json(Config, card["config"], f"the config in {file}")
    if not isinstance(config.agent, SACConfig):
        raise UserError(f"{file} holds an agent of a kind that cannot be loaded: {type(config.agent).__name__}.")
    arithmetic = resolve_precision(config.agent.precision, "cpu")
    network = SAC(config.agent, tuple(card["observation_shape"]), card["actions"], config.seed, arithmetic)
    network.load_state_dict(tensors)
    return Agent(network, config, card)
