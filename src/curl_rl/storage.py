"""Memory for a replay's frames: computed beforehand, refused when it is not there, and touched at once when it is."""

import errno
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from curl_rl.errors import UserError

_NUMPY_TYPES = {torch.uint8: np.uint8, torch.float32: np.float32}
_MEMINFO = Path("/proc/meminfo")
_MEMBERSHIPS = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


def allocate(shape: Sequence[int], dtype: torch.dtype, device: torch.device, path: Path | None = None) -> Tensor:
    """Zeros of this shape, every page of them really there, so that a lack shows now and not hours into a run.

    With a `path` the tensor is a file mapped into memory (CPU only): the operating system keeps as much of it in memory
    as it can spare.
    """
    size = math.prod(shape) * dtype.itemsize
    if path is not None:
        if device.type != "cpu":
            raise ValueError(f"a replay on {device} cannot be kept in the file {path}")
        return torch.from_numpy(_map_file(path, tuple(shape), dtype, size))
    available = available_bytes(device)
    if available is not None and size > available:
        raise UserError(
            f"the replay needs {gigabytes(size)} and {device} has {gigabytes(available)} free: "
            "choose a smaller replay capacity or fewer trials, or keep its frames in a file"
        )
    if device.type != "cpu":
        return torch.zeros(*shape, dtype=dtype, device=device)
    memory = np.empty(shape, _NUMPY_TYPES[dtype])  # numpy asks for huge pages, which torch does not
    memory.fill(0)  # not np.zeros, which leaves the pages to be found missing later
    return torch.from_numpy(memory)


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


def available_bytes(device: torch.device) -> int | None:
    """What can be allocated there now without swapping; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if not _MEMINFO.exists():  # not Linux
        return None
    lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    return min([int(lines["MemAvailable"].split()[0]) * 1024, *_control_group_bytes()])


def _control_group_bytes() -> Iterator[int]:
    """What each memory limit on this process leaves: its control group's, and those of the groups around it."""
    memberships = _MEMBERSHIPS.read_text().splitlines() if _MEMBERSHIPS.exists() else []
    for line in memberships:  # "0::/path" in version 2, "7:memory:/path" in version 1
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit_name, usage_name, cache_name = _CGROUPS, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root, limit_name, usage_name = _CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache_name = "total_inactive_file"
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(root):
                break
            try:
                limit = int((folder / limit_name).read_text())
                usage = int((folder / usage_name).read_text())
                statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            except (OSError, ValueError):
                continue  # no limit here ("max"), or a container shows only its own part of the tree
            # Cached files count as used, but give way when memory is wanted.
            yield max(0, limit - usage + int(statistics.get(cache_name, 0)))


def _map_file(path: Path, shape: tuple[int, ...], dtype: torch.dtype, size: int) -> np.ndarray:
    try:
        with open(path, "wb") as file:
            try:
                if hasattr(os, "posix_fallocate"):  # not on macOS
                    os.posix_fallocate(file.fileno(), 0, size)  # a sparse file would fail in the middle of a run
                else:
                    file.truncate(size)
            except OSError:
                path.unlink()
                raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            free = gigabytes(shutil.disk_usage(path.parent).free)
            raise UserError(
                f"the replay needs {gigabytes(size)} on the disk of {path}, which has {free} free: "
                "make room, or choose another place or a smaller replay capacity"
            ) from error
        raise UserError(f"the replay's file {path} cannot be made ({error.strerror}): choose another place") from error
    return np.memmap(path, _NUMPY_TYPES[dtype], "r+", shape=shape)
