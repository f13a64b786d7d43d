"""Config: JSON round trip, strict reading, presets as rows, the order preset < task's row < flags."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from curl_rl import config as module
from curl_rl.config import Config, RandomConfig, SACConfig, differences, from_json, to_json
from curl_rl.envs import ATARI26, DMC28
from curl_rl.errors import UserError
from curl_rl.presets import PRESETS, configure, override

SOURCE = Path(module.__file__).parent


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("task", ["cartpole-swingup", "ms_pacman", "fake-continuous"])
def test_every_preset_survives_json(preset: str, task: str) -> None:
    config = configure(task, preset)
    assert from_json(Config, json.loads(json.dumps(to_json(config)))) == config


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("agent.batch_sise", 3, "did you mean 'batch_size'"),
        ("agent.batch_size", "3", "config.agent.batch_size is '3', but must be of type int"),
        ("agent.batch_size", True, "must be of type int"),
        ("agent.contrastive.step", "both", "must be one of 'own', 'joint', 'authors'"),
        ("agent.kind", "PPO", "whose kind is one of SACConfig, RandomConfig"),
        ("env", 3, "config.env must be an object"),
        ("evaluation.also_at_env_steps", [1, "x"], "must be of type int"),
    ],
)
def test_reading_refuses_what_does_not_fit(path: str, value: object, says: str) -> None:
    data = to_json(configure("cartpole-swingup"))
    inner = data
    *outer, last = path.split(".")
    for name in outer:
        inner = inner[name]
    inner[last] = value
    with pytest.raises(UserError, match=re.escape(says)):
        from_json(Config, data)


def test_an_integer_may_stand_for_a_float() -> None:
    data = to_json(configure("cartpole-swingup"))
    data["agent"]["discount"] = 1
    assert isinstance(from_json(Config, data).agent.discount, float)


def test_differences_name_the_fields() -> None:
    old = configure("cartpole-swingup")
    new = override(override(old, "agent.batch_size", 128), "seed", 4)
    assert differences(old, new) == ["agent.batch_size: 512 → 128", "seed: 0 → 4"]
    assert differences(old, old) == []


def test_the_papers_table_of_hyperparameters() -> None:
    repeats = {task: configure(task).env.action_repeat for task in DMC28}
    assert {task: n for task, n in repeats.items() if n != 4} == {
        "finger-spin": 2,
        "walker-walk": 2,
        "cartpole-swingup": 8,
    }
    rates = {task: configure(task).agent.learning_rate for task in DMC28}
    assert {task: rate for task, rate in rates.items() if rate != 1e-3} == {"cheetah-run": 2e-4}
    agent = configure("walker-walk", "curl-sac").agent
    assert (agent.batch_size, agent.encoder_tau, agent.critic_tau, agent.initial_alpha) == (512, 0.05, 0.01, 0.1)
    assert configure("walker-walk").env.size == 100
    assert configure("cartpole-swingup").agent_steps == 12_500


def test_state_sac_keeps_its_action_repeat() -> None:
    config = configure("cartpole-swingup", "state-sac")
    assert config.env.action_repeat == 1
    assert config.env.observation == "state"


def test_atari_counts_four_frames_a_decision() -> None:
    for game in ATARI26:
        config = configure(game, "random")
        assert (config.env_steps, config.agent_steps) == (400_000, 100_000)
        assert config.env.protocol is not None


def test_flags_come_last() -> None:
    assert configure("cartpole-swingup", env__action_repeat=2).env.action_repeat == 2


def test_unknown_names_are_answered_with_a_guess() -> None:
    with pytest.raises(UserError, match="did you mean 'curl-sac'"):
        configure("cartpole-swingup", "curl-sak")
    with pytest.raises(UserError, match="did you mean cartpole-swingup"):
        configure("cartpole-swingip")


def test_every_field_is_documented_and_read_somewhere() -> None:
    """A knob that nothing reads is worse than none."""
    code = "\n".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name not in ("config.py", "presets.py"))
    code += (SOURCE / "config.py").read_text().split("class Runtime")[1]
    for cls in (module.EnvironmentConfig, module.ContrastiveConfig, SACConfig, RandomConfig, Config, module.Runtime):
        for field in dataclasses.fields(cls):
            assert re.search(rf"\.{field.name}\b", code), f"{cls.__name__}.{field.name} is never read"
            documented = rf'    {field.name}: [^\n]+\n    """[^"]+"""'
            assert re.search(documented, (SOURCE / "config.py").read_text()), f"{field.name} has no docstring"
