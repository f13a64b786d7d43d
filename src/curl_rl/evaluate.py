"""Evaluation: an agent, environments of its own, N episodes → returns.

Nothing of training is touched: not its environments, not its random numbers. Episode e of an evaluation at agent step s
has a seed made from (run seed, s, e), so its score depends neither on what ran before nor on what plays beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .envs import EnvSpec, Fleet, episode_seed

Act = Callable[[np.ndarray, int], np.ndarray]
"""(stacks [trials, environments, …], number of this decision) → actions [trials, environments, …]."""


@dataclass(frozen=True)
class Episode:
    """One finished episode."""

    score: float
    agent_steps: int
    frames: tuple[np.ndarray, ...] = ()
    """Its observations, where they were asked for."""


class FrameStacks:
    """The newest `depth` frames of each environment, oldest first along the first axis of a frame."""

    def __init__(self, count: int, depth: int, shape: tuple[int, ...], dtype: np.dtype, before_start: str):
        self._frames = np.zeros((count, depth, *shape), dtype)
        self._repeats = before_start == "repeat"

    def begin(self, which: np.ndarray, frames: np.ndarray) -> None:
        """An episode's first frame, after copies of itself or after zeros."""
        self._frames[which] = frames[which, None] if self._repeats else 0
        self._frames[which, -1] = frames[which]

    def push(self, frames: np.ndarray) -> None:
        self._frames[:, :-1] = self._frames[:, 1:].copy()
        self._frames[:, -1] = frames

    def array(self) -> np.ndarray:
        count, depth, channels, *rest = self._frames.shape
        return self._frames.reshape(count, depth * channels, *rest)


class Evaluator:
    """The evaluation environments of T trials, `width` for each, kept open between evaluations."""

    def __init__(self, specs: Sequence[EnvSpec], seeds: Sequence[int], frame_stack: int, width: int, workers: int):
        self.seeds, self.width = list(seeds), width
        self._specs = [spec for spec in specs for _ in range(width)]
        self._frame_stack, self._workers = frame_stack, workers
        self._fleet: Fleet | None = None

    def evaluate(self, act: Act, agent_step: int, episodes: int, keep_frames: bool = False) -> list[list[Episode]]:
        """For each trial its `episodes` finished episodes, in the order of their numbers.

        `keep_frames` keeps the observations of the very first.
        """
        if self._fleet is None:
            self._fleet = Fleet(self._specs, workers=self._workers)
        return _Round(self._fleet, self.seeds, self._frame_stack, agent_step, episodes, keep_frames).play(act)

    def close(self) -> None:
        if self._fleet is not None:
            self._fleet.close()
            self._fleet = None


class _Round:
    """One evaluation. An environment with no episode left plays on unheard, so that batches keep their shape."""

    def __init__(
        self, fleet: Fleet, seeds: list[int], frame_stack: int, agent_step: int, episodes: int, keep_frames: bool
    ):
        self.fleet, self.seeds, self.frame_stack = fleet, seeds, frame_stack
        self.agent_step, self.episodes = agent_step, episodes
        self.width = fleet.num_envs // len(seeds)
        self.number = np.full(fleet.num_envs, -1)  # of the episode that each environment plays; -1: unheard
        self.score, self.steps = np.zeros(fleet.num_envs), np.zeros(fleet.num_envs, int)
        self.begun = [0] * len(seeds)
        self.finished: list[dict[int, Episode]] = [{} for _ in seeds]
        self.kept: list[np.ndarray] | None = [] if keep_frames else None

    def play(self, act: Act) -> list[list[Episode]]:
        everyone = np.ones(self.fleet.num_envs, bool)
        frames = self._begin(everyone)
        stacks = FrameStacks(
            len(everyone), self.frame_stack, frames.shape[1:], frames.dtype, self.fleet.descriptions[0].before_start
        )
        stacks.begin(everyone, frames)
        decision = 0
        while True:
            if self.kept is not None and self.number[0] == 0:
                self.kept.append(frames[0])
            observations = stacks.array()
            actions = act(observations.reshape(len(self.seeds), self.width, *observations.shape[1:]), decision)
            frames, _, terminated, truncated, infos = self.fleet.step(actions.reshape(-1, *actions.shape[2:]))
            decision += 1
            self.score += infos["raw_reward"]
            self.steps += 1
            ended = terminated | truncated
            self._record(ended & (self.number >= 0))
            if all(len(done) == self.episodes for done in self.finished):
                return [[done[number] for number in sorted(done)] for done in self.finished]
            stacks.push(frames)
            if ended.any():
                stacks.begin(ended, self._begin(ended))

    def _record(self, ended: np.ndarray) -> None:
        for i in np.flatnonzero(ended):
            frames = tuple(self.kept or ()) if (i, self.number[i]) == (0, 0) else ()
            episode = Episode(float(self.score[i]), int(self.steps[i]), frames)
            self.finished[i // self.width][int(self.number[i])] = episode

    def _begin(self, which: np.ndarray) -> np.ndarray:
        """Reset the environments of the mask, each to the next episode of its trial."""
        seeds: list[int | None] = [None] * self.fleet.num_envs
        for i in np.flatnonzero(which):
            trial = i // self.width
            number = self.begun[trial]
            self.begun[trial] += 1
            self.number[i] = number if number < self.episodes else -1
            seeds[i] = episode_seed(self.seeds[trial], f"evaluate/{self.agent_step}", number)
        self.score[which], self.steps[which] = 0.0, 0
        return self.fleet.reset(seed=seeds, options={"reset_mask": which})[0]
