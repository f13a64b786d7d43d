"""What a run shows besides numbers: a video of an episode, and its learning curve. Made from files and frames alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .log import read_rows

LONGEST_VIDEO = 250
"""Pictures in a video; of longer episodes every second one is shown, or every third, and so on."""


def write_gif(path: Path, frames: Sequence[np.ndarray], seconds_per_frame: float, scale: int = 1) -> None:
    """Frames, [H, W, 3] or [C, H, W] with one or three channels, as an animation."""
    from PIL import Image

    stride = -(-len(frames) // LONGEST_VIDEO)
    pictures = []
    for frame in frames[::stride]:
        if frame.shape[-1] != 3:  # channels first
            frame = np.broadcast_to(frame, (3, *frame.shape[1:])).transpose(1, 2, 0)
        picture = Image.fromarray(np.ascontiguousarray(frame))
        pictures.append(picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST))
    milliseconds = max(20, round(1000 * seconds_per_frame * stride))  # browsers slow down what is faster
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name("partial-" + path.name)
    pictures[0].save(partial, save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0)
    partial.replace(path)


def draw_curve(run: Path, title: str) -> bool:
    """RUN/curve.png from RUN/evaluations.jsonl; False where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("agg", force=False)
    from matplotlib.figure import Figure

    rows = read_rows(run / "evaluations.jsonl")
    steps, mean, std = (np.array([row[key] for row in rows], float) for key in ("env_steps", "mean", "std"))
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.fill_between(steps, mean - std, mean + std, alpha=0.2, linewidth=0)
    axes.plot(steps, mean, marker="o", markersize=3)
    axes.set(xlabel="env steps", ylabel="return of an episode (mean ± std)", title=title)
    axes.grid(alpha=0.3)
    partial = run / "partial-curve.png"
    figure.savefig(partial, dpi=120)
    partial.replace(run / "curve.png")
    return True
