"""`curl-rl doctor`: what works on this machine, and for each thing that does not the one command that mends it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from . import machine
from .errors import UserError

DEFAULT_TASK = "cartpole-swingup"
INSTALL_GL = "sudo apt-get install -y --no-install-recommends libegl1 libgl1"
Versions = Callable[[str], str | None]
"""A distribution's version by its name; None where it is not installed."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str
    """What was found."""
    remedy: str = ""
    """The command that mends it, where it is not ok."""
    needed: bool = True
    """Without it the default job (CURL with SAC on cartpole-swingup, from pixels) cannot run."""


def run(arguments: Sequence[str] = ()) -> int:
    """Print what works here, as a table or with --json; 0 if the default job can run."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(f"usage: curl-rl doctor [--json]\n\n{run.__doc__}")
        return 0
    unknown = [word for word in arguments if word != "--json"]
    if unknown:
        raise UserError(f"`curl-rl doctor` takes only --json, but was given {shlex.join(unknown)}.")
    checks = examine()
    ready = all(check.ok for check in checks if check.needed)
    if arguments:
        found = {"ready": ready, "checks": [asdict(check) for check in checks], "versions": machine.versions()}
        print(json.dumps(found, indent=2))
    else:
        show(checks, ready)
    return 0 if ready else 1


def examine() -> list[Check]:
    """Every check. Those that need what failed before them are left out: their complaint would hide the cause."""
    torch, simulators = check_torch(installed), check_simulators(installed)
    checks = [check_python(sys.version_info[:2]), torch]
    if torch.ok:
        checks.append(check_device())
    checks.append(simulators)
    if simulators.ok:
        checks.append(check_gl())
    checks += [check_opencv(installed), check_atari()]
    if torch.ok:
        checks += check_room(default_frame_bytes(), free_memory(), shutil.disk_usage(Path.cwd()).free)
    return [replace(check, remedy="") if check.ok else check for check in checks]


def show(checks: Sequence[Check], ready: bool) -> None:
    """The table, then the commands on lines of their own, so that they can be copied whole."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table("", "", "what is here", title=f"curl-rl {machine.versions()['curl-rl']}", title_justify="left")
    for check in checks:
        mark = "[green]ok" if check.ok else "[red]missing" if check.needed else "[yellow]missing"
        table.add_row(mark, check.name, escape(check.detail))
    console.print(table)
    for check in checks:
        if not check.ok:
            console.print(f"To mend {check.name}:", style="bold")
            console.print(f"  {check.remedy}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"The default job ({DEFAULT_TASK}) {'can' if ready else 'cannot'} run here.")


# --------------------------------------------------------------------------------------------------------- the software


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def pip(*words: str) -> str:
    """A call of this interpreter's pip, to be copied into a shell."""
    return shlex.join([sys.executable, "-m", "pip", *words])


def release(version: str) -> tuple[int, ...]:
    """(2, 13) of '2.13.0+cpu'."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def check_python(version: tuple[int, int]) -> Check:
    ok = version >= (3, 11)
    note = "" if version < (3, 13) else "; DMControl has no wheels for it, Atari and everything else work"
    detail = f"{version[0]}.{version[1]} in {sys.prefix}{note}"
    return Check("Python", ok, detail, "sudo apt-get install python3.11 python3.11-venv")


def check_torch(version_of: Versions) -> Check:
    version = version_of("torch")
    ok = version is not None and release(version) >= (2, 11)
    return Check("PyTorch", ok, version or "not installed", pip("install", "torch==2.13.0"))


def check_simulators(version_of: Versions) -> Check:
    """dm-control's own metadata admits MuJoCo 4, under which none of its tasks loads."""
    control, mujoco = version_of("dm-control"), version_of("mujoco")
    ok = control is not None and mujoco is not None and (3, 17) <= release(mujoco) < (4, 0)
    detail = f"dm-control {control or 'not installed'}, MuJoCo {mujoco or 'not installed'}"
    if sys.version_info >= (3, 13):
        return Check("DMControl", ok, detail, "make clean && make train PYTHON=python3.12")
    if control and mujoco and not ok:
        detail += ", which do not fit together"
    return Check("DMControl", ok, detail, pip("install", "dm-control>=1.0.50,<1.1", "mujoco>=3.17,<4"))


def check_opencv(version_of: Versions) -> Check:
    """Its builds all write the same folder: of two, the one installed last is broken by removing the other."""
    builds = ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless")
    present = [build for build in builds if version_of(build)]
    detail = ", ".join(f"{build} {version_of(build)}" for build in present) or "not installed"
    if len(present) > 1:
        remedy = f"{pip('uninstall', '-y', *present)} && {pip('install', 'opencv-python-headless')}"
        return Check("OpenCV", False, f"{detail}: they overwrite each other", remedy, needed=False)
    return Check("OpenCV", bool(present), detail, pip("install", "opencv-python-headless"), needed=False)


# ---------------------------------------------------------------------------------------------------------- the machine


def check_device() -> Check:
    """Where learning would happen; every machine has at least a CPU."""
    import torch

    from .tuning import resolve_precision

    device = machine.choose_device("auto")
    arithmetic = "bf16" if resolve_precision("auto", device) is torch.bfloat16 else "fp32"
    if device == "cpu":
        return Check("Device", True, f"CPU: {machine.cpu_name()}, {machine.cores()} cores, {arithmetic}")
    memory = torch.cuda.get_device_properties(0).total_memory
    return Check("Device", True, f"GPU: {torch.cuda.get_device_name(0)}, {memory / 1e9:.0f} GB, {arithmetic}")


def check_gl() -> Check:
    """DMControl draws: by which library, on what, how fast."""
    remedy = "unset MUJOCO_GL" if "MUJOCO_GL" in os.environ else INSTALL_GL
    try:
        from .envs import gl

        backend = gl.choose()
        speed = gl.milliseconds_per_frame()
    except Exception as error:  # whatever a driver or simulator raises is an answer here
        cause = str(error).rpartition("; ")[0] if isinstance(error, UserError) else ""  # without its own remedy
        return Check("OpenGL", False, cause or f"{type(error).__name__}: {error}", remedy)
    detail = f"{backend.name}: {backend.vendor}, {backend.renderer}; {speed:.1f} ms a frame of 100×100"
    return Check("OpenGL", True, detail)


def check_atari() -> Check:
    """A game loads and plays."""
    try:
        from .envs import make

        env = make("pong")
        env.reset(seed=0)
        start = time.perf_counter()
        for _ in range(20):
            env.step(0)
        milliseconds = (time.perf_counter() - start) * 50
        env.close()
    except Exception as error:  # as above
        remedy = pip("install", "ale-py>=0.12,<0.13", "opencv-python-headless")
        return Check("Atari", False, str(error), remedy, needed=False)
    return Check("Atari", True, f"ale-py {installed('ale-py')}; {milliseconds:.1f} ms a decision", needed=False)


def default_frame_bytes() -> int:
    """What the default job keeps of its pictures."""
    from .presets import configure

    config = configure(DEFAULT_TASK)
    capacity = min(getattr(config.agent, "replay_capacity", 0), config.agent_steps)
    return capacity * 3 * config.env.size**2


def free_memory() -> int | None:
    import torch

    from .storage import available_bytes

    return available_bytes(torch.device("cpu"))


def check_room(frames: int, memory: int | None, disk: int) -> list[Check]:
    """Memory and disk against what the default job takes. Its checkpoint holds the pictures once more."""
    memory_needed = frames + 2_000_000_000  # PyTorch, simulators for training and evaluation, activations of a batch
    disk_needed = frames + 500_000_000  # networks, optimisers, logs, a video
    command = f"curl-rl train {DEFAULT_TASK}"
    return [
        Check(
            "Memory",
            memory is None or memory >= memory_needed,
            f"{'unknown' if memory is None else gigabytes(memory)} free, {gigabytes(memory_needed)} needed",
            f"{command} --agent.batch-size 64 --replay-file replay.bin",
        ),
        Check(
            "Disk",
            disk >= disk_needed,
            f"{gigabytes(disk)} free here, {gigabytes(disk_needed)} needed",
            f"{command} --directory /another/disk/run",
        ),
    ]


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
