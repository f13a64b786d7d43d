"""The uniform policy: the floor of every table, and the thinnest learner that the loop can drive."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .replay import Batch
from .rng import Purpose, integers, uniform


class RandomAgent:
    """Uniform actions for T trials; learns nothing and remembers nothing."""

    def __init__(self, action_shape: tuple[int, ...], action_counts: Sequence[int] | None = None):
        """`action_counts` are the actions of each trial's game; None for continuous actions."""
        self._shape, self._size = action_shape, math.prod(action_shape)
        self._counts = None if action_counts is None else torch.as_tensor(list(action_counts))[:, None]  # [T, 1]

    def acting_plan(self, stacks: int) -> dict[str, tuple[Purpose, int]]:
        return {"random_action": (Purpose.RANDOM_ACTION, stacks * self._size)}

    def learning_plan(self) -> dict[str, tuple[Purpose, int]]:
        return {}

    def learns_at(self, agent_step: int) -> bool:
        return False

    def act(self, stacks: Tensor, drawn: Mapping[str, Tensor], agent_step: int, explore: bool) -> Tensor:
        """Actions [T, n] or [T, n, A] for stacks [T, n, …]."""
        words = drawn["random_action"]  # [T, n·A]
        if self._counts is not None:
            return integers(words, self._counts.to(words.device))
        return 2 * uniform(words).reshape(*stacks.shape[:2], *self._shape) - 1  # every continuous task speaks [−1, 1]

    def update(self, batch: Batch, drawn: Mapping[str, Tensor], agent_step: int) -> dict[str, Tensor]:
        raise AssertionError("the random agent never learns")

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if state:
            raise ValueError(f"a random agent has no state, but the checkpoint holds {sorted(state)[:3]}")
