"""A run: act, store, update, evaluate, checkpoint. Called again, it goes on where it stopped.

One agent step:

    act on the current stack → update on what was stored before, while the environment steps → store
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .checkpoint import Checkpoint, CheckpointStore
from .config import Config, Runtime
from .envs import Fleet, episode_seed
from .errors import UserError
from .evaluate import Evaluator
from .log import Progress, RunLog, duration, read_rows
from .pictures import draw_curve, write_gif
from .replay import Batch, Replay
from .rng import Draws, Purpose
from .run import RunDirectory
from .scores import Score, summarise, versions_cell, write_scores


class Learner(Protocol):
    """What the loop asks of an agent. Every tensor has the trial axis T first."""

    def acting_plan(self, stacks: int) -> Mapping[str, tuple[Purpose, int]]:
        """The random words that acting on so many stacks a trial takes."""

    def learning_plan(self) -> Mapping[str, tuple[Purpose, int]]:
        """The random words that the learning of one agent step takes."""

    def learns_at(self, agent_step: int) -> bool:
        """Whether this agent step includes an update."""

    def act(self, stacks: Tensor, drawn: Mapping[str, Tensor], agent_step: int, explore: bool) -> Tensor:
        """Actions [T, n, …] for stacks [T, n, …]."""

    def update(self, batch: Batch, drawn: Mapping[str, Tensor], agent_step: int) -> Mapping[str, Tensor]:
        """Learn from a batch; metrics [T], not fetched."""

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...


class Stopped(Exception):
    """Somebody asked the run to pause."""


@dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended."""

    directory: Path
    env_steps: int
    finished: bool
    sentence: str


@dataclass
class Clock:
    """Where the run stands: everything that is neither weights nor replay."""

    agent_step: int = 0
    episode: int = 0
    """Episodes begun."""
    episode_return: float = 0.0
    """Of the game that is being played."""
    episode_length: int = 0
    evaluated_at: int = 0
    """The agent step of the last evaluation."""
    last_return: float | None = None
    """Of the last finished episode, for the progress line."""
    wall_s: float = 0.0
    """Time spent before this process took over."""


@dataclass
class Run:
    """One trial's training, put together."""

    config: Config
    runtime: Runtime
    directory: RunDirectory
    facts: Mapping[str, Any]
    fleet: Fleet
    evaluator: Evaluator
    replay: Replay
    learner: Learner
    draws: Draws
    evaluation_draws: Draws
    log: RunLog
    store: CheckpointStore
    progress: Progress
    stop: Callable[[], str | None]
    """The reason to pause, where there is one."""
    clock: Clock = field(default_factory=Clock)
    _awake_since: float = field(default_factory=time.monotonic)

    @property
    def wall_s(self) -> float:
        """Time spent so far, pauses left out."""
        return self.clock.wall_s + time.monotonic() - self._awake_since

    # ------------------------------------------------------------------------------------------------ one agent step

    def advance(self) -> Mapping[str, Tensor]:
        """One agent step; returns the metrics of its update, where there was one."""
        step = self.clock.agent_step
        drawn = self.draws.draw(step)
        actions = self.learner.act(self.replay.stacks()[:, None], drawn, step, explore=True)[:, 0]
        self.fleet.step_async(actions.numpy(force=True))
        metrics: Mapping[str, Tensor] = {}
        if self.learner.learns_at(step):
            batch = self.replay.sample(drawn["sample"])
            metrics = self.learner.update(batch, drawn, step)
        frames, rewards, terminated, truncated, infos = self.fleet.step_wait()
        self.replay.add(actions, rewards, terminated, truncated, frames)
        self.clock.agent_step += 1
        self.clock.episode_return += float(infos["raw_reward"][0])
        self.clock.episode_length += 1
        if terminated[0] or truncated[0]:
            self.begin_episode()
        return metrics

    def begin_episode(self) -> None:
        """Reset the environment; the episode's number decides its seed."""
        seed = episode_seed(self.config.seed, "train", self.clock.episode)
        frames, infos = self.fleet.reset(seed=[seed])
        continues = np.asarray(infos["continues"])
        if self.clock.episode and not continues[0]:
            self._log_episode()
        self.clock.episode += 1
        self.replay.begin(frames, np.ones(1, bool), continues)

    def _log_episode(self) -> None:
        self.clock.last_return = self.clock.episode_return
        self.log.write(
            self.env_steps,
            {"charts/episodic_return": self.clock.episode_return, "charts/episodic_length": self.clock.episode_length},
        )
        self.clock.episode_return, self.clock.episode_length = 0.0, 0

    @property
    def env_steps(self) -> int:
        return self.clock.agent_step * self.config.env.action_repeat

    # ------------------------------------------------------------------------------------------------ evaluation, logs

    def evaluation_is_due(self) -> bool:
        """At every mark of the config that this step reached or passed, and at the end; once each."""
        step, repeat, marks = self.clock.agent_step, self.config.env.action_repeat, self.config.evaluation
        if step == self.clock.evaluated_at or step == 0:
            return False
        now, before = step * repeat, (step - 1) * repeat
        every = marks.every_env_steps
        regular = every > 0 and now // every > before // every
        marked = any(before < mark <= now for mark in marks.also_at_env_steps)
        return regular or marked or step >= self.config.agent_steps

    def evaluate(self) -> None:
        episodes = self.config.evaluation.episodes
        self.progress.say(f"Evaluating {episodes} episodes at {self.env_steps:,} env steps …")
        step = self.clock.agent_step
        played = self.evaluator.evaluate(self._act_in_evaluation, step, episodes, keep_frames=True)[0]
        returns = [episode.score for episode in played]
        mean, std = summarise(returns)
        self.clock.evaluated_at = self.clock.agent_step
        self.log.write_evaluation(
            self.env_steps,
            {
                "agent_steps": self.clock.agent_step,
                "episodes": episodes,
                "mean": mean,
                "std": std,
                "returns": returns,
                "lengths": [episode.agent_steps for episode in played],
                "wall_s": round(self.wall_s, 1),
            },
        )
        self.progress.say(f"{self.env_steps:,} env steps: return {mean:.1f} ± {std:.1f} over {episodes} episodes.")
        self._draw(played[0].frames)

    def _draw(self, frames: Sequence[np.ndarray]) -> None:
        """The newest evaluation's first episode as the agent saw it (states cannot be seen), and the curve so far."""
        folder, config = self.directory.path, self.config
        if frames[0].ndim == 3:
            write_gif(folder / "video.gif", frames, 0.02 * config.env.action_repeat, scale=2)
        if not draw_curve(folder, f"{config.task}, {config.preset}, seed {config.seed}"):
            self.progress.say("No curve.png: it needs matplotlib, `pip install 'curl-rl[report]'`.")

    def _act_in_evaluation(self, stacks: np.ndarray, decision: int) -> np.ndarray:
        self._check_stop()
        drawn = self.evaluation_draws.draw((self.clock.agent_step << 14) + decision)
        seen = torch.from_numpy(stacks).to(self.replay.device)
        return self.learner.act(seen, drawn, self.clock.agent_step, explore=False).numpy(force=True)

    def _check_stop(self) -> None:
        if self.stop():
            raise Stopped

    def log_metrics(self, metrics: Mapping[str, Tensor]) -> None:
        """Fetch the newest metrics; a NaN ends the run by its name."""
        row = {name: float(value[0]) for name, value in metrics.items()}
        self._refuse_broken([name for name, value in row.items() if not math.isfinite(value)])
        self.log.write(self.env_steps, {**row, "charts/SPS": round(self.env_steps / self.wall_s, 1)})

    def _refuse_broken(self, names: Sequence[str]) -> None:
        if names:
            raise UserError(
                f"{names[0]} is no longer finite at {self.env_steps:,} env steps, so the run was stopped; its last "
                "checkpoint is from before. A smaller --agent.learning-rate or --agent.precision fp32 often mends this."
            )

    def show_progress(self, metrics: Mapping[str, Tensor]) -> None:
        shown: dict[str, float | None] = {"return": self.clock.last_return}
        shown |= {name.removeprefix("losses/"): float(metrics[name][0]) for name in list(metrics)[:3]}
        self.progress.show(self.env_steps, shown)

    # ------------------------------------------------------------------------------------------------ save and restore

    def save(self) -> None:
        """One checkpoint: everything, the replay's frames only as far as they are new."""
        agent = self.learner.state_dict()
        self._refuse_broken([name for name, value in agent.items() if not value.isfinite().all()])
        self.log.flush()
        state = {
            "clock": {**vars(self.clock), "wall_s": self.wall_s},
            "log": self.log.sizes(),
            "environment": self.fleet.snapshot(0),
        }
        oldest, end = self.replay.frame_range(0)
        begin = max(self.store.saved_until(), oldest)
        frames = self.replay.frames_between(0, begin, end).numpy()
        self.store.save({"agent": agent, "replay": self.replay.state()}, state, frames, begin, oldest)

    def restore(self, checkpoint: Checkpoint) -> None:
        """The way back; the environment in the middle of its episode included."""
        self.clock = Clock(**checkpoint.state["clock"])
        self.log.begin(self.env_steps, checkpoint.state["log"])
        self.learner.load_state_dict(checkpoint.tensors["agent"])
        self.replay.load_state(checkpoint.tensors["replay"])
        spec = self.replay.spec
        for segment in checkpoint.segments:
            frames = self.store.frames(segment, spec.frame_shape, spec.frame_dtype)
            self.replay.write_frames(0, segment.begin, frames)
        end = self.replay.frame_range(0)[1]
        newest = self.replay.frames_between(0, end - 1, end)[0].numpy()
        if not self.fleet.restore(0, checkpoint.state["environment"], newest):
            self.progress.say(
                f"{self.config.task} is not deterministic: replaying its episode led elsewhere, so a new one begins."
            )
            self.clock.episode_return, self.clock.episode_length = 0.0, 0
            self.begin_episode()

    # ------------------------------------------------------------------------------------------------ the whole run

    def go(self) -> Outcome:
        checkpoint, complaints = self.store.load()
        for complaint in complaints:
            self.progress.say(complaint)
        if checkpoint is None:
            self.log.begin(0, {})
            self.begin_episode()
        else:
            self.restore(checkpoint)
            self.progress.say(f"Going on from {self.env_steps:,} env steps.")
        try:
            self._train()
        except Stopped:
            self.save()
            sentence = f"Paused at {self.env_steps:,} env steps ({self.stop()}); the same command goes on."
            return Outcome(self.directory.path, self.env_steps, False, sentence)
        self._finish()
        sentence = f"Finished {self.env_steps:,} env steps in {duration(self.wall_s)}."
        return Outcome(self.directory.path, self.env_steps, True, sentence)

    def _train(self) -> None:
        saved_at = time.monotonic()
        while True:
            if self.evaluation_is_due():
                self.evaluate()
                self.save()
                saved_at = time.monotonic()
            if self.clock.agent_step >= self.config.agent_steps:
                return
            self._check_stop()
            if time.monotonic() - saved_at > self.runtime.checkpoint_seconds:
                self.save()
                saved_at = time.monotonic()
            metrics = self.advance()
            if metrics and (self.clock.agent_step - 1) % self.runtime.log_every_agent_steps == 0:
                self.log_metrics(metrics)
            if self.progress.due():
                self.show_progress(metrics)

    def _finish(self) -> None:
        """The run's summary, from its files alone."""
        last = read_rows(self.log.evaluations.path)[-1]
        score = Score(
            suite="",
            task=self.config.task,
            preset=self.config.preset,
            seed=self.config.seed,
            protocol="final",
            env_steps=last["env_steps"],
            agent_steps=last["agent_steps"],
            episodes=last["episodes"],
            mean=last["mean"],
            std=last["std"],
            wall_s=round(self.wall_s, 1),
            device=str(self.facts["gpu"] or self.facts["cpu"]),
            versions=versions_cell(self.facts["versions"]),
            command=str(self.facts["command"]),
        )
        write_scores([score], self.directory.path / "scores.csv")
        self.directory.mark_done({"env_steps": self.env_steps, "mean": last["mean"], "wall_s": score.wall_s})


class StopRequest:
    """Ctrl-C, SIGTERM or the end of the time given: a wish, which the loop grants between two steps.

    A second Ctrl-C interrupts at once; the last checkpoint is then what the run goes on from.
    """

    def __init__(self, seconds: float | None):
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._signal: str | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._signal = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name

    def reason(self) -> str | None:
        if self._signal is None and self._deadline is not None and time.monotonic() >= self._deadline:
            return "the time given by --stop-after is over"
        return self._signal

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
