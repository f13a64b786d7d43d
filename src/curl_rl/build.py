"""`train(config, runtime)`: put a run together, and let it go."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from . import machine
from .checkpoint import CheckpointStore
from .config import Config, EnvironmentConfig, RandomConfig, Runtime, SACConfig
from .envs import EnvSpec, Fleet, describe, episode_seed, resolve
from .errors import UserError
from .evaluate import Evaluator, FrameStacks
from .log import Progress, RunLog, read_rows
from .loop import Learner, Outcome, Run, StopRequest
from .pictures import write_gif
from .population import Population
from .random_agent import RandomAgent
from .replay import Replay, ReplaySpec
from .rng import Draws
from .run import RunDirectory, default_directory, read_config, read_json
from .sac import SAC
from .scores import summarise
from .storage import gigabytes
from .tuning import resolve_precision, tune_process

EVALUATED_AT_ONCE = 10
"""Evaluation environments side by side: as many on every machine, since batches of another size round otherwise."""


def train(config: Config, runtime: Runtime, command: str = "") -> Outcome:
    """Train one trial up to its budget, or up to a pause. A run that is on disk already is gone on with.

    Whatever can be refused is refused before anything is written.
    """
    check(config)
    device = machine.choose_device(runtime.device)
    directory = RunDirectory(runtime.directory or default_directory(config), config)
    directory.config = resolved(directory.config, device)
    if directory.is_finished():
        steps = directory.config.env_steps
        return Outcome(
            directory.path,
            steps,
            True,
            f"This run of {steps:,} env steps is finished; a larger --env-steps extends it.",
        )
    draws = environment_spec(config).kind == "dmc" and config.env.observation == "pixels"
    facts = machine.facts(device, prepare(runtime, device), command, draws)
    with ExitStack() as stack:
        stop = stack.enter_context(StopRequest(runtime.stop_after_seconds))
        run = assemble(stack, directory, runtime, device, facts, stop.reason)
        run.progress.say(_announcement(run, device))
        if warning := directory.record_machine(facts):
            run.progress.say(warning)
        outcome = run.go()
    if outcome.finished and isinstance(run.learner, Population):
        from .agent import export

        export(outcome.directory, outcome.directory / "agent.safetensors")
    return outcome


@dataclass
class TrainedRun:
    """A run on disk, opened for a look: its newest agent in an environment of its own."""

    config: Config
    learner: Learner
    fleet: Fleet
    env_steps: int
    last_evaluation: dict[str, Any] | None
    versions: dict[str, Any]
    device: str

    def acting(self, width: int, seed: int) -> Callable[[np.ndarray, int], np.ndarray]:
        """How the agent acts on `width` stacks, without exploration."""
        draws = Draws(self.learner.acting_plan(width), [seed], self.device)

        def act(stacks: np.ndarray, decision: int) -> np.ndarray:
            seen = torch.from_numpy(stacks).to(self.device)
            return self.learner.act(seen, draws.draw(decision), self.config.agent_steps, explore=False).numpy(
                force=True
            )

        return act


@contextmanager
def open_run(path: Path, device: str = "auto") -> Iterator[TrainedRun]:
    """The newest agent of a run that may still be going on; nothing in its directory is changed."""
    config, device = read_config(path), machine.choose_device(device)
    checkpoint, _ = CheckpointStore(path / "checkpoint").load(only_look=True)
    if checkpoint is None:
        raise UserError(f"{path} holds no checkpoint yet; let the run get as far as its first evaluation.")
    prepare(Runtime(), device)
    with ExitStack() as stack:
        fleet = Fleet([dataclasses.replace(environment_spec(config), training=False)], workers=0)
        stack.callback(fleet.close)
        learner = make_learner(config, fleet, device)
        learner.load_state_dict(checkpoint.tensors["agent"])
        steps = checkpoint.state["clock"]["agent_step"] * config.env.action_repeat
        rows = read_rows(path / "evaluations.jsonl")
        versions = read_json(path / "runtime.json")["versions"]
        yield TrainedRun(config, learner, fleet, steps, rows[-1] if rows else None, versions, device)


def evaluate_run(path: Path, episodes: int, seed: int, device: str) -> dict[str, Any]:
    """Scores of full episodes that neither training nor its evaluations played."""
    if episodes < 1:
        raise UserError(f"--episodes is {episodes}; it must be at least 1.")
    with open_run(path, device) as run:
        width = min(episodes, EVALUATED_AT_ONCE)
        spec = dataclasses.replace(environment_spec(run.config), training=False)
        apart = episode_seed(run.config.seed, "eval", seed)
        evaluator = Evaluator([spec], [apart], run.config.env.frame_stack, width, min(width, machine.cores()))
        try:
            played = evaluator.evaluate(run.acting(width, apart), 0, episodes)[0]
        finally:
            evaluator.close()
        mean, std = summarise([episode.score for episode in played])
        return {
            "task": run.config.task,
            "preset": run.config.preset,
            "seed": run.config.seed,
            "env_steps": run.env_steps,
            "episodes": episodes,
            "mean": mean,
            "std": std,
            "returns": [episode.score for episode in played],
            "lengths": [episode.agent_steps for episode in played],
        }


def film_run(path: Path, seed: int, size: int) -> tuple[float, Path]:
    """One episode as a video in the run directory; its return and the file."""
    with open_run(path, "cpu") as run:
        spec = dataclasses.replace(environment_spec(run.config), training=False)
        env = dataclasses.replace(spec, render_size=size if spec.kind == "dmc" else None).make()
        act = run.acting(1, seed)
        frame, _ = env.reset(seed=episode_seed(run.config.seed, "play", seed))
        stacks = FrameStacks(1, run.config.env.frame_stack, frame.shape, frame.dtype, describe(env).before_start)
        stacks.begin(np.ones(1, bool), frame[None])
        pictures, score, decision, over = [_picture(env)], 0.0, 0, False
        while not over:
            action = act(stacks.array()[None], decision)[0, 0]
            frame, _, terminated, truncated, info = env.step(action)
            stacks.push(frame[None])
            pictures.append(_picture(env))
            score, decision, over = score + info["raw_reward"], decision + 1, terminated or truncated
        file = path / f"play-{seed}.gif"
        write_gif(file, pictures, 1 / env.metadata.get("render_fps", 20))
        env.close()
        return score, file


def _picture(env: gymnasium.Env) -> np.ndarray:
    picture = env.render()
    if not isinstance(picture, np.ndarray):
        raise UserError(
            f"{env} draws no pictures (its render() gave {type(picture).__name__}); make it with rgb_array."
        )
    return picture


def check(config: Config) -> None:
    """Refuse numbers and combinations that cannot work, in one sentence, before anything is made."""
    env, kind = config.env, resolve(config.task).kind
    for name, value, least in (
        ("env-steps", config.env_steps, 1),
        ("seed", config.seed, 0),
        ("env.frame-stack", env.frame_stack, 1),
        ("evaluation.episodes", config.evaluation.episodes, 1),
        ("evaluation.every-env-steps", config.evaluation.every_env_steps, 0),
    ):
        if value < least:
            raise UserError(f"--{name} is {value:,}; it must be at least {least}.")
    if kind != "dmc" and (env.camera or env.shadows != "paper"):
        raise UserError(f"{config.task} is no task of DMControl, so it has neither --env.camera nor --env.shadows.")
    protocol = env.protocol
    if protocol and (protocol.skip, protocol.size) != (env.action_repeat, env.size):
        raise UserError(
            f"--env.action-repeat {env.action_repeat} and --env.size {env.size} contradict --env.protocol.skip "
            f"{protocol.skip} and --env.protocol.size {protocol.size}; give both the same values."
        )
    if isinstance(config.agent, SACConfig):
        _check_sac(config.agent)


def _check_sac(agent: SACConfig) -> None:
    for name in ("batch_size", "updates_per_agent_step", "actor_every_agent_steps", "target_every_agent_steps"):
        if getattr(agent, name) < 1:
            raise UserError(f"--agent.{name.replace('_', '-')} is {getattr(agent, name)}; it must be at least 1.")
    if agent.first_random_agent_steps < 1:
        raise UserError("--agent.first-random-agent-steps must be at least 1: there is nothing to learn from before.")
    if agent.replay_capacity < 2:
        raise UserError(f"--agent.replay-capacity is {agent.replay_capacity}; it must be at least 2.")


def resolved(config: Config, device: str) -> Config:
    """`auto` as what it is here, so that the run records it and keeps it."""
    if not isinstance(config.agent, SACConfig):
        return config
    return dataclasses.replace(config, agent=resolved_agent(config.agent, device))


def resolved_agent(agent: SACConfig, device: str) -> SACConfig:
    """`auto` precision as what it is on this device."""
    if agent.precision != "auto":
        return agent
    fast = resolve_precision("auto", device) == torch.bfloat16
    return dataclasses.replace(agent, precision="bf16" if fast else "fp32")


def prepare(runtime: Runtime, device: str) -> int:
    """Set the process up for arithmetic; the number of threads that it uses."""
    threads = runtime.threads or machine.cores()
    if threads < 0:
        raise UserError(f"--threads is {threads}; it must be at least 1, or 0 for all cores.")
    torch.set_num_threads(threads)
    tune_process()
    if device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")
    return threads


def assemble(
    stack: ExitStack,
    directory: RunDirectory,
    runtime: Runtime,
    device: str,
    facts: Mapping[str, Any],
    stop: Callable[[], str | None],
) -> Run:
    """A run with all its parts; `stack` closes what must be closed. Whatever may be refused comes before its files."""
    config = directory.config
    spec = environment_spec(config)
    fleet = Fleet([spec], workers=0)
    stack.callback(fleet.close)
    learner = make_learner(config, fleet, device)
    replay = Replay(replay_spec(config, fleet), device=device, path=runtime.replay_file)
    width = min(config.evaluation.episodes, EVALUATED_AT_ONCE)
    evaluator = Evaluator(
        [dataclasses.replace(spec, training=False)],
        [config.seed],
        frame_stack=config.env.frame_stack,
        width=width,
        workers=min(width, machine.cores()),
    )
    stack.callback(evaluator.close)
    # Evaluation draws from seeds of its own, so that its numbers are not those of some training step.
    apart = [episode_seed(config.seed, "evaluation's random numbers", 0)]
    draws = Draws({**learner.acting_plan(1), **learner.learning_plan()}, [config.seed], device)
    directory.open()
    stack.callback(directory.close)
    log = RunLog(directory.path)
    stack.callback(log.close)
    return Run(
        config=config,
        runtime=runtime,
        directory=directory,
        facts=facts,
        fleet=fleet,
        evaluator=evaluator,
        replay=replay,
        learner=learner,
        draws=draws,
        evaluation_draws=Draws(learner.acting_plan(width), apart, device),
        log=log,
        store=CheckpointStore(directory.path / "checkpoint"),
        progress=Progress(config.env_steps),
        stop=stop,
    )


def environment_spec(config: Config) -> EnvSpec:
    env: EnvironmentConfig = config.env
    return EnvSpec(
        config.task,
        observation=env.observation,
        size=env.size,
        action_repeat=env.action_repeat,
        camera=env.camera,
        shadows=env.shadows,
        protocol=env.protocol,
    )


def replay_spec(config: Config, fleet: Fleet) -> ReplaySpec:
    """What the replay holds: no more than the budget can fill."""
    agent, description = config.agent, fleet.descriptions[0]
    frame, discrete = description.observation_space, isinstance(description.action_space, spaces.Discrete)
    capacity = min(agent.replay_capacity, max(config.agent_steps, 2)) if isinstance(agent, SACConfig) else 2
    return ReplaySpec(
        frame_shape=shape_of(frame),
        action_shape=shape_of(description.action_space),
        capacity=capacity,
        stack=config.env.frame_stack,
        gamma=agent.discount if isinstance(agent, SACConfig) else 1.0,
        before_start=description.before_start,
        frame_dtype=torch.uint8 if frame.dtype == np.uint8 else torch.float32,
        action_dtype=torch.int64 if discrete else torch.float32,
        end_frames=0.05 if description.can_continue else 0.03,
    )


def make_learner(config: Config, fleet: Fleet, device: str) -> Learner:
    """The agent that the config names, for the spaces of this environment."""
    agent, description = config.agent, fleet.descriptions[0]
    space = description.action_space
    if isinstance(agent, RandomConfig):
        return RandomAgent(
            shape_of(space), fleet.action_counts.tolist() if isinstance(space, spaces.Discrete) else None
        )
    if isinstance(space, spaces.Discrete):
        raise UserError(
            f"{config.task} has {space.n} discrete actions, and preset {config.preset!r} is SAC, which needs "
            "continuous ones; choose a task of DMControl, or --preset random."
        )
    shape = shape_of(description.observation_space)
    stacked = (config.env.frame_stack * shape[0], *shape[1:])
    network = SAC(agent, stacked, shape_of(space)[0], config.seed, resolve_precision(agent.precision, device))
    return Population([network], device)


def shape_of(space: spaces.Space) -> tuple[int, ...]:
    """Gymnasium allows spaces without a shape; none of ours is."""
    assert space.shape is not None
    return space.shape


def _announcement(run: Run, device: str) -> str:
    """What is about to happen, and in which units."""
    config = run.config
    return (
        f"{config.task} with {config.preset}, seed {config.seed}, on {device}: {config.env_steps:,} env steps = "
        f"{config.agent_steps:,} agent steps × action repeat {config.env.action_repeat}; "
        f"replay {gigabytes(run.replay.spec.bytes_per_trial())}; files in {run.directory.path}."
    )
