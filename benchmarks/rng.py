"""What the random numbers of one agent step cost: `python benchmarks/rng.py [--device cuda] [--json]`.

The plans have the sizes of one update: Rainbow's is dominated by its noisy layers, SAC's by noise of 512 actions.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

from curl_rl.rng import Draws, Purpose, integers, normal, uniform

PLANS = {
    # Factorised noise of four noisy layers (576→256 and 256→51, 576→256 and 256→51·18), for two networks.
    "Rainbow, batch 32": {
        "sample": (Purpose.SAMPLE, 32),
        "crop_query": (Purpose.CROP_QUERY, 128),
        "crop_key": (Purpose.CROP_KEY, 128),
        "online": (Purpose.ONLINE_NOISE, 2 * (576 + 256 + 256) + 51 + 51 * 18),
        "target": (Purpose.TARGET_NOISE, 2 * (576 + 256 + 256) + 51 + 51 * 18),
    },
    "SAC, batch 512, six actions": {
        "sample": (Purpose.SAMPLE, 512),
        "crop_query": (Purpose.CROP_QUERY, 1024),
        "crop_key": (Purpose.CROP_KEY, 1024),
        "crop_next": (Purpose.CROP_NEXT, 1024),
        "exploration": (Purpose.EXPLORATION_NOISE, 6),
        "actor": (Purpose.ACTOR_NOISE, 3072),
        "target": (Purpose.TARGET_NOISE, 3072),
    },
}


def milliseconds(run: Callable[[], object], device: str, seconds: float = 1.0) -> float:
    """Median time of one call."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    times: list[float] = []
    for _ in range(20):
        run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 20:
        synchronize()
        start = time.perf_counter()
        run()
        synchronize()
        times.append(time.perf_counter() - start)
    return median(times) * 1e3


def rows(device: str) -> list[dict[str, str | int | float]]:
    found: list[dict[str, str | int | float]] = []
    for name, plan in PLANS.items():
        for trials in (1, 26):
            draws, step = Draws(plan, range(trials), device), torch.zeros((), dtype=torch.int64, device=device)
            words = draws.draw(step)
            noise = torch.cat([words[key] for key in words if key in ("online", "exploration", "actor", "target")], 1)
            found.append(
                {
                    "plan": name,
                    "trials": trials,
                    "words": sum(count for _, count in plan.values()),
                    "draw_ms": milliseconds(partial(draws.draw, step), device),
                    "normal_ms": milliseconds(partial(normal, noise), device),
                    "uniform_ms": milliseconds(partial(uniform, words["sample"]), device),
                    "integers_ms": milliseconds(partial(integers, words["sample"], 100_000), device),
                }
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = rows(options.device)
    if options.json:
        print(json.dumps({"device": options.device, "threads": options.threads, "rows": found}))
        return
    for row in found:
        print(
            "  ".join(
                f"{key} {value:.4f}" if isinstance(value, float) else f"{value} {key}" for key, value in row.items()
            )
        )


if __name__ == "__main__":
    main()
