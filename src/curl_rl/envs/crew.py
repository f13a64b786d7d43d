"""Crews: groups of environments, in this process or in worker processes started by forkserver."""

import pickle
import signal
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import send_handle
from time import monotonic
from typing import Any

import gymnasium
import numpy as np

from curl_rl.envs import gl, worker
from curl_rl.envs.spec import Description, EnvSpec
from curl_rl.envs.worker import Buffers, Failures, Group
from curl_rl.errors import UserError

_SECONDS_TO_CLOSE = 5.0


class Local:
    """A crew in this process; it works when it is asked for its answer."""

    def __init__(self, specs: dict[int, EnvSpec]) -> None:
        self.indices = tuple(specs)
        self.asked: tuple[Any, ...] = ()
        self._group = Group(specs)

    def descriptions(self) -> dict[int, Description]:
        return self._group.descriptions()

    def attach(self, buffers: Buffers, descriptor: int) -> None:
        self._group.attach(buffers)

    def ask(self, request: str, *arguments: Any) -> None:
        self.asked = (request, *arguments)

    def answer(self) -> tuple[Any, Failures]:
        asked, self.asked = self.asked, ()
        return self._group.handle(*asked)

    def dismiss(self) -> None:
        self._group.close()

    def wait(self, deadline: float) -> None:
        """Nothing is left running."""


class Remote:
    """A crew in a worker process. A step costs one small message each way; observations travel by shared memory."""

    def __init__(self, specs: dict[int, EnvSpec], connection: Connection, process: BaseProcess) -> None:
        self.indices = tuple(specs)
        self.asked: tuple[Any, ...] = ()
        self._connection, self._process = connection, process

    def descriptions(self) -> dict[int, Description]:
        try:
            descriptions, error = self._connection.recv()
        except (EOFError, ConnectionError):
            raise UserError(f"A worker process died while it made its environments: {self._how_it_died()}.") from None
        if error:
            raise UserError(error)
        return descriptions

    def attach(self, buffers: Buffers, descriptor: int) -> None:
        with suppress(ConnectionError):  # as below
            self._connection.send(buffers.arguments)
            send_handle(self._connection, descriptor, self._process.pid)

    def ask(self, request: str, *arguments: Any) -> None:
        self.asked = (request, *arguments)
        with suppress(ConnectionError):  # a dead worker is found when its answer is due
            self._connection.send(self.asked)

    def answer(self) -> tuple[Any, Failures]:
        try:
            answer = self._connection.recv()
        except (EOFError, ConnectionError):
            answer = None, dict.fromkeys(self.indices, self._how_it_died())
        self.asked = ()
        return answer

    def dismiss(self) -> None:
        with suppress(OSError):
            self._connection.send(("close",))

    def wait(self, deadline: float) -> None:
        self._process.join(max(0.0, deadline - monotonic()))
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._connection.close()

    def _how_it_died(self) -> str:
        self._process.join(1.0)
        code = self._process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            hint = ", perhaps for want of memory" if name == "SIGKILL" else ""
            return f"its worker process was ended by {name}{hint}"
        return f"its worker process ended (exit status {code})"


Crew = Local | Remote


def hire(specs: Sequence[EnvSpec], workers: int) -> list[Crew]:
    """Crews for all environments: `workers` processes with a contiguous share each, or this process for 0."""
    if not workers:
        return [Local(dict(enumerate(specs)))]
    for spec in specs:
        if isinstance(spec.task, gymnasium.Env):
            raise UserError(
                f"{spec.name} is already made and cannot move to a worker process; give the callable that makes it."
            )
    if any(spec.kind == "dmc" for spec in specs):
        with suppress(UserError):  # tried once here rather than in every worker, which will say what is wrong
            gl.choose()
    shares = [share.tolist() for share in np.array_split(np.arange(len(specs)), workers)]
    return [_start({index: specs[index] for index in share}) for share in shares]


def dismiss(crews: Sequence[Crew]) -> None:
    """Close all environments and end the workers, by force those that do not answer."""
    for crew in crews:
        crew.dismiss()
    deadline = monotonic() + _SECONDS_TO_CLOSE
    for crew in crews:
        crew.wait(deadline)


def _start(specs: dict[int, EnvSpec]) -> Remote:
    try:
        needs_main = b"__main__" in pickle.dumps(specs)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"{', '.join(spec.name for spec in specs.values())} cannot travel to a worker process ({error}); use a "
            f"function at the top level of a module, or workers=0."
        ) from error
    # forkserver: a fork of this process would inherit GL contexts and torch's threads, and hang.
    context = get_context("forkserver")
    context.set_forkserver_preload(["curl_rl.envs.worker"])
    ours, theirs = context.Pipe()
    process = context.Process(target=worker.work, args=(theirs, specs, gl.environment()), daemon=True)
    if needs_main:
        process.start()
    else:
        with _main_module_hidden():
            process.start()
    theirs.close()
    return Remote(specs, ours, process)


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Children of multiprocessing import the parent's main module, and with it torch and whatever else it imports.

    Ours need nothing of it, unless a task is a function defined there.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
