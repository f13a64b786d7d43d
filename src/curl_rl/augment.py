"""Pure functions on batches of images: uint8 in, uint8 out, and the randomness is an argument.

Images are [..., C, H, W] with any number of leading axes; each leading index has one box for all its channels, so the
frames of a stack move together. Randomness comes as `words`: integers in [0, 2^32) of shape [..., 2], by
`curl_rl.rng.words` or plainly `torch.randint(2**32, (len(images), 2))`.
"""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .rng import integers


def random_crop(images: Tensor, size: int, words: Tensor, offsets: Literal["all", "authors"] = "all") -> Tensor:
    """A random box of size × size from each image: the paper's augmentation.

    All (H − size + 1)(W − size + 1) boxes are equally likely. `offsets="authors"` never takes the last row or column of
    them, as the released code's exclusive bound does.
    """
    lasts = [side - size for side in images.shape[-2:]]
    counts = [last + 1 if offsets == "all" else max(last, 1) for last in lasts]
    corners = torch.stack([integers(words[..., axis], count) for axis, count in enumerate(counts)], dim=-1)
    return crop(images, size, corners)


def centre_crop(images: Tensor, size: int) -> Tensor:
    """The box of size × size in the middle (one pixel up and left of it where the margin is odd)."""
    top, left = (images.shape[-2] - size) // 2, (images.shape[-1] - size) // 2
    return images[..., top : top + size, left : left + size]


def random_shift(images: Tensor, pad: int, words: Tensor) -> Tensor:
    """Each image moved by up to `pad` pixels in both directions, its border repeated: DrQ's augmentation."""
    if images.shape[-2] != images.shape[-1]:
        raise ValueError(f"random_shift takes square images, not {images.shape[-2]} × {images.shape[-1]}.")
    return random_crop(replicate_pad(images, pad), images.shape[-1], words)


def replicate_pad(images: Tensor, pad: int) -> Tensor:
    """`pad` pixels more on each side, which repeat the border."""
    rows, columns = (torch.arange(-pad, n + pad, device=images.device).clamp(0, n - 1) for n in images.shape[-2:])
    return images.index_select(-2, rows).index_select(-1, columns)


def crop(images: Tensor, size: int, corners: Tensor) -> Tensor:
    """The box of size × size at each image's own (top, left): corners are int64 [..., 2]."""
    # On a CPU numpy copies a box row by row, PyTorch pixel by pixel: four times as long.
    take = _boxes_by_numpy if images.device.type == "cpu" else _boxes
    return take(images.flatten(0, -4), size, corners.flatten(0, -2)).unflatten(0, images.shape[:-3])


def _boxes(images: Tensor, size: int, corners: Tensor) -> Tensor:
    windows = images.unfold(2, size, 1).unfold(3, size, 1)  # every box of every image, as a view
    return windows[torch.arange(len(images), device=images.device), :, corners[:, 0], corners[:, 1]]


def _boxes_by_numpy(images: Tensor, size: int, corners: Tensor) -> Tensor:
    windows = np.lib.stride_tricks.sliding_window_view(images.numpy(), (size, size), (2, 3))
    top, left = corners.numpy().T
    return torch.from_numpy(windows[np.arange(len(images)), :, top, left])
