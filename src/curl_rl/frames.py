"""A ring of frames for each trial, each frame once, from which stacks are gathered."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from curl_rl.storage import allocate


class FrameRing:
    """The newest `slots` frames of T trials. A frame has an absolute position, which never wraps; its remainder does.

    Before an episode's first frame a stack shows that frame again, or with `zeros_before_start` a row of zeros that is
    kept after the ring.
    """

    def __init__(
        self,
        trials: int,
        slots: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        zeros_before_start: bool,
        device: torch.device,
        path: Path | None = None,
    ) -> None:
        self.slots, self.shape, self.dtype, self.device = slots, shape, dtype, device
        self.zeros_before_start = zeros_before_start
        self.on_cpu = device.type == "cpu"
        self.rows = allocate((trials * (slots + 1), *shape), dtype, device, path).flatten(1)
        # A GPU's thread copies eight bytes at a time instead of one, where a frame's size allows.
        wide = self.rows.shape[1] * dtype.itemsize % 8 == 0
        self._wide_rows = self.rows.view(torch.int64) if wide else self.rows
        self._first_row = torch.arange(trials, device=device) * (slots + 1)

    def append(self, trials: np.ndarray, positions: np.ndarray, frames: np.ndarray | Tensor) -> None:
        """Write one frame at a position in each of some trials."""
        rows = torch.from_numpy(trials * (self.slots + 1) + positions % self.slots).to(self.device)
        flat = torch.as_tensor(frames).reshape(len(trials), -1)
        self.rows.index_copy_(0, rows, flat.to(self.device, self.dtype, non_blocking=True))

    def stacks(self, position: Tensor, age: Tensor, back: Tensor) -> Tensor:
        """Stacks of the frames `back` [k] steps before each position [T, ...], as [T, ..., k * C, H, W].

        `age` [T, ...] is how many frames before a position belong to the stack's past: the episode's first is the last.
        """
        position, age = position[..., None], age[..., None]
        if self.zeros_before_start:
            slot = torch.where(back > age, self.slots, (position - back) % self.slots)
        else:
            slot = (position - torch.minimum(back, age)) % self.slots
        rows = slot + self._first_row.view(-1, *[1] * (slot.dim() - 1))
        channels, *picture = self.shape
        return self._gather(rows.flatten()).view(*rows.shape[:-1], rows.shape[-1] * channels, *picture)

    def read(self, trial: int, start: int, stop: int) -> Tensor:
        """A copy on the CPU of the frames at positions start, ..., stop - 1."""
        rows = self._first_row[trial] + torch.arange(start, stop, device=self.device) % self.slots
        return self._gather(rows).view(-1, *self.shape).cpu()

    def write(self, trial: int, start: int, frames: Tensor) -> None:
        """Put frames at positions start, start + 1, ..."""
        rows = self._first_row[trial] + torch.arange(start, start + len(frames), device=self.device) % self.slots
        self.rows.index_copy_(0, rows, frames.to(self.device).flatten(1))

    def _gather(self, rows: Tensor) -> Tensor:
        if not self.on_cpu:
            return self._wide_rows.index_select(0, rows).view(self.dtype)
        # numpy, because its large arrays ask for huge pages: 60 MB in 6 ms, where torch spends 50 on page faults
        return torch.from_numpy(self.rows.numpy().take(rows.numpy(), axis=0))
