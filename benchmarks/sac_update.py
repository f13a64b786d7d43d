"""What one CURL-SAC update costs: `python benchmarks/sac_update.py [--batch 128 512] [--threads 2] [--json]`.

Our two ways to step the trunk, in bf16 and float32, beside a naive update in the style of the code released with the
paper: both stacks of a transition stored, passes of its own for every loss, five Adams, float32, malloc's defaults.
Sampling from the replay and cropping are part of every row. A row is a process of its own, so none inherits another's
memory; its time is the median over pairs of updates (every second one trains the actor too), per update.
"""

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

from curl_rl.config import ContrastiveConfig, SACConfig
from curl_rl.naive import Naive
from curl_rl.networks import Trunk
from curl_rl.population import Population
from curl_rl.replay import Replay, ReplaySpec
from curl_rl.rng import Draws
from curl_rl.sac import SAC
from curl_rl.tuning import resolve_precision, tune_process

ACTIONS, STORED, CHANNELS, SIZE, CROP = 6, 1_000, 9, 100, 84
ROWS = ("naive", "own bf16", "joint bf16", "own fp32", "joint fp32")
UNITS = {"naive": 10, "own": 8, "joint": 6}
UNIT_FLOP = Trunk((CHANNELS, CROP, CROP), 32, torch.float32).flop


# -- ours -------------------------------------------------------------------------------------------------------------


def ours(step: str, precision: str, batch: int, device: str) -> Callable[[int], object]:
    tune_process()
    config = SACConfig(batch_size=batch, contrastive=ContrastiveConfig(step=step))  # type: ignore[arg-type]
    arithmetic = resolve_precision(precision, device)  # type: ignore[arg-type]
    population = Population([SAC(config, (CHANNELS, SIZE, SIZE), ACTIONS, 0, arithmetic)], device)
    draws, replay = Draws(population.learning_plan(), [0], device), filled_replay(device)

    def update(agent_step: int) -> object:
        drawn = draws.draw(agent_step)
        return population.update(replay.sample(drawn["sample"]), drawn, agent_step)

    return update


def filled_replay(device: str) -> Replay:
    random, false = np.random.default_rng(0), np.zeros(1, bool)
    replay = Replay(ReplaySpec((3, SIZE, SIZE), (ACTIONS,), STORED, stack=3), device=device)

    def frame() -> np.ndarray:
        return random.integers(0, 256, (1, 3, SIZE, SIZE), np.uint8)

    replay.begin(frame(), np.ones(1, bool), false)
    for _ in range(STORED):
        action = torch.from_numpy(random.uniform(-1, 1, (1, ACTIONS)).astype(np.float32))
        replay.add(action, random.uniform(size=1).astype(np.float32), false, false, frame())
    return replay


# -- measuring --------------------------------------------------------------------------------------------------------


def gemm_rate(kind: torch.dtype, device: str) -> float:
    """FLOP/s of a square product of 4096: the best of a few."""
    x = torch.randn(4096, 4096, device=device).to(kind)
    return 2 * 4096**3 / min(elapsed(lambda: x @ x, device) for _ in range(4))


def elapsed(f: Callable[[], object], device: str) -> float:
    begin = time.perf_counter()
    f()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def measure(row: str, batch: int, seconds: float, device: str) -> dict[str, float | str]:
    method, precision = row.split() if " " in row else (row, "fp32")
    update = Naive(batch, ACTIONS) if method == "naive" else ours(method, precision, batch, device)

    def pair(number: int) -> None:
        update(200 * number + 1)  # not on multiples of 100, where `joint` also measures
        update(200 * number + 2)

    pair(0)  # warms up
    deadline = time.perf_counter() + seconds
    pairs = [elapsed(lambda: pair(1), device)]
    for number in itertools.count(2):
        if time.perf_counter() > deadline:
            break
        pairs.append(elapsed(lambda n=number: pair(n), device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # before the GEMM adds its own
    each = median(pairs) / 2
    rate = gemm_rate(torch.bfloat16 if precision == "bf16" else torch.float32, device)
    return {
        "row": row,
        "batch": batch,
        "update_ms": round(1e3 * each, 1),
        "fastest_ms": round(1e3 * min(pairs) / 2, 1),
        "trunk_units": UNITS[method],
        "gemm_gflops": round(rate / 1e9),
        "gemm_share": round(UNITS[method] * UNIT_FLOP * batch / each / rate, 3),
        "peak_memory_gib": round(peak, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=10, help="for each row")
    parser.add_argument("--device", default="cpu", help="the naive row stays on the CPU")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)  # inside a row's own process
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.measure:
        print(json.dumps(measure(options.rows[0], options.batch[0], options.seconds, options.device)))
        return
    results = []
    for batch, row in itertools.product(options.batch, options.rows):
        device = "cpu" if row == "naive" else options.device
        child = [sys.executable, __file__, "--measure", "--batch", str(batch), "--rows", row, "--device", device]
        child += ["--threads", str(options.threads), "--seconds", str(options.seconds)]
        results.append(json.loads(subprocess.run(child, check=True, capture_output=True, text=True).stdout))
        naive = [r["update_ms"] for r in results if r["row"] == "naive" and r["batch"] == batch]
        results[-1]["speedup"] = round(naive[0] / results[-1]["update_ms"], 2) if naive else None
        if not options.json:
            print("  ".join(f"{name} {value}" for name, value in results[-1].items()), flush=True)
    if options.json:
        print(json.dumps({"threads": options.threads, "device": options.device, "rows": results}, indent=1))


if __name__ == "__main__":
    main()
