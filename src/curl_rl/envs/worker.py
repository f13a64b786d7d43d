"""The environments of one process, and the loop of a worker process that holds them for a `Fleet`. Imports no torch."""

import mmap
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable
from math import prod
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

import gymnasium
import numpy as np

from curl_rl.envs.spec import Description, EnvSpec, describe
from curl_rl.errors import UserError

Failures = dict[int, str]
"""What went wrong, by the environment's number in the fleet."""


class Buffers:
    """The arrays by which a fleet and its groups exchange a step: a row per environment, all in one block of memory."""

    def __init__(self, observation_space: gymnasium.Space, action_space: gymnasium.Space, count: int) -> None:
        self.arguments = (observation_space, action_space, count)
        """From which another process makes its own."""
        self.count = count
        self._keyed = isinstance(observation_space, gymnasium.spaces.Dict)
        spaces = dict(observation_space.items()) if isinstance(observation_space, gymnasium.spaces.Dict) else None
        self._fields: dict[str, tuple[tuple[int, ...], np.dtype]] = {
            **{f"observation/{key}": _row(space) for key, space in (spaces or {"": observation_space}).items()},
            "action": _row(action_space),
            "reward": ((), np.dtype(np.float64)),
            "raw_reward": ((), np.dtype(np.float64)),
            "terminated": ((), np.dtype(bool)),
            "truncated": ((), np.dtype(bool)),
            "continues": ((), np.dtype(bool)),
            "seed": ((), np.dtype(np.int64)),
            "reset": ((), np.dtype(bool)),
        }

    @property
    def nbytes(self) -> int:
        return sum(self._size(shape, dtype) for shape, dtype in self._fields.values())

    def allocate(self) -> int:
        """Lay the arrays over new memory, and give the descriptor by which another process attaches to it.

        The file behind it has no name, so nothing is left over however the processes end.
        """
        folder = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(self.nbytes))  # too little room shows here, and not as a bus error later
                file.flush()
                self.attach(file.fileno())
                return os.dup(file.fileno())
        except OSError as error:
            needed = f"{self.nbytes / 2**20:.0f} MiB in {folder}"
            raise UserError(f"The environments' shared memory needs {needed} ({error.strerror}); make room.") from error

    def attach(self, descriptor: int) -> None:
        """Lay the arrays over the memory behind a descriptor."""
        memory = mmap.mmap(descriptor, self.nbytes)
        arrays, offset = {}, 0
        for name, (shape, dtype) in self._fields.items():
            arrays[name] = np.ndarray((self.count, *shape), dtype, memory, offset)
            offset += self._size(shape, dtype)
        self.action, self.seed, self.reset = arrays["action"], arrays["seed"], arrays["reset"]
        self.reward, self.raw_reward, self.continues = arrays["reward"], arrays["raw_reward"], arrays["continues"]
        self.terminated, self.truncated = arrays["terminated"], arrays["truncated"]
        self._observations = {
            name.partition("/")[2]: array for name, array in arrays.items() if name.startswith("observation/")
        }

    def write_observation(self, index: int, observation: Any) -> None:
        for key, array in self._observations.items():
            array[index] = observation[key] if self._keyed else observation

    def observations(self) -> Any:
        """A copy of all observations: an array, or a dict of them where the observation space is one."""
        copies = {key: array.copy() for key, array in self._observations.items()}
        return copies if self._keyed else copies[""]

    def shows(self, index: int, observation: Any) -> bool:
        """Whether this row's observation equals the given one exactly."""
        return all(
            np.array_equal(array[index], observation[key] if self._keyed else observation)
            for key, array in self._observations.items()
        )

    def _size(self, shape: tuple[int, ...], dtype: np.dtype) -> int:
        needed = self.count * prod(shape) * dtype.itemsize
        return -(-needed // 64) * 64  # whole cache lines, so that every array is aligned


def _row(space: gymnasium.Space) -> tuple[tuple[int, ...], np.dtype]:
    assert space.shape is not None
    assert space.dtype is not None
    return space.shape, np.dtype(space.dtype)


class Group:
    """Some of a fleet's environments, stepped one after another in this process."""

    def __init__(self, specs: dict[int, EnvSpec]) -> None:
        self._envs = {index: spec.make() for index, spec in specs.items()}
        # Where an environment cannot save its state, its episode is recorded: the seed and the actions since.
        self._episodes: dict[int, tuple[int, list[Any]]] = {}

    def descriptions(self) -> dict[int, Description]:
        return {index: describe(env) for index, env in self._envs.items()}

    def attach(self, buffers: Buffers) -> None:
        self._buffers = buffers

    def handle(self, request: str, *arguments: Any) -> tuple[Any, Failures]:
        """Answer `step`, `reset` (by the mask), or one environment's `snapshot` or `restore`: result and failures."""
        if request == "step":
            return None, self._each(list(self._envs), self._step)
        if request == "reset":
            return None, self._each([index for index in self._envs if self._buffers.reset[index]], self._reset)
        results: list[Any] = []
        act: Callable[..., Any] = self._snapshot if request == "snapshot" else self._restore
        failures = self._each([arguments[0]], lambda index: results.append(act(index, *arguments[1:])))
        return (results[0] if results else None), failures

    def _snapshot(self, index: int) -> dict[str, Any]:
        env = self._envs[index]
        if hasattr(env, "get_state"):
            return {"state": env.get_state()}
        seed, actions = self._episodes[index]
        return {"seed": seed, "actions": np.array(actions, self._buffers.action.dtype)}

    def _restore(self, index: int, snapshot: dict[str, Any]) -> None:
        """Put an environment where the snapshot was taken, and its observation into the buffers."""
        env = self._envs[index]
        if "state" in snapshot:
            observation = env.set_state(snapshot["state"])  # type: ignore[attr-defined]  # as snapshot() found it
        else:
            seed, actions = int(snapshot["seed"]), list(snapshot["actions"])
            observation = _replay(env, seed, actions)
            self._episodes[index] = (seed, actions)
        self._buffers.write_observation(index, observation)

    def close(self) -> None:
        for env in self._envs.values():
            env.close()

    def _reset(self, index: int) -> None:
        env, buffers = self._envs[index], self._buffers
        seed = int(buffers.seed[index])
        observation, info = env.reset(seed=seed)
        if not hasattr(env, "get_state"):
            self._episodes[index] = (seed, [])
        buffers.write_observation(index, observation)
        buffers.continues[index] = info.get("continues", False)

    def _step(self, index: int) -> None:
        buffers = self._buffers
        action = buffers.action[index].copy()
        if index in self._episodes:
            self._episodes[index][1].append(action)
        observation, reward, terminated, truncated, info = self._envs[index].step(action)
        buffers.write_observation(index, observation)
        buffers.reward[index] = reward
        buffers.raw_reward[index] = info.get("raw_reward", reward)
        buffers.terminated[index], buffers.truncated[index] = terminated, truncated

    def _each(self, indices: Iterable[int], act: Callable[[int], None]) -> Failures:
        """Whoever raises is out: an environment after an exception is in no known state. The others go on."""
        failures = {}
        for index in indices:
            try:
                act(index)
            except Exception as error:  # whatever a stranger's environment raises
                failures[index] = _reason(error)
                del self._envs[index]
        return failures


def _reason(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}, line {where.lineno})"


def _replay(env: gymnasium.Env, seed: int, actions: list[Any]) -> Any:
    if hasattr(env, "replay"):
        return env.replay(seed, actions)
    observation, _ = env.reset(seed=seed)
    for action in actions:
        observation = env.step(action)[0]
    return observation


def work(connection: Connection, specs: dict[int, EnvSpec], environ: dict[str, str]) -> None:
    """A worker's life: make the environments, then answer requests until told to close or the parent is gone."""
    # The parent decides what an interrupt means, and asks for snapshots after it: so workers outlive Ctrl-C, and the
    # SIGTERM that batch systems send to all processes of a job.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    os.environ.update(environ)
    try:
        group = Group(specs)
        connection.send((group.descriptions(), ""))
    except Exception as error:  # reported by the parent, in one sentence
        connection.send((None, str(error) if isinstance(error, UserError) else _reason(error)))
        return
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(1)  # one picture is too little for two cores, and the cores are taken
    try:
        group.attach(_receive_buffers(connection))
        _serve(connection, group)
    except (EOFError, ConnectionError):
        pass  # the parent is gone
    group.close()


def _serve(connection: Connection, group: Group) -> None:
    while True:
        request, *arguments = connection.recv()
        if request == "close":
            return
        connection.send(group.handle(request, *arguments))


def _receive_buffers(connection: Connection) -> Buffers:
    buffers = Buffers(*connection.recv())
    descriptor = recv_handle(connection)
    buffers.attach(descriptor)
    os.close(descriptor)
    return buffers


def _die_with_parent() -> None:
    """Even in the middle of a simulator's step: a killed run leaves no processes behind."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
