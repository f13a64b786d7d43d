"""What this machine can do, and how a process should be set up to make use of it."""

import ctypes
import platform
from typing import Literal

import torch

# <malloc.h> of glibc
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def tune_process() -> None:
    """Call once at the start of a training process: it changes how long things take, and nothing else but denormals.

    Activations are tens of megabytes. By default glibc maps each such block anew and returns it to the system at once,
    so that every one of its pages faults again; told to keep what it has, it reuses them. Other C libraries are left
    alone. Denormal numbers, which a CPU handles a hundred times slower, count as zero.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 2**30)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 64 * 2**20)
    torch.set_flush_denormal(True)


def resolve_precision(precision: Literal["auto", "bf16", "fp32"], device: torch.device | str) -> torch.dtype:
    """The type of trunk and hidden layers: `auto` takes bfloat16 where it is fast (AMX, avx512_bf16, recent GPUs)."""
    if precision == "auto":
        return torch.bfloat16 if _has_fast_bf16(torch.device(device)) else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32


def _has_fast_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    # Private, but PyTorch's only answers; where they are missing float32 is right, only slower.
    questions = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return device.type == "cpu" and any(getattr(torch.cpu, question, bool)() for question in questions)
