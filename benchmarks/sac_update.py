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
import torch.nn.functional as F
from torch import Tensor, nn

from curl_rl.config import ContrastiveConfig, SACConfig
from curl_rl.population import Population
from curl_rl.replay import Replay, ReplaySpec
from curl_rl.rng import Draws
from curl_rl.sac import SAC
from curl_rl.tuning import resolve_precision, tune_process

ACTIONS, STORED, CHANNELS, SIZE, CROP = 6, 1_000, 9, 100, 84
ROWS = ("naive", "own bf16", "joint bf16", "own fp32", "joint fp32")
UNITS = {"naive": 10, "own": 8, "joint": 6}
SIDES = ((9, 41), (32, 39), (32, 37), (32, 35))
UNIT_FLOP = sum(2 * side**2 * 32 * inputs * 9 for inputs, side in SIDES)
"""One image through the trunk's four convolutions (input channels, side of the output)."""


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


# -- the naive update -------------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(i, 32, 3, 2 if i == CHANNELS else 1) for i, _ in SIDES)
        self.linear, self.norm = nn.Linear(39200, 50), nn.LayerNorm(50)

    def forward(self, pixels: Tensor, detach: bool = False) -> Tensor:
        x = pixels / 255
        for convolution in self.convolutions:
            x = torch.relu(convolution(x))
        x = x.flatten(1)
        return self.norm(self.linear(x.detach() if detach else x))


def perceptron(inputs: int, outputs: int) -> nn.Sequential:
    hidden = (nn.Linear(inputs, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(1024, outputs))


class Actor(nn.Module):
    def __init__(self, shared: Encoder) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(), perceptron(50, 2 * ACTIONS)
        self.encoder.convolutions = shared.convolutions

    def forward(self, pixels: Tensor, detach: bool = False) -> tuple[Tensor, Tensor]:
        mean, log_std = self.head(self.encoder(pixels, detach)).chunk(2, dim=-1)
        log_std = -10 + 6 * (torch.tanh(log_std) + 1)
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        action = torch.tanh(raw)
        log_p = -0.5 * noise**2 - log_std - 0.919 - torch.log(1 - action**2 + 1e-6)
        return action, log_p.sum(-1, keepdim=True)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.first, self.second = (perceptron(50 + ACTIONS, 1) for _ in range(2))

    def forward(self, pixels: Tensor, action: Tensor, detach: bool = False) -> tuple[Tensor, Tensor]:
        x = torch.cat([self.encoder(pixels, detach), action], dim=-1)
        return self.first(x), self.second(x)


class Naive:
    """The same mathematics, in the released code's order, written as one would at first."""

    def __init__(self, batch: int) -> None:
        self.batch, self.random = batch, np.random.default_rng(0)
        stacks = (STORED, CHANNELS, SIZE, SIZE)
        self.stacks, self.next_stacks = (self.random.integers(0, 256, stacks, np.uint8) for _ in range(2))
        self.actions = self.random.uniform(-1, 1, (STORED, ACTIONS)).astype(np.float32)
        self.rewards = self.random.uniform(size=(STORED, 1)).astype(np.float32)
        self.critic, self.target = Critic(), Critic()
        self.target.load_state_dict(self.critic.state_dict())
        self.actor = Actor(self.critic.encoder)
        self.w, self.log_alpha = nn.Parameter(torch.rand(50, 50)), nn.Parameter(torch.tensor(0.1).log())
        encoder = list(self.critic.encoder.parameters())
        self.critic_adam = torch.optim.Adam(self.critic.parameters(), 1e-3)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), 1e-3)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], 1e-4, (0.5, 0.999))
        self.encoder_adam, self.contrastive_adam = (torch.optim.Adam(p, 1e-3) for p in (encoder, [*encoder, self.w]))

    def crop(self, images: np.ndarray) -> Tensor:
        windows = np.lib.stride_tricks.sliding_window_view(images, (CROP, CROP), (2, 3))
        rows, columns = self.random.integers(0, SIZE - CROP, (2, len(images)))
        return torch.as_tensor(windows[np.arange(len(images)), :, rows, columns]).float()

    def step(self, loss: Tensor, *optimisers: torch.optim.Adam) -> None:
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()

    def __call__(self, agent_step: int) -> None:
        index = self.random.integers(0, STORED, self.batch)
        stacks, following = self.stacks[index], self.next_stacks[index]
        query, key, after = self.crop(stacks), self.crop(stacks.copy()), self.crop(following)
        action, reward = torch.as_tensor(self.actions[index]), torch.as_tensor(self.rewards[index])

        with torch.no_grad():
            next_action, log_p = self.actor(after)
            value = torch.minimum(*self.target(after, next_action)) - self.log_alpha.exp() * log_p
            goal = reward + 0.99 * value
        q1, q2 = self.critic(query, action)
        self.step(F.mse_loss(q1, goal) + F.mse_loss(q2, goal), self.critic_adam)

        if agent_step % 2 == 0:
            new_action, log_p = self.actor(query, detach=True)
            alpha = self.log_alpha.exp()
            q = torch.minimum(*self.critic(query, new_action, detach=True))
            self.step((alpha.detach() * log_p - q).mean(), self.actor_adam)
            self.step((alpha * (-log_p + ACTIONS).detach()).mean(), self.alpha_adam)
            with torch.no_grad():
                online = dict(self.critic.named_parameters())
                for name, target in self.target.named_parameters():
                    tau = 0.05 if name.startswith("encoder") else 0.01
                    target.copy_(tau * online[name] + (1 - tau) * target)

        latent = self.critic.encoder(query)
        with torch.no_grad():
            keys = self.target.encoder(key)
        logits = latent @ (self.w @ keys.T)
        loss = F.cross_entropy(logits - logits.max(1, keepdim=True)[0], torch.arange(self.batch))
        self.step(loss, self.encoder_adam, self.contrastive_adam)


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
    update = Naive(batch) if method == "naive" else ours(method, precision, batch, device)

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
