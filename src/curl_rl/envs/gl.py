"""Which OpenGL draws MuJoCo's pictures. It is chosen before MuJoCo is imported, since MuJoCo asks only once."""

import functools
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from curl_rl.errors import UserError

BACKENDS = ("egl", "osmesa")  # EGL first: never slower, uses a GPU where there is one, and Mesa has dropped OSMesa
INSTALL = "sudo apt-get install -y --no-install-recommends libegl1 libgl1"
_REMEMBERED = "CURL_RL_GL"  # an environment variable, so that child processes need not try again

_RENDER_ONCE = """
import json, mujoco
from dm_control import _render
model = mujoco.MjModel.from_xml_string('<mujoco><worldbody><light pos="0 0 3"/><geom size=".5"/></worldbody></mujoco>')
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 64, 64)
renderer.update_scene(data)
assert renderer.render().max() > 0, "the picture is black"
from OpenGL import GL
text = lambda name: GL.glGetString(name).decode()
print(json.dumps({"vendor": text(GL.GL_VENDOR), "renderer": text(GL.GL_RENDERER), "version": text(GL.GL_VERSION)}))
"""


@dataclass(frozen=True)
class Backend:
    """A backend that has drawn a picture here."""

    name: str
    vendor: str
    renderer: str
    version: str


def choose() -> Backend:
    """The backend that works here, tried in a process of its own; sets MUJOCO_GL for this process and its children.

    The user's own MUJOCO_GL is never overruled.
    """
    backend, complaint = _find()
    if backend is None:
        raise UserError(complaint)
    return backend


@functools.cache
def _find() -> tuple[Backend | None, str]:
    """The backend, or the sentence that says why there is none: found once, since a trial takes half a second or more."""
    wanted = os.environ.get("MUJOCO_GL") or _taken_by_dm_control()
    if remembered := _remembered(wanted):
        return remembered, ""
    backend, reason = _try(wanted) if wanted else _first_that_works()
    if backend:
        os.environ["MUJOCO_GL"] = backend.name
        os.environ[_REMEMBERED] = json.dumps(asdict(backend))
        return backend, ""
    if not wanted:
        return None, f"No OpenGL works here, so DMControl has no pixels ({reason}); run `{INSTALL}`."
    if "MUJOCO_GL" in os.environ:
        remedy = f"unset MUJOCO_GL, and curl-rl chooses, or run `{INSTALL}`"
    else:  # dm_control chose
        remedy = "make the first environment before dm_control is imported, or set MUJOCO_GL=egl"
    return None, f"MUJOCO_GL={wanted} cannot draw here ({reason}); {remedy}."


def environment() -> dict[str, str]:
    """The variables by which a process that was not started as our child knows the choice."""
    names = ("MUJOCO_GL", _REMEMBERED, "PYOPENGL_PLATFORM")
    return {name: os.environ[name] for name in names if name in os.environ}


def milliseconds_per_frame(frames: int = 20) -> float:
    """Time of one 100x100 picture of cartpole-swingup, for `curl-rl doctor`."""
    from curl_rl.envs.spec import make

    env = make("cartpole-swingup")
    env.reset(seed=0)  # makes the context
    start = time.perf_counter()
    for _ in range(frames):
        env.render()
    elapsed = time.perf_counter() - start
    env.close()
    return 1000 * elapsed / frames


def _taken_by_dm_control() -> str | None:
    """What dm_control chose by itself, if somebody imported it before us: too late to choose anything else."""
    taken = sys.modules.get("dm_control._render")
    return taken.BACKEND or "disable" if taken else None


def _remembered(wanted: str | None) -> Backend | None:
    text = os.environ.get(_REMEMBERED)
    backend = Backend(**json.loads(text)) if text else None
    return backend if backend and backend.name == wanted else None


def _first_that_works() -> tuple[Backend | None, str]:
    reasons = []
    for name in BACKENDS:
        backend, reason = _try(name)
        if backend:
            return backend, ""
        reasons.append(f"{name}: {reason}")
    return None, "; ".join(reasons)


def _try(name: str) -> tuple[Backend | None, str]:
    """The backend if it draws, else the reason why not."""
    environ = {key: value for key, value in os.environ.items() if key != "PYOPENGL_PLATFORM"} | {"MUJOCO_GL": name}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _RENDER_ONCE], env=environ, capture_output=True, text=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        return None, "no picture within 60 seconds"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return None, next((line for line in lines if "Error" in line), lines[-1])[:200]
    return Backend(name, **json.loads(done.stdout.splitlines()[-1])), ""
