"""The machine a run goes on: its device, cores, memory and versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import __version__
from .envs import gl
from .errors import UserError

PACKAGES = ("torch", "numpy", "gymnasium", "ale-py", "dm-control", "mujoco", "opencv-python-headless", "safetensors")


def choose_device(name: str) -> str:
    """`auto` is the first GPU, or the CPU where there is none."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise UserError(f"--device {name} is not a device; it takes auto, cpu, cuda or cuda:N.")
    if name.startswith("cuda"):
        count, index = torch.cuda.device_count(), int(name.partition(":")[2] or 0)
        if index >= count:
            found = f"only {count} GPU{'s' if count > 1 else ''}" if count else "no GPU that this PyTorch can use"
            raise UserError(f"--device {name} is not here: there is {found}; try --device cpu, or `curl-rl doctor`.")
    return name


def facts(device: str, threads: int, command: str, draws: bool) -> dict[str, Any]:
    """All that exact repetition depends on, and what a reader of results wants to know.

    Where DMControl `draws` its pictures, by OpenGL, that is one of these things.
    """
    import torch

    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    drawn_by = asdict(gl.choose()) if draws else None
    machine = {"gpu": gpu, "cpu": cpu_name(), "threads": threads, "opengl": drawn_by}
    return {"command": command, **machine, "versions": versions()}


def versions() -> dict[str, Any]:
    """Everything that a number may depend on."""
    found: dict[str, Any] = {"curl-rl": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    found["git"] = _git_commit()
    return found


def _git_commit() -> str | None:
    """The commit of this package's own checkout, with a plus where files differ from it."""
    here = Path(__file__).parent
    try:
        call = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--exclude=*"]
        done = subprocess.run(call, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    inside = done.returncode == 0 and not any(part in ("site-packages", "dist-packages") for part in here.parts)
    return done.stdout.strip() if inside else None


def cpu_name() -> str:
    """The processor's model, as the system calls it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
