"""DMControl against dm_control itself: rewards, ends, pictures, seeds; and the choice of OpenGL."""

import hashlib
import os
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_env_sb3

from curl_rl.envs import DMC28, describe, gl, make
from curl_rl.errors import UserError


@pytest.fixture
def opengl() -> gl.Backend:
    try:
        return gl.choose()
    except UserError as error:
        pytest.skip(str(error))


def _raw(task: str, seed: int) -> Any:
    make(task, observation="state").close()  # settles the backend before dm_control is imported
    from dm_control import suite

    return suite.load(*task.split("-", 1), task_kwargs={"random": seed})


def _actions(env: Any, count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (count, *env.action_space.shape)).astype(np.float32)


@pytest.mark.parametrize(("task", "repeat"), [("cheetah-run", 4), ("cartpole-swingup", 8), ("finger-spin", 2)])
def test_states_and_rewards_are_dm_controls(task: str, repeat: int) -> None:
    env, raw = make(task, observation="state", action_repeat=repeat), _raw(task, seed=7)
    observation, info = env.reset(seed=7)
    timestep = raw.reset()
    assert info == {"continues": False}
    for action in _actions(env, 60):
        np.testing.assert_array_equal(
            observation, np.concatenate([np.ravel(part) for part in timestep.observation.values()]).astype(np.float32)
        )
        observation, reward, terminated, truncated, info = env.step(action)
        expected = 0.0
        for _ in range(repeat):
            timestep = raw.step(action.astype(np.float64))
            expected += timestep.reward
        assert reward == info["raw_reward"] == pytest.approx(expected, abs=1e-12)
        assert not terminated
        assert not truncated
    env.close()


@pytest.mark.parametrize("task", DMC28)
def test_every_benchmark_task_plays(task: str) -> None:
    env = make(task, observation="state", action_repeat=2)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
    assert env.observation_space.contains(observation)
    assert 0 <= reward <= 2
    assert not terminated
    assert not truncated
    env.close()


def test_actions_are_rescaled_to_the_tasks_own_range() -> None:
    env = make("ball_in_cup-catch", observation="state")
    env._low, env._high = np.array([-3.0, 1.0]), np.array([1.0, 5.0])  # type: ignore[attr-defined]
    applied = []
    step = env._env.step  # type: ignore[attr-defined]
    env._env.step = lambda action: (applied.append(action), step(np.clip(action, -1, 1)))[1]  # type: ignore[attr-defined]
    env.reset(seed=0)
    env.step(np.array([-1, 1], np.float32))
    env.step(np.array([0, 0], np.float32))
    env.step(np.array([9, -9], np.float32))  # clipped
    np.testing.assert_array_equal(applied, [[-3, 5], [-1, 3], [1, 1]])
    env.close()


@pytest.mark.parametrize(("repeat", "steps"), [(1, 1000), (8, 125), (3, 334)])
def test_the_time_limit_is_a_truncation(repeat: int, steps: int) -> None:
    env = make("cartpole-swingup", observation="state", action_repeat=repeat)
    env.reset(seed=0)
    for step in range(1, steps + 1):
        _, _, terminated, truncated, _ = env.step(np.zeros(1, np.float32))
        assert not terminated
        assert truncated == (step == steps)
    env.close()


def test_a_discount_of_zero_is_a_termination() -> None:
    env = make("cartpole-swingup", observation="state", action_repeat=4)
    env.reset(seed=0)
    task = env._env.task  # type: ignore[attr-defined]
    countdown = iter([None, 0.0])
    task.get_termination = lambda physics: next(countdown)
    _, reward, terminated, truncated, _ = env.step(np.ones(1, np.float32))
    assert (terminated, truncated) == (True, False)
    assert next(countdown, "used up") == "used up"  # two simulator steps of the four: the repeat stops at the end
    assert reward > 0
    env.close()


def test_seeds_decide_the_episode() -> None:
    env = make("reacher-easy", observation="state")
    first, _ = env.reset(seed=3)
    other, _ = env.reset(seed=4)
    again, _ = env.reset(seed=3)
    unseeded, _ = env.reset()
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, unseeded)
    env.close()


@pytest.mark.gl
def test_check_env(opengl: gl.Backend) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(spec is not set|render|recommend|infinity|Box).*")
        for observation in ("pixels", "state", "both"):
            env = make("cartpole-swingup", observation=observation, action_repeat=8)  # type: ignore[arg-type]
            check_env(env, skip_render_check=True, skip_close_check=True)
            env.close()
            env = make("cartpole-swingup", observation=observation, action_repeat=8)  # type: ignore[arg-type]
            check_env_sb3(env)
            env.close()


@pytest.mark.gl
def test_pixels_are_dm_controls_to_the_bit(opengl: gl.Backend) -> None:
    """The offscreen buffer of the picture's size changes no pixel against the suite's 640 x 480."""
    env, raw = make("cheetah-run", render_size=120), _raw("cheetah-run", seed=2)
    observation, _ = env.reset(seed=2)
    raw.reset()
    for action in _actions(env, 6):
        assert (observation.shape, observation.dtype, observation.flags.c_contiguous) == ((3, 100, 100), np.uint8, True)
        np.testing.assert_array_equal(observation.transpose(1, 2, 0), raw.physics.render(100, 100, camera_id=0))
        np.testing.assert_array_equal(env.render(), raw.physics.render(120, 120, camera_id=0))
        observation, *_ = env.step(action)
        raw.step(action.astype(np.float64))
    env.close()
    raw.close()


@pytest.mark.gl
def test_fast_shadows_change_almost_nothing(opengl: gl.Backend) -> None:
    frames = {}
    for shadows in ("paper", "fast"):
        env = make("walker-walk", shadows=shadows)  # type: ignore[arg-type]
        frames[shadows] = env.reset(seed=0)[0].astype(int)
        size = env._env.physics.model.vis.quality.shadowsize  # type: ignore[attr-defined]
        assert size == {"paper": 2048, "fast": 512}[shadows]
        env.close()
    difference = abs(frames["paper"] - frames["fast"])
    assert 0 < difference.mean() < 0.1


@pytest.mark.gl
def test_both_observations_and_their_description(opengl: gl.Backend) -> None:
    env = make("cartpole-swingup", observation="both", size=64)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    description = describe(env)
    assert (description.frame_shape, description.before_start) == ((3, 64, 64), "repeat")
    env.close()
    assert describe(make("cartpole-swingup", observation="state")).frame_shape is None


@pytest.mark.gl
def test_replayed_actions_give_the_same_frame(opengl: gl.Backend) -> None:
    env, other = make("cartpole-swingup", action_repeat=8), make("cartpole-swingup", action_repeat=8)
    env.reset(seed=11)
    actions = _actions(env, 30)
    for action in actions:
        observation, *_ = env.step(action)
    np.testing.assert_array_equal(other.replay(11, actions), observation)  # type: ignore[attr-defined]
    ours, theirs = env.step(actions[0]), other.step(actions[0])
    np.testing.assert_array_equal(ours[0], theirs[0])
    assert ours[1:] == theirs[1:]
    env.close()
    other.close()


_DIGEST = """
import hashlib, numpy as np
from curl_rl.envs import make
env = make("walker-walk", action_repeat=2)
frames = [env.reset(seed=5)[0]]
for action in np.random.default_rng(0).uniform(-1, 1, (6, 6)).astype(np.float32):
    frames.append(env.step(action)[0])
print(hashlib.sha256(np.stack(frames).tobytes()).hexdigest())
env.close()
"""


@pytest.mark.gl
def test_the_same_seed_gives_the_same_frames_in_any_process(opengl: gl.Backend) -> None:
    env = make("walker-walk", action_repeat=2)
    frames = [env.reset(seed=5)[0], *(env.step(action)[0] for action in _actions(env, 6))]
    env.close()
    done = subprocess.run([sys.executable, "-c", _DIGEST], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hashlib.sha256(np.stack(frames).tobytes()).hexdigest()
    assert done.stderr == ""  # no complaint of GL's at the exit, no deprecation of the model file's


def test_an_unknown_camera_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UserError, match=r"no camera 'side'; this task has 0 \(fixed\), 1 \(lookatcart\)"):
        make("cartpole-swingup", observation="state", camera="side")


def _choose(script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    keep = {name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "CURL_RL_GL")}
    code = f"import os\nfrom curl_rl.envs import gl\nfrom curl_rl.errors import UserError\n{script}"
    return subprocess.run([sys.executable, "-c", code], env=keep | environ, capture_output=True, text=True, check=True)


@pytest.mark.gl
def test_the_backend_is_chosen_and_remembered_by_children(opengl: gl.Backend) -> None:
    done = _choose(
        "chosen = gl.choose()\nassert os.environ['MUJOCO_GL'] == chosen.name\n"
        "gl.choose.cache_clear()\ngl._try = None\n"  # a second trial would now fail
        "assert gl.choose() == chosen\nassert gl.environment()['MUJOCO_GL'] == chosen.name\nprint(chosen.name)"
    )
    assert done.stdout.strip() in gl.BACKENDS


@pytest.mark.parametrize("name", ["glfw", "nonsense", "disable"])
def test_a_broken_choice_of_the_users_is_one_sentence(name: str) -> None:
    environ = {"MUJOCO_GL": name, "DISPLAY": ""}
    done = _choose("try:\n    gl.choose()\nexcept UserError as error:\n    print(error)", **environ)
    assert done.stdout.count("\n") == 1
    assert done.stdout.startswith(f"MUJOCO_GL={name} cannot draw here (")
    assert "unset it" in done.stdout


def test_without_any_opengl_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gl.choose.cache_clear()
    monkeypatch.setenv("CURL_RL_GL", "{}")  # restored at the end
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(gl, "_taken_by_dm_control", lambda: None)
    monkeypatch.setattr(gl, "_RENDER_ONCE", "raise ImportError('libEGL.so.1: cannot open shared object file')")
    with pytest.raises(UserError, match=r"egl: ImportError: libEGL.*osmesa.*apt-get install .* libegl1 libgl1"):
        gl.choose()
    gl.choose.cache_clear()


def test_states_need_no_opengl() -> None:
    script = """
from curl_rl.envs import make
gl._RENDER_ONCE = "raise ImportError('no EGL')"
print(make("cartpole-swingup", observation="state").reset(seed=0)[0].shape, "MUJOCO_GL" in os.environ)
gl._try = None  # a second trial would now fail
try:
    make("cartpole-swingup")
except UserError as error:
    print(error)
"""
    done = _choose(script)
    assert done.stdout.startswith("(5,) False\nNo OpenGL works here")
    assert done.stderr == ""


@pytest.mark.gl
def test_time_per_frame_is_measured(opengl: gl.Backend) -> None:
    assert 0 < gl.milliseconds_per_frame(frames=2) < 5000
