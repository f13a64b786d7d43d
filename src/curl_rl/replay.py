"""Replay of T trials in lockstep: every frame stored once; stacks and n-step returns are made when sampling.

Two rings per trial. The *frame ring* holds one frame per observation, in time's order, the last frame of an episode
included (it has no action: nothing follows it). The *transition ring* holds transition `j`, the j-th agent step, in
column `j % capacity`, with the position of its frame. Positions and transition numbers are absolute and never wrap;
only their remainders do. A stack is the `stack` frames that end at a position, reaching back no further than `age`, the
frames since the first of the episode. A life's end is an episode's end for returns, and none for the age.

    position   0  1  2  3  4  5  6  7
    frame      a0 a1 a2 a3 b0 b1 b2 b3   a3: last frame of the first episode; b3: pending, the agent acts on it now
    transition 0  1  2  -  3  4  5  (6)

Sampling has static shapes and never waits for a GPU. The bounds of what may be sampled are kept on the host as frames
arrive, and copied to the device; so every drawn index is valid by construction, and there is nothing to reject.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from curl_rl.frames import FrameRing
from curl_rl.priorities import Priorities
from curl_rl.rng import integers

Array = np.ndarray | Tensor
_TERMINATED, _TRUNCATED = 1, 2


class Batch(NamedTuple):
    """Sampled transitions; every tensor starts with [T, B]. `obs` and `next_obs` share memory: do not write."""

    obs: Tensor  # [T, B, stack * C, H, W], oldest frame first
    action: Tensor
    reward: Tensor  # sum of the next m rewards, discounted; m = n_step, or fewer where the episode ends
    next_obs: Tensor  # the stack m steps later; where the episode was cut off, its real last one
    discount: Tensor  # gamma^m to multiply the value of next_obs with; 0 after a termination
    weight: Tensor  # importance weight; 1 when sampling is uniform
    index: Tensor  # type: ignore[assignment]  # the transition's number, for update_priorities (hides tuple.index)


@dataclass(frozen=True)
class ReplaySpec:
    """What a trial's replay holds, and so what it costs."""

    frame_shape: tuple[int, ...]
    action_shape: tuple[int, ...]  # () for discrete actions
    capacity: int  # transitions
    stack: int = 1
    n_step: int = 1
    gamma: float = 0.99
    before_start: Literal["repeat", "zeros"] = "repeat"  # what the stack shows before an episode's first frame
    prioritised: bool = False
    frame_dtype: torch.dtype = torch.uint8
    action_dtype: torch.dtype = torch.float32
    end_frames: float = 0.03
    """Room for episodes' last frames, as a share of the capacity. Where episodes are shorter than 1 / end_frames agent
    steps on average, frames run out before transitions do, and the oldest transitions leave earlier."""

    def __post_init__(self) -> None:
        if self.capacity <= self.n_step:
            raise ValueError(f"a capacity of {self.capacity} holds no return over {self.n_step} steps")

    @property
    def slots(self) -> int:
        """Frames in the ring: never so few that a ready transition loses its frames, however short the episodes."""
        usual = self.capacity + math.ceil(self.capacity * self.end_frames)
        return max(usual, 2 * self.n_step + 2) + self.stack + 1

    def bytes_per_trial(self) -> int:
        frame = math.prod(self.frame_shape) * self.frame_dtype.itemsize
        action = math.prod(self.action_shape) * self.action_dtype.itemsize
        reward, ending, position, age, priority = 4, 1, 8, 1, 8 * self.prioritised
        return (self.slots + 1) * frame + self.capacity * (action + reward + ending + position + age + priority)


class Replay:
    """`begin` an episode, `add` a transition to every trial, `sample`. All trials have equally many transitions."""

    def __init__(
        self, spec: ReplaySpec, trials: int = 1, *, device: torch.device | str = "cpu", path: Path | None = None
    ) -> None:
        self.spec, self.trials = spec, trials
        self.device = torch.device(device)
        self._on_cpu = self.device.type == "cpu"
        ring = (trials, spec.capacity)
        zeros = spec.before_start == "zeros"
        self.frames = FrameRing(trials, spec.slots, spec.frame_shape, spec.frame_dtype, zeros, self.device, path)
        self.action = torch.zeros(*ring, *spec.action_shape, dtype=spec.action_dtype, device=self.device)
        self.reward = torch.zeros(ring, device=self.device)
        self.ending = torch.zeros(ring, dtype=torch.uint8, device=self.device)  # _TERMINATED | _TRUNCATED
        self.age = torch.zeros(ring, dtype=torch.uint8, device=self.device)  # min(frames since the first, stack - 1)
        self.position = torch.zeros(ring, dtype=torch.int64, device=self.device)
        held_back = spec.n_step  # the newest n are not drawn by priority, as in Data-Efficient Rainbow
        self.priorities = Priorities(trials, spec.capacity, held_back, self.device) if spec.prioritised else None

        # The host's view: what is where. On a CPU the tensors share its memory; a GPU gets a copy (see _append).
        self._cursor = np.zeros((4, trials), np.int64)
        self._head, self._head_age, self._oldest, self._count = self._cursor
        self._head -= 1
        self._waits_for_begin = np.ones(trials, bool)
        self._position = self.position.numpy() if self._on_cpu else np.zeros(ring, np.int64)
        self._cursor_tensor = torch.from_numpy(self._cursor)
        if not self._on_cpu:
            self._cursor_tensor = self._cursor_tensor.to(self.device)
        self._make_constants()

    def _make_constants(self) -> None:
        spec, device = self.spec, self.device
        self._trial_numbers = np.arange(self.trials)
        self._trial = torch.from_numpy(self._trial_numbers).to(device)
        self._ahead = torch.arange(spec.n_step, device=device)
        powers = torch.tensor([spec.gamma**i for i in range(spec.n_step + 1)], dtype=torch.float64)
        self._gamma_powers = powers.float().to(device)
        self._back = torch.arange(spec.stack, -1, -1, device=device)  # stack, ..., 1, 0

    @property
    def count(self) -> int:
        """Transitions stored so far, those that have left included: the number of the next one."""
        return int(self._count[0])

    @property
    def ready(self) -> bool:
        """Whether there is a transition to sample."""
        return self.count >= self.spec.n_step + self.spec.prioritised

    # ---------------------------------------------------------------- storing

    def begin(self, frames: Array, which: np.ndarray, continues: np.ndarray) -> None:
        """Start an episode with its first frame in the trials of the mask `which` (frames of the others are ignored).

        Where `continues`, the stack goes on across the border. An episode still running there ends as if truncated.
        """
        trials = np.flatnonzero(which)
        cut_off = trials[~self._waits_for_begin[trials]]
        if self.count and len(cut_off):
            self.ending[torch.from_numpy(cut_off), (self.count - 1) % self.spec.capacity] |= _TRUNCATED
        goes_on = np.asarray(continues)[trials] & (self._head[trials] >= 0)
        self._head_age[trials] = np.where(goes_on, self._next_age(self._head_age[trials]), 0)
        self._waits_for_begin[trials] = False
        self._append(frames[trials], trials)

    def add(self, action: Array, reward: Array, terminated: np.ndarray, truncated: np.ndarray, frames: Array) -> None:
        """Store one transition per trial: what was done on the current stack, and the frame that came of it."""
        if self._waits_for_begin.any():
            raise ValueError(f"begin() is missing in trials {np.flatnonzero(self._waits_for_begin).tolist()}")
        ending = np.asarray(terminated, np.uint8) * _TERMINATED | np.asarray(truncated, np.uint8) * _TRUNCATED
        column = self.count % self.spec.capacity
        self.action[:, column] = torch.as_tensor(action).to(self.device, non_blocking=True)
        self.reward[:, column] = torch.as_tensor(reward, dtype=torch.float32).to(self.device, non_blocking=True)
        self.ending[:, column] = torch.from_numpy(ending).to(self.device)
        self.age[:, column] = self._cursor_tensor[1].to(torch.uint8)
        self.position[:, column] = self._cursor_tensor[0]
        self._position[:, column] = self._head
        if self.priorities:
            self.priorities.add(self.count)
        self._count += 1
        self._head_age[:] = self._next_age(self._head_age)
        self._waits_for_begin[:] = ending != 0
        self._append(frames, self._trial_numbers)

    def _next_age(self, age: np.ndarray) -> np.ndarray:
        return np.minimum(age + 1, self.spec.stack - 1)

    def _append(self, frames: Array, trials: np.ndarray) -> None:
        """Put one frame per trial after the newest, and let go of the transitions whose frames that overwrites."""
        self._head[trials] += 1
        self.frames.append(trials, self._head[trials], frames)
        self._forget()
        if not self._on_cpu:
            self._cursor_tensor.copy_(torch.from_numpy(self._cursor), non_blocking=True)

    def _forget(self) -> None:
        """Move each trial's oldest transition past those whose place, or whose stack's first frame, is taken."""
        capacity = self.spec.capacity
        np.maximum(self._oldest, self._count - capacity, out=self._oldest)
        needed = self._head - self.spec.slots + self.spec.stack  # the oldest position whose whole stack is in the ring
        while True:
            column = self._oldest % capacity
            gone = np.flatnonzero((self._oldest < self._count) & (self._position[self._trial_numbers, column] < needed))
            if not len(gone):
                return
            if self.priorities:
                self.priorities.remove(torch.from_numpy(gone), torch.from_numpy(column[gone]))
            self._oldest[gone] += 1

    # ---------------------------------------------------------------- reading

    def stacks(self) -> Tensor:
        """The stacks that the agents act on now, [T, stack * C, H, W]."""
        head, age = self._cursor_tensor[0], self._cursor_tensor[1]
        return self.frames.stacks(head, age, self._back[1:])

    def sample(self, words: Tensor, beta: float | Tensor = 1.0) -> Batch:
        """One transition for each random word [T, B]; by priority, with weights of exponent `beta`, if so made."""
        if not self.ready:
            raise ValueError(f"{self.count} transitions are too few to sample returns over {self.spec.n_step} steps")
        oldest, count = self._cursor_tensor[2][:, None], self._cursor_tensor[3][:, None]
        if self.priorities:
            index, weight = self.priorities.sample(words, beta, count)
        else:
            index = oldest + integers(words, count - (self.spec.n_step - 1) - oldest)
            weight = torch.ones(index.shape, device=self.device)
        reward, discount, last = self._returns(index)
        obs, next_obs = self._observations(index, last)
        return Batch(obs, self._transitions(self.action, index), reward, next_obs, discount, weight, index)

    def update_priorities(self, index: Tensor, priority: Tensor) -> None:
        """Set the priorities (already raised to their exponent) of sampled transitions, [T, B]."""
        if self.priorities is None:
            raise ValueError("this replay samples uniformly and has no priorities")
        self.priorities.update(index, priority, self._cursor_tensor[2])

    def _transitions(self, field: Tensor, index: Tensor) -> Tensor:
        """The entries of a field [T, capacity, ...] for transition numbers [T, ...]."""
        row = (self._trial * self.spec.capacity).view(-1, *[1] * (index.dim() - 1)) + index % self.spec.capacity
        return field.flatten(0, 1)[row]

    def _returns(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Discounted reward of up to n steps, the bootstrap's discount, and the last step's number, each [T, B]."""
        steps = index[..., None] + self._ahead  # [T, B, n]
        ending = self._transitions(self.ending, steps)
        ended = (ending != 0).long()
        reached = ended.cumsum(-1) == ended  # no step before this one ended the episode
        taken = reached.sum(-1)  # m
        reward = (self._transitions(self.reward, steps) * reached * self._gamma_powers[:-1]).sum(-1)
        terminated = (ending * reached & _TERMINATED).amax(-1)
        return reward, self._gamma_powers[taken] * (1 - terminated.float()), index + taken - 1

    def _observations(self, index: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Stacks before the transition `index` and after the transition `last`, from one gather."""
        channels = self.spec.frame_shape[0] * self.spec.stack
        if self.spec.n_step == 1:  # the two share all frames but one: a window one frame longer holds both
            position, age = self._transitions(self.position, index), self._transitions(self.age, index).long()
            window = self.frames.stacks(position + 1, age + 1, self._back)  # [T, B, (stack + 1) * C, ...]
            return window[:, :, :channels], window[:, :, -channels:]
        edges = torch.stack([index, last], -1)
        after = self._ahead[:2]  # the frame at `index`, and the one that follows `last`
        position = self._transitions(self.position, edges) + after
        age = self._transitions(self.age, edges).long() + after
        both = self.frames.stacks(position, age, self._back[1:])
        return both[:, :, 0], both[:, :, 1]

    # ---------------------------------------------------------------- checkpoints

    def frame_range(self, trial: int) -> tuple[int, int]:
        """Absolute positions of the frames in the ring: from the oldest to before the end. They only ever grow."""
        end = int(self._head[trial]) + 1
        return max(0, end - self.spec.slots), end

    def frames_between(self, trial: int, start: int, stop: int) -> Tensor:
        """A copy on the CPU of the frames at absolute positions start, ..., stop - 1."""
        return self.frames.read(trial, start, stop)

    def write_frames(self, trial: int, start: int, frames: Tensor) -> None:
        """Put back frames at absolute positions from `start` on."""
        self.frames.write(trial, start, frames)

    def state(self) -> dict[str, Tensor]:
        """Everything but the frames, on the CPU, every tensor [T, ...]; transitions in time's order."""
        numbers = torch.arange(max(0, self.count - self.spec.capacity), self.count, device=self.device)
        state = {name: ring[:, numbers % self.spec.capacity].cpu() for name, ring in self._rings()}
        state["cursor"] = torch.from_numpy(self._cursor.T.copy())
        state["waits_for_begin"] = torch.from_numpy(self._waits_for_begin.copy())
        if self.priorities:
            state["maximum"] = self.priorities.maximum.cpu().clone()
            state["waiting"] = self.priorities.waiting.cpu().clone()
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take over a state of as many trials and the same spec, whose capacity may have grown; without frames."""
        stored = state["reward"].shape[1]
        if stored > self.spec.capacity:
            raise ValueError(f"{stored} stored transitions do not fit into a replay of {self.spec.capacity}")
        self._cursor[:] = state["cursor"].numpy().T
        self._cursor_tensor.copy_(torch.from_numpy(self._cursor))
        self._waits_for_begin[:] = state["waits_for_begin"].numpy()
        columns = torch.arange(self.count - stored, self.count) % self.spec.capacity
        for name, ring in self._rings():
            ring.zero_()
            ring[:, columns.to(self.device)] = state[name].to(self.device)
        self._position[:, columns.numpy()] = state["position"].numpy()
        if self.priorities:
            self.priorities.maximum.copy_(state["maximum"])
            self.priorities.waiting.copy_(state["waiting"])

    def _rings(self) -> Iterable[tuple[str, Tensor]]:
        """The per-transition tensors [T, capacity, ...] by name."""
        for name in ("action", "reward", "ending", "age", "position"):
            yield name, getattr(self, name)
        if self.priorities:
            yield "mass", self.priorities.mass
