"""The yardstick: CURL's update in the style of the code released with the paper, written as one would at first.

Both stacks of a transition stored, passes of its own for every loss, five Adams, float32, malloc's defaults. The
mathematics and the order of steps are the released code's; the code is ours.

    python -m curl_rl.naive BATCH ACTIONS THREADS SECONDS     prints the milliseconds of an update
"""

from __future__ import annotations

import sys
import time
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

STORED, CHANNELS, SIZE, CROP = 1_000, 9, 100, 84


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(i, 32, 3, 2 if i == CHANNELS else 1) for i in (CHANNELS, 32, 32, 32)
        )
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
    def __init__(self, shared: Encoder, actions: int) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(), perceptron(50, 2 * actions)
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
    def __init__(self, actions: int) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.first, self.second = (perceptron(50 + actions, 1) for _ in range(2))

    def forward(self, pixels: Tensor, action: Tensor, detach: bool = False) -> tuple[Tensor, Tensor]:
        x = torch.cat([self.encoder(pixels, detach), action], dim=-1)
        return self.first(x), self.second(x)


class Naive:
    """Agent, replay and optimisers; calling it does one update."""

    def __init__(self, batch: int, actions: int) -> None:
        self.batch, self.action_size, self.random = batch, actions, np.random.default_rng(0)
        stacks = (STORED, CHANNELS, SIZE, SIZE)
        self.stacks, self.next_stacks = (self.random.integers(0, 256, stacks, np.uint8) for _ in range(2))
        self.actions = self.random.uniform(-1, 1, (STORED, actions)).astype(np.float32)
        self.rewards = self.random.uniform(size=(STORED, 1)).astype(np.float32)
        self.critic, self.target = Critic(actions), Critic(actions)
        self.target.load_state_dict(self.critic.state_dict())
        self.actor = Actor(self.critic.encoder, actions)
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
            self.step((alpha * (-log_p + self.action_size).detach()).mean(), self.alpha_adam)
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


def main(batch: int, actions: int, threads: int, seconds: float) -> float:
    """The median milliseconds of an update; every second one trains the actor too, so they are timed in pairs."""
    torch.set_num_threads(threads)
    update = Naive(batch, actions)
    update(0)
    pairs: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(pairs) < 2 or time.perf_counter() < deadline:
        begin = time.perf_counter()
        update(1)
        update(2)
        pairs.append(time.perf_counter() - begin)
    return 1e3 * median(pairs) / 2


if __name__ == "__main__":
    print(main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
