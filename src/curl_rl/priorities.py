"""Proportional priorities of the newest transitions of T trials, sampled exactly.

A priority is kept as a whole number of units of 2^-22. Sums of integers are exact in any order, and the guarantees rest
on that: a drawn index always has a priority, no rounding can move it past the end or onto an empty place, a trial draws
the same alone or beside others, on a CPU or a GPU, and nothing drifts over a long run.

The structure is the plainest one: all trials' priorities in one row, a cumulative sum, a binary search. On two cores,
for one trial of 100,000 transitions and 32 draws, a draw takes 0.06 ms and an update 0.02; with sums of blocks of 512,
which an update must refresh, 0.07 and 0.05 (benchmarks/replay.py). Blocks win only for many trials on a CPU, which is
not where many are trained; a tree needs several operations per level. One row for all trials, because PyTorch on CUDA
scans one long row with the whole device in a single pass, but gives each of several rows to one block of threads.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_UNITS = 2.0**22
_LARGEST = 2**34  # a priority of 4,096; larger ones count as this
_SUM_LIMIT = 2**62


class Priorities:
    """The transition with number `j` lives in column `j % capacity`; the newest `held_back` ones are not drawn."""

    def __init__(self, trials: int, capacity: int, held_back: int, device: torch.device) -> None:
        if trials * capacity * _LARGEST > _SUM_LIMIT:
            raise ValueError(f"{trials} x {capacity} transitions are more than their priorities' sum can hold")
        self.trials, self.capacity, self.held_back = trials, capacity, held_back
        self.mass = torch.zeros(trials, capacity, dtype=torch.int64, device=device)  # 0 = must not be drawn
        self.maximum = torch.full((trials,), int(_UNITS), dtype=torch.int64, device=device)  # starts at 1, never decays
        self.waiting = torch.zeros(trials, held_back + 1, dtype=torch.int64, device=device)  # masses of the held back
        self._row = torch.arange(trials, device=device)[:, None] * capacity

    def add(self, number: int) -> None:
        """Enter transition `number` at the running maximum, and let the one that is now old enough be drawn."""
        self.mass[:, number % self.capacity] = 0
        places = self.held_back + 1
        self.waiting[:, number % places] = self.maximum
        released = number - self.held_back
        if released >= 0:
            self.mass[:, released % self.capacity] = self.waiting[:, released % places]

    def remove(self, trials: Tensor, columns: Tensor) -> None:
        """Let nothing draw what lies in these columns of these trials."""
        self.mass[trials, columns] = 0

    def sample(self, words: Tensor, beta: float | Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Draw one transition from each of B equal segments of the priorities' sum: numbers and weights, [T, B].

        Weights are (N p / sum of p)^-beta over their maximum in the batch, that is (smallest drawn p / p)^beta.
        """
        cumulative = self.mass.view(-1).cumsum(0)
        ends = cumulative.view(self.trials, self.capacity)[:, -1:]
        starts = F.pad(ends[:-1], (0, 0, 1, 0))
        batch = words.shape[1]
        segment = torch.arange(batch, dtype=torch.float64, device=words.device)
        # At most 1 - 2^-32 / B: so far below 1 that no rounding of the product, of 53 bits, reaches the end.
        fraction = (segment + words.double() * 2.0**-32) / batch
        target = starts + ((ends - starts) * fraction).long()
        # The first place whose cumulative sum is *greater*: it has a mass of its own, also for a target of 0.
        column = torch.searchsorted(cumulative, target, right=True) - self._row
        mass = self.mass.gather(1, column)
        weight = (mass.amin(1, keepdim=True) / mass).pow(beta).float()
        newest = count - 1
        return newest - (newest - column) % self.capacity, weight

    def update(self, number: Tensor, priority: Tensor, oldest: Tensor) -> None:
        """Set priorities, [T, B]. Of a transition drawn twice the larger one counts; one that has left is ignored."""
        column = number % self.capacity
        # Not a number, from a trial that failed, must not disturb its neighbours in the sum. At least one unit, so that
        # a trial always has something to draw.
        units = torch.nan_to_num(priority.float() * _UNITS).clamp(1, _LARGEST).long()
        units = torch.where(number < oldest[:, None], self.mass.gather(1, column), units)
        self.mass.scatter_(1, column, 0).scatter_reduce_(1, column, units, "amax")
        torch.maximum(self.maximum, units.amax(1), out=self.maximum)  # in place: a captured graph knows its address
