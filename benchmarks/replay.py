"""What sampling costs, beside a buffer that stores both stacks: `python benchmarks/replay.py [--device cuda] [--json]`.

Also compares three ways to draw by priority: one cumulative sum over all trials in a row (ours), one per trial, and
sums of blocks that each update refreshes.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from curl_rl.priorities import Priorities
from curl_rl.replay import Replay, ReplaySpec
from curl_rl.rng import Purpose, words

DMCONTROL = ReplaySpec((3, 100, 100), (6,), 100_000, stack=3)
ATARI = ReplaySpec(
    (1, 84, 84),
    (),
    100_000,
    stack=4,
    n_step=20,
    before_start="zeros",
    prioritised=True,
    action_dtype=torch.int64,
    end_frames=0.05,
)
Row = dict[str, str | int | float]


def milliseconds(runs: dict[str, Callable[[], object]], device: str, seconds: float) -> dict[str, float]:
    """Median time of one call of each, taken in turns, so that all meet the same machine."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[next(iter(runs))]) < 10:
        for name, run in runs.items():
            synchronize()
            start = time.perf_counter()
            run()
            synchronize()
            times[name].append(time.perf_counter() - start)
    return {f"{name}_ms": median(taken[len(taken) // 5 :]) * 1e3 for name, taken in times.items()}


class StackedBuffer:
    """Both stacks of each transition stored whole and drawn uniformly, with the n-step return already in place."""

    def __init__(self, spec: ReplaySpec) -> None:
        shape = (spec.capacity, spec.frame_shape[0] * spec.stack, *spec.frame_shape[1:])
        self.obs, self.next_obs = np.full(shape, 1, np.uint8), np.full(shape, 1, np.uint8)
        self.action = np.zeros((spec.capacity, *spec.action_shape), np.float32)
        self.reward = np.zeros(spec.capacity, np.float32)
        self.random = np.random.default_rng(0)

    def sample(self, batch: int) -> list[Tensor]:
        index = self.random.integers(0, len(self.reward), batch)
        return [torch.from_numpy(field[index]) for field in (self.obs, self.next_obs, self.action, self.reward)]


def filled(spec: ReplaySpec, device: str) -> tuple[Replay, float]:
    """A full replay of episodes of 125 steps, and the microseconds that one step took to store."""
    replay, no = Replay(spec, device=device), np.zeros(1, bool)
    frame = np.full((1, *spec.frame_shape), 1, np.uint8)
    action, reward = np.zeros((1, *spec.action_shape), np.float32), np.zeros(1, np.float32)
    replay.begin(frame, ~no, no)
    start = time.perf_counter()
    for step in range(1, spec.capacity + 1):
        ended = np.array([step % 125 == 0])
        replay.add(action, reward, no, ended, frame)
        if ended:
            replay.begin(frame, ended, no)
    return replay, (time.perf_counter() - start) / spec.capacity * 1e6


def sampling(name: str, spec: ReplaySpec, batch: int, capacity: int, device: str) -> Row:
    smaller = replace(spec, capacity=capacity)
    replay, add_us = filled(smaller, device)
    naive = StackedBuffer(smaller)
    drawn = words([1], 1, Purpose.SAMPLE, batch, device=device)
    index = replay.sample(drawn).index
    priority = torch.rand(index.shape, device=device)
    if spec.prioritised:
        replay.update_priorities(index, priority)

    runs: dict[str, Callable[[], object]] = {
        "sample": lambda: replay.sample(drawn, 0.4),
        "naive_sample": lambda: naive.sample(batch),
        "stacks": replay.stacks,
    }
    if spec.prioritised:
        runs["update_priorities"] = lambda: replay.update_priorities(index, priority)
    stack = int(np.prod(spec.frame_shape)) * spec.stack
    return {
        "replay": name,
        "batch": batch,
        **milliseconds(runs, device, 4.0),
        "add_us": add_us,
        "gigabytes_for_100k": spec.bytes_per_trial() / 1e9,
        "naive_gigabytes_for_100k": 2 * stack * spec.capacity / 1e9,
    }


# ---------------------------------------------------------------- ways to draw by priority


class OneRow(Priorities):
    """Ours."""

    def fill(self, mass: Tensor) -> None:
        self.mass[:, : mass.shape[1]] = mass


class RowByRow(OneRow):
    """One cumulative sum per trial."""

    def sample(self, words: Tensor, beta: float | Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        cumulative = self.mass.cumsum(1)
        column = torch.searchsorted(cumulative, targets(words, cumulative[:, -1:]), right=True)
        return self._drawn(column, beta, count)

    def _drawn(self, column: Tensor, beta: float | Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        mass = self.mass.gather(1, column)
        weight = (mass.amin(1, keepdim=True) / mass).pow(beta).float()
        return count - 1 - (count - 1 - column) % self.capacity, weight


class Blocks(RowByRow):
    """Sums of blocks, refreshed by each update; a draw searches the blocks and then one block."""

    def __init__(self, trials: int, capacity: int, held_back: int, device: torch.device, size: int = 512) -> None:
        super().__init__(trials, -(-capacity // size) * size, held_back, device)
        self.size = size

    def fill(self, mass: Tensor) -> None:
        super().fill(mass)
        self.sums = self._blocks().sum(-1)

    def _blocks(self) -> Tensor:
        return self.mass.view(self.trials, -1, self.size)

    def update(self, number: Tensor, priority: Tensor, oldest: Tensor) -> None:
        super().update(number, priority, oldest)
        block = number % self.capacity // self.size
        touched = self._blocks().gather(1, block[..., None].expand(-1, -1, self.size)).sum(-1)
        self.sums.scatter_(1, block, touched)

    def sample(self, words: Tensor, beta: float | Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        cumulative = self.sums.cumsum(1)
        target = targets(words, cumulative[:, -1:])
        block = torch.searchsorted(cumulative, target, right=True)
        left = target - F.pad(cumulative, (1, 0)).gather(1, block)
        inside = self._blocks().gather(1, block[..., None].expand(-1, -1, self.size)).cumsum(-1)
        column = block * self.size + (inside <= left[..., None]).sum(-1)
        return self._drawn(column, beta, count)


def targets(words: Tensor, total: Tensor) -> Tensor:
    batch = words.shape[1]
    segment = torch.arange(batch, dtype=torch.float64, device=words.device)
    return (total * ((segment + words.double() * 2.0**-32) / batch)).long()


def drawing(trials: int, capacity: int, device: str) -> list[Row]:
    """Time of one draw of 32 and one update of 32, for each way; all must draw the same."""
    mass = torch.randint(1, 2**24, (trials, capacity), device=device)
    priority = torch.rand(trials, 32, device=device)
    oldest = torch.zeros(trials, dtype=torch.int64, device=device)
    count = torch.full((1, 1), capacity, device=device)
    drawn = words(range(trials), 1, Purpose.SAMPLE, 32, device=device)
    draws: dict[str, Callable[[], object]] = {}
    updates: dict[str, Callable[[], object]] = {}
    samples: list[Tensor] = []
    for kind in (OneRow, RowByRow, Blocks):
        way = kind(trials, capacity, 0, torch.device(device))
        way.fill(mass)
        samples.append(way.sample(drawn, 0.4, count)[0])
        draws[kind.__name__] = partial(way.sample, drawn, 0.4, count)
        updates[kind.__name__] = partial(way.update, samples[0], priority, oldest)
    assert all(torch.equal(sampled, samples[0]) for sampled in samples)
    return [
        {"by priority": what, "trials": trials, **milliseconds(runs, device, 2.0)}
        for what, runs in (("draw", draws), ("update", updates))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--capacity", type=int, default=20_000, help="of the buffers timed; the naive one takes 3.6 GB at 20,000"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = [
        sampling("DMControl", DMCONTROL, 512, options.capacity, options.device),
        sampling("Atari", ATARI, 32, options.capacity, options.device),
        *[row for trials in (1, 26, 130) for row in drawing(trials, 100_000, options.device)],
    ]
    if options.json:
        print(json.dumps({"device": options.device, "threads": options.threads, "rows": found}))
        return
    for row in found:
        print(
            "  ".join(
                f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
        )


if __name__ == "__main__":
    main()
