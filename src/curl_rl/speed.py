"""`curl-rl speed TASK`: what an update, an environment's step and a whole decision cost on this machine.

Beside them, in the same run, a naive update (`naive.py`). It runs in a process of its own, with malloc's defaults.
"""

from __future__ import annotations

import dataclasses
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch

from . import machine
from .build import assemble, check, prepare, resolved_agent
from .config import Config, Runtime, SACConfig
from .errors import UserError
from .loop import Run
from .networks import Trunk
from .population import Population
from .run import RunDirectory

SECONDS = 10.0
"""Spent on each figure."""
STORED = 200
"""Transitions in the replay when measuring: what they are makes no difference, and how many hardly any."""
PASSES = {"own": 8.0, "joint": 6.0, "authors": 9.5}
"""Passes of the trunk for each sample of an update, a backward pass counting two. Without contrast there are five."""


def measure(config: Config, runtime: Runtime) -> dict[str, Any]:
    """Medians in milliseconds; what they are worth depends on how idle the machine is."""
    check(config)
    if not isinstance(config.agent, SACConfig):
        raise UserError(f"Preset {config.preset!r} never learns, so it has no update to measure; take another.")
    device = machine.choose_device(runtime.device)
    agent = dataclasses.replace(resolved_agent(config.agent, device), first_random_agent_steps=STORED)
    config = dataclasses.replace(config, agent=agent)
    threads = prepare(runtime, device)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        facts = machine.facts(device, threads, "", draws=False)
        run = assemble(stack, RunDirectory(folder / "run", config), runtime, device, facts, lambda: None)
        run.log.begin(0, {})
        run.begin_episode()
        for _ in range(STORED + 1):
            run.advance()
        update = _update_ms(run, device)
        whole = round(_milliseconds(lambda: (run.advance(), run.advance()), SECONDS, device) / 2, 2)
        env = round(_milliseconds(lambda: _environment_step(run), SECONDS / 3, device), 2)
        share = _gemm_share(run, update, device)
    papers_frames = (config.env.size, agent.crop_size, config.env.frame_stack) == (100, 84, 3)
    naive = _naive_ms(run, threads) if share and papers_frames else None
    return {
        "task": config.task,
        "preset": config.preset,
        "batch_size": agent.batch_size,
        "precision": agent.precision,
        "update_ms": update,
        "naive_update_ms": naive,
        "speedup": naive and round(naive / update, 2),
        "agent_step_ms": whole,
        "env_ms": env,
        "gemm_share": share,
        "peak_memory_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "device": facts["gpu"] or facts["cpu"],
        "threads": threads,
    }


def _environment_step(run: Run) -> None:
    _, _, terminated, truncated, _ = run.fleet.step(run.fleet.action_space.sample())
    if terminated[0] or truncated[0]:
        run.fleet.reset(seed=[0])


def _update_ms(run: Run, device: str) -> float:
    """Sampling, cropping and learning, at agent steps on which nothing but the usual is due."""

    def two_updates() -> None:  # every second one trains the actor, too
        for step in (STORED + 1, STORED + 2):
            drawn = run.draws.draw(step)
            run.learner.update(run.replay.sample(drawn["sample"]), drawn, step)

    return round(_milliseconds(two_updates, SECONDS, device) / 2, 2)


def _milliseconds(function: Callable[[], object], seconds: float, device: str) -> float:
    """The median time of a call, after one to warm up."""
    function()
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < deadline:
        begin = time.perf_counter()
        function()
        if device != "cpu":
            torch.cuda.synchronize(device)
        times.append(1e3 * (time.perf_counter() - begin))
    return median(times)


def _naive_ms(run: Run, threads: int) -> float:
    """The naive update on the paper's frames, always on the CPU in float32, in a process of its own."""
    assert isinstance(run.learner, Population)
    numbers = [run.learner.config.batch_size, run.learner.agent.actions, threads, SECONDS]
    command = [sys.executable, "-m", "curl_rl.naive", *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return round(float(done.stdout), 2)


def _gemm_share(run: Run, update_ms: float, device: str) -> float | None:
    """The trunk's arithmetic over what a large matrix product reaches here in the same time and precision."""
    agent = run.config.agent
    assert isinstance(agent, SACConfig)
    assert isinstance(run.learner, Population)
    trunk = run.learner.agent.trunk
    if not isinstance(trunk, Trunk):
        return None
    passes = PASSES[agent.contrastive.step] if agent.contrastive.weight else 5.0
    kind = torch.bfloat16 if agent.precision == "bf16" else torch.float32
    x = torch.randn(4096, 4096, device=device).to(kind)
    rate = 2 * 4096**3 / _milliseconds(lambda: x @ x, 1.0, device)
    return round(passes * trunk.flop * agent.batch_size / update_ms / rate, 3)
