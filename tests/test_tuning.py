"""What `tune_process` changes, seen from outside, and how a precision is chosen."""

import platform
import subprocess
import sys

import pytest
import torch

from curl_rl.tuning import resolve_precision, tune_process

PAGE_FAULTS = """
import resource, sys, torch
if sys.argv[1] == "tuned":
    from curl_rl.tuning import tune_process
    tune_process()
def touch():
    torch.zeros(12, 1024, 1024)  # 48 MB, as large as an activation
for _ in range(20):  # the heap grows until it holds what is needed at once
    touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc is told anything")
def test_freed_memory_is_used_again() -> None:
    faults = {
        way: int(subprocess.run([sys.executable, "-c", PAGE_FAULTS, way], check=True, capture_output=True).stdout)
        for way in ("tuned", "as it comes")
    }
    assert faults["tuned"] < 0.1 * faults["as it comes"]


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", "1.2"))
    monkeypatch.setattr("ctypes.CDLL", None)  # calling it would fail
    try:
        tune_process()
        if torch.set_flush_denormal(True):
            assert (torch.tensor([1e-40]) * 1.0).item() == 0
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize(("bf16", "amx", "chosen"), [(0, 0, "float32"), (1, 0, "bfloat16"), (0, 1, "bfloat16")])
def test_auto_takes_bf16_where_the_cpu_has_it(
    monkeypatch: pytest.MonkeyPatch, bf16: int, amx: int, chosen: str
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bool(bf16), raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: bool(amx), raising=False)
    assert resolve_precision("auto", "cpu") is getattr(torch, chosen)
    assert resolve_precision("fp32", "cpu") is torch.float32
    assert resolve_precision("bf16", "cpu") is torch.bfloat16


def test_auto_takes_float32_where_pytorch_cannot_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for question in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, question, raising=False)
    assert resolve_precision("auto", "cpu") is torch.float32
