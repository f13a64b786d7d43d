"""A plain policy-gradient agent whose encoder also learns by contrast: the objective fits any encoder and algorithm."""

import torch
from torch import nn

from curl_rl import Contrastive, make, momentum_copy, momentum_update, random_crop


def train(episodes: int = 300, seed: int = 0) -> list[tuple[float, float]]:
    torch.manual_seed(seed)
    env = make("fake-discrete", size=24)
    encoder = nn.Sequential(nn.Conv2d(1, 8, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(648, 16), nn.LayerNorm(16))
    policy, contrastive, keys = nn.Linear(16, 4), Contrastive(16), momentum_copy(encoder)
    optimiser = torch.optim.Adam([*encoder.parameters(), *policy.parameters(), *contrastive.parameters()], 3e-3)
    history = []
    for episode in range(episodes):
        pixels, actions, rewards, ends = [], [], [], [False]
        observation, _ = env.reset(seed=seed + episode)
        while not any(ends):
            pixels.append(torch.from_numpy(observation))
            with torch.no_grad():
                logits = policy(encoder(pixels[-1][None, :, 2:22, 2:22] / 255))
            actions.append(torch.distributions.Categorical(logits=logits).sample().item())
            observation, reward, *ends, _ = env.step(actions[-1])
            rewards.append(reward)
        frames, gain = torch.stack(pixels), torch.tensor(rewards) - 0.25
        views = [random_crop(frames, 20, torch.randint(2**32, (len(frames), 2))) / 255 for _ in range(2)]
        queries = encoder(views[0])
        loss, accuracy = contrastive(queries, keys(views[1]))
        chosen = torch.distributions.Categorical(logits=policy(queries)).log_prob(torch.tensor(actions))
        optimiser.zero_grad()
        (loss - (gain * chosen).mean()).backward()
        optimiser.step()
        momentum_update(keys, encoder, tau=0.05)
        history.append((sum(rewards) / len(rewards), accuracy.item() * len(frames)))  # by chance 0.25 and 1
    return history


if __name__ == "__main__":
    print(train()[-1])
