"""What a fleet costs a step, and how many agent steps it makes in a second, by the number of worker processes.

    python benchmarks/fleet.py [--environments 26] [--json]

The fake environment takes microseconds, so its column is the fleet's own cost; the games are Atari100k's.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from curl_rl.envs import ATARI26, EnvSpec, Fleet, episode_seed


@dataclass(frozen=True)
class Rate:
    """One line of the table."""

    environments: str
    count: int
    workers: int
    step_ms: float
    agent_steps_per_s: float


def measure(label: str, specs: Sequence[EnvSpec], workers: int, seconds: float) -> Rate:
    """Step with random actions, resets included, for about so many seconds."""
    fleet = Fleet(specs, workers=workers)
    random = np.random.default_rng(0)
    fleet.reset(seed=[episode_seed(0, "benchmark", i) for i in range(len(specs))])
    steps, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        actions = (random.random(len(specs)) * fleet.action_counts).astype(np.int64)
        _, _, terminated, truncated, _ = fleet.step(actions)
        if (over := terminated | truncated).any():
            seeds = [episode_seed(steps, "benchmark", i) for i in range(len(specs))]
            fleet.reset(seed=seeds, options={"reset_mask": over})
        steps += 1
    fleet.close()
    return Rate(label, len(specs), workers, 1000 * elapsed / steps, steps * len(specs) / elapsed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, default=26, help="environments in the fleet (default 26)")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4], help="numbers of workers to try")
    parser.add_argument("--seconds", type=float, default=4, help="time for each line (default 4)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    count = arguments.environments
    fleets = {
        "fake": [EnvSpec("fake-discrete")] * count,
        "atari": [EnvSpec(ATARI26[i % len(ATARI26)]) for i in range(count)],
    }
    rates = [
        measure(label, specs, workers, arguments.seconds)
        for label, specs in fleets.items()
        for workers in arguments.workers
    ]
    if arguments.json:
        print(json.dumps({"cores": os.cpu_count(), "rates": [asdict(rate) for rate in rates]}, indent=2))
        return
    print(f"{os.cpu_count()} cores\n{'':8}{'count':>6}{'workers':>9}{'ms/step':>9}{'agent steps/s':>15}")
    for rate in rates:
        line = f"{rate.environments:8}{rate.count:6}{rate.workers:9}{rate.step_ms:9.2f}{rate.agent_steps_per_s:15,.0f}"
        print(line)


if __name__ == "__main__":
    main()
