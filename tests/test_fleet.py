"""The fleet against single environments, through resets, snapshots, and the deaths of workers and of the parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from curl_rl.envs import EnvironmentLost, EnvSpec, Fleet, episode_seed, gl
from curl_rl.errors import UserError


class Odd(gymnasium.Env):
    """Raises at the step it is told to, sleeps at action 1, or shows noise."""

    def __init__(self, fails_at: int = -1, noisy: bool = False) -> None:
        self.observation_space, self.action_space = Box(0, 255, (1, 36, 36), np.uint8), Discrete(4)
        self.fails_at, self.noise = fails_at, np.random.default_rng() if noisy else np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self.noise.integers(0, 256, (1, 36, 36), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == self.fails_at:
            raise ArithmeticError("the simulator diverged")
        if action == 1:
            time.sleep(60)
        loaded = float("torch" in sys.modules)
        return self.noise.integers(0, 256, (1, 36, 36), np.uint8), loaded, False, False, {}


def sound() -> Odd:
    return Odd()


def failing() -> Odd:
    return Odd(fails_at=3)


def noisy() -> Odd:
    return Odd(noisy=True)


def unmakeable() -> Odd:
    raise FileNotFoundError("no such level: 7")


def _workers(fleet: Fleet) -> list[int]:
    return [crew._process.pid for crew in fleet._crews]  # type: ignore[union-attr, misc]


def _actions(specs: list[EnvSpec], counts: np.ndarray | None, step: int) -> np.ndarray:
    random = np.random.default_rng(step)
    if counts is None:
        return random.uniform(-1, 1, (len(specs), 2)).astype(np.float32)
    return (random.random(len(specs)) * counts).astype(np.int64)


GAMES = ["breakout", "pong", "boxing", "freeway"]


@pytest.mark.parametrize(
    ("tasks", "steps"),
    [(["fake-discrete", "fake-lives"] * 3, 400), (["fake-continuous"] * 4, 300), (GAMES, 300)],
    ids=["discrete", "continuous", "games"],
)
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_fleet_is_its_environments_side_by_side(tasks: list[str], steps: int, workers: int) -> None:
    specs = [EnvSpec(task) for task in tasks]
    singles = [spec.make() for spec in specs]
    fleet = Fleet(specs, workers=workers)
    seeds = list(range(len(specs)))
    observations, infos = fleet.reset(seed=seeds)
    expected = [env.reset(seed=seed) for env, seed in zip(singles, seeds, strict=True)]
    np.testing.assert_array_equal(observations, [frame for frame, _ in expected])
    resets, continued = 0, 0
    for step in range(steps):
        actions = _actions(specs, getattr(fleet, "action_counts", None), step)
        if step % 2:
            observations, rewards, terminated, truncated, infos = fleet.step(actions)
        else:
            fleet.step_async(actions)
            observations, rewards, terminated, truncated, infos = fleet.step_wait()
        for i, env in enumerate(singles):
            frame, reward, end, cut, info = env.step(actions[i])
            np.testing.assert_array_equal(observations[i], frame)
            assert (rewards[i], terminated[i], truncated[i], infos["raw_reward"][i]) == (
                reward, end, cut, info["raw_reward"],
            )  # fmt: skip
        over = terminated | truncated
        if over.any():
            last = observations.copy()
            seeds = [episode_seed(i, "train", step) for i in range(len(specs))]
            observations, infos = fleet.reset(seed=seeds, options={"reset_mask": over})
            np.testing.assert_array_equal(observations[~over], last[~over])
            for i in np.flatnonzero(over):
                frame, info = singles[i].reset(seed=seeds[i])
                np.testing.assert_array_equal(observations[i], frame)
                assert infos["continues"][i] == info["continues"]
                resets, continued = resets + 1, continued + info["continues"]
            assert not infos["continues"][~over].any()
    assert resets > (3 if tasks is GAMES else 30)
    assert (continued > 0) == (tasks[-1] != "fake-continuous")
    fleet.close()


def test_it_is_a_gymnasium_vector_environment() -> None:
    fleet = Fleet([EnvSpec("pong"), EnvSpec("boxing"), EnvSpec("ALE/Breakout-v5")], workers=2)
    assert fleet.num_envs == 3
    assert fleet.metadata["autoreset_mode"] == AutoresetMode.DISABLED
    assert fleet.action_counts.tolist() == [6, 18, 4]
    assert fleet.single_action_space == Discrete(18)
    assert fleet.names == ["pong", "boxing", "breakout"]
    assert {d.before_start for d in fleet.descriptions} == {"zeros"}
    observations, _ = fleet.reset(seed=5)
    assert fleet.observation_space.contains(observations)
    other, _ = fleet.reset(seed=[5, 6, 7])  # an int counts up, as Gymnasium's own do
    np.testing.assert_array_equal(observations, other)
    fleet.close()
    fleet.close()


def test_results_are_copies() -> None:
    fleet = Fleet([EnvSpec("fake-discrete")])
    first, _ = fleet.reset(seed=[1])
    kept = first.copy()
    second, *_ = fleet.step([0])
    np.testing.assert_array_equal(first, kept)
    assert not np.array_equal(first, second)


def test_misuse_is_refused() -> None:
    fleet = Fleet([EnvSpec("fake-discrete")] * 2, workers=0)
    with pytest.raises(ValueError, match=r"environments \[0, 1\] are over"):
        fleet.step([0, 0])
    fleet.reset(seed=[1, 2])
    with pytest.raises(ValueError, match="actions \\(2,\\) of int64, not \\(3,\\)"):
        fleet.step([0, 0, 0])
    with pytest.raises(ValueError, match="not \\(2,\\) of float64"):
        fleet.step([0.5, 0.5])
    with pytest.raises(ValueError, match="without step_async"):
        fleet.step_wait()
    fleet.step_async([0, 0])
    for act in (lambda: fleet.step_async([0, 0]), lambda: fleet.reset(), lambda: fleet.snapshot(0)):
        with pytest.raises(ValueError, match="while a step is under way"):
            act()
    fleet.step_wait()
    while not any(np.any(flags) for flags in fleet.step([0, 0])[2:4]):
        pass
    with pytest.raises(ValueError, match=r"the episodes of environments \[\d"):
        fleet.step([0, 0])


def test_fleets_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match="at least one"):
        Fleet([])
    with pytest.raises(UserError, match=r"must look alike: fake-discrete .* fake-continuous"):
        Fleet([EnvSpec("fake-discrete"), EnvSpec("fake-continuous")], workers=1)
    with pytest.raises(UserError, match="already made"):
        Fleet([EnvSpec(sound())] * 2, workers=1)
    with pytest.raises(UserError, match="cannot travel to a worker"):
        Fleet([EnvSpec(lambda: sound())] * 2, workers=1)
    with pytest.raises(UserError, match="FileNotFoundError: no such level: 7"):
        Fleet([EnvSpec(unmakeable)] * 2, workers=1)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("task", ["fake-discrete", "fake-lives", "fake-continuous", "breakout"])
def test_snapshots_bring_an_environment_back(task: str, workers: int) -> None:
    specs = [EnvSpec(task)] * 2
    fleet, fresh = Fleet(specs, workers=workers), Fleet(specs, workers=workers)
    fleet.reset(seed=[3, 4])
    counts = getattr(fleet, "action_counts", None)
    for step in range(9):
        observations, _, terminated, truncated, _ = fleet.step(_actions(specs, counts, step))
        if (over := terminated | truncated).any():
            observations, _ = fleet.reset(seed=[step, step], options={"reset_mask": over})
    for i in range(2):
        snapshot = fleet.snapshot(i)
        assert all(isinstance(value, int | bytes | np.ndarray) for value in snapshot.values())
        assert ("state" in snapshot) == (task != "fake-continuous")
        assert fresh.restore(i, snapshot, observations[i])
    for step in range(4):
        actions = _actions(specs, counts, 100 + step)
        ours, theirs = fleet.step(actions), fresh.step(actions)
        for one, other in zip(ours[:4], theirs[:4], strict=True):
            np.testing.assert_array_equal(one, other)
        if (over := ours[2] | ours[3]).any():
            resets = [f.reset(seed=[9, 9], options={"reset_mask": over}) for f in (fleet, fresh)]
            np.testing.assert_array_equal(resets[0][0], resets[1][0])
    fleet.close()
    fresh.close()


def test_a_snapshot_of_a_restored_environment_holds_all_its_actions() -> None:
    fleet = Fleet([EnvSpec("fake-continuous")])
    fleet.reset(seed=[3])
    frame = fleet.step(np.zeros((1, 2), np.float32))[0][0]
    assert fleet.restore(0, fleet.snapshot(0), frame)
    fleet.step(np.ones((1, 2), np.float32))
    assert fleet.snapshot(0)["seed"] == 3
    np.testing.assert_array_equal(fleet.snapshot(0)["actions"], [[0, 0], [1, 1]])


@pytest.mark.gl
def test_pixels_of_dmcontrol_come_back_by_their_actions() -> None:
    try:
        gl.choose()
    except UserError as error:
        pytest.skip(str(error))
    specs = [EnvSpec("cartpole-swingup", action_repeat=8)]
    fleet, fresh = Fleet(specs, workers=1), Fleet(specs, workers=1)
    observations, _ = fleet.reset(seed=[21])
    for step in range(20):
        observations, *_ = fleet.step(np.array([[np.sin(step)]], np.float32))
    assert fresh.restore(0, fleet.snapshot(0), observations[0])
    action = np.array([[0.5]], np.float32)
    np.testing.assert_array_equal(fleet.step(action)[0], fresh.step(action)[0])
    fleet.close()
    fresh.close()


def test_an_environment_that_does_not_repeat_itself_is_found_out() -> None:
    fleet = Fleet([EnvSpec(noisy)])
    fleet.reset(seed=[0])
    frame = fleet.step([0])[0][0]
    assert not fleet.restore(0, fleet.snapshot(0), frame)
    with pytest.raises(ValueError, match="reset them first"):
        fleet.step([0])
    fleet.reset(seed=[1])
    fleet.step([0])


@pytest.mark.parametrize("asleep", [True, False])
def test_a_killed_worker_takes_only_its_own_environments(asleep: bool) -> None:
    specs = [EnvSpec(task) for task in ("fake-discrete", "fake-lives", "fake-discrete", "fake-discrete")]
    fleet = Fleet(specs, workers=2)
    alone = specs[3].make()
    fleet.reset(seed=[0, 1, 2, 3])
    alone.reset(seed=3)
    if asleep:
        os.kill(_workers(fleet)[0], signal.SIGSTOP)
    else:
        os.kill(_workers(fleet)[0], signal.SIGKILL)
    fleet.step_async([0, 1, 2, 3])
    if asleep:
        os.kill(_workers(fleet)[0], signal.SIGKILL)
    with pytest.raises(
        EnvironmentLost,
        match=r"environment 0 \(fake-discrete\): .*SIGKILL.*environment 1 \(fake-lives\).* 2 of 4 go on",
    ) as caught:
        fleet.step_wait()
    assert (caught.value.lost, caught.value.survivors) == ((0, 1), (2, 3))
    assert fleet.alive.tolist() == [False, False, True, True]
    frame, reward, *_ = alone.step(3)
    np.testing.assert_array_equal(caught.value.result[0][3], frame)
    assert caught.value.result[1].tolist() == [0, 0, caught.value.result[1][2], reward]
    for action in (1, 0):  # and life goes on
        np.testing.assert_array_equal(fleet.step([0, 0, 0, action])[0][3], alone.step(action)[0])
    observations, _ = fleet.reset(seed=[9, 9, 9, 9])
    np.testing.assert_array_equal(observations[3], alone.reset(seed=9)[0])
    with pytest.raises(ValueError, match=r"environment 1 \(fake-lives\) is lost"):
        fleet.snapshot(1)
    fleet.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_in_an_environment_is_reported_with_its_name(workers: int) -> None:
    fleet = Fleet([EnvSpec(sound), EnvSpec(failing), EnvSpec(sound)], workers=workers)
    fleet.reset(seed=[0, 0, 0])
    fleet.step([0, 0, 0])
    fleet.step([0, 0, 0])
    reason = r"environment 1 \(failing\): ArithmeticError: the simulator diverged \(test_fleet.py, line \d+\)"
    with pytest.raises(EnvironmentLost, match=reason) as caught:
        fleet.step([0, 0, 0])
    assert caught.value.survivors == (0, 2)
    observations, *_ = fleet.step([0, 0, 0])
    np.testing.assert_array_equal(observations[0], observations[2])
    fleet.close()


def test_workers_outlive_interrupts() -> None:
    fleet = Fleet([EnvSpec("fake-discrete")] * 2, workers=2)
    fleet.reset(seed=[0, 1])
    for pid in _workers(fleet):
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.1)
    fleet.step([0, 0])
    assert "state" in fleet.snapshot(1)
    fleet.close()


_MAIN = """
import sys, torch
import numpy as np
from curl_rl.envs import EnvSpec, Fleet
from test_fleet import sound

if __name__ == "__main__":
    fleet = Fleet([EnvSpec(sound)] * 3, workers=2)
    fleet.reset(seed=[0, 1, 2])
    _, torch_loaded, *_ = fleet.step([0, 0, 0])
    print(*[crew._process.pid for crew in fleet._crews], torch_loaded.any(), flush=True)
    if sys.argv[1] == "wait":
        sys.stdin.read()
    if sys.argv[1] == "hang":
        fleet.step([0, 1, 1])
"""


def _start_main(folder: Path, ending: str) -> subprocess.Popen[str]:
    (folder / "main.py").write_text(_MAIN)
    command = [sys.executable, str(folder / "main.py"), ending]
    pipe, environ = subprocess.PIPE, os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.Popen(
        command, env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def _gone(pid: int, seconds: float = 15) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("ending", ["wait", "hang", "leave"])
def test_no_process_and_no_word_is_left_behind(ending: str, tmp_path: Path) -> None:
    """The parent is killed between steps or within one, or leaves without closing; its workers loaded no torch."""
    with _start_main(tmp_path, ending) as main:
        assert main.stdout is not None
        assert main.stderr is not None
        try:
            *pids, torch_loaded = main.stdout.readline().split()
            assert len(pids) == 2
            assert torch_loaded == "False"
            if ending == "leave":
                assert main.wait(timeout=30) == 0
            time.sleep(0.3)
        finally:
            main.kill()
        assert all(_gone(int(pid)) for pid in pids)
        assert main.stderr.read() == ""  # its end comes when every child has closed it
