"""The seed of every episode, from the run's seed and the episode's number alone."""

from hashlib import blake2b


def episode_seed(run_seed: int, purpose: str | int, episode: int) -> int:
    """An int in [0, 2**31). Another purpose ("train", "evaluate") gives an unrelated sequence of episodes."""
    digest = blake2b(f"{int(run_seed)}/{purpose}/{int(episode)}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1
