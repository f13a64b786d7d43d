"""Replay against a slow one that keeps every stack in Python lists. Every frame shows its own number."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from curl_rl.replay import Batch, Replay, ReplaySpec
from curl_rl.rng import Purpose, words

SHAPE = (2, 2, 2)


@dataclass
class Event:
    """What ends after an agent step, and whether the next episode's stack goes on (a life was lost)."""

    terminated: bool = False
    truncated: bool = False
    continues: bool = False


@dataclass
class SlowTrial:
    """One trial's whole history: stacks as lists of frame numbers, written down when they happen."""

    spec: ReplaySpec
    stack: deque[int] = field(init=False)
    obs: list[list[int]] = field(default_factory=list)
    next_obs: list[list[int]] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    event: list[Event] = field(default_factory=list)
    position: list[int] = field(default_factory=list)
    frames: int = 0

    def __post_init__(self) -> None:
        self.stack = deque(maxlen=self.spec.stack)

    def begin(self, frame: int, continues: bool) -> None:
        before = 0 if self.spec.before_start == "zeros" else frame
        if not continues or not self.frames:
            self.stack.extend([before] * self.spec.stack)
        self.stack.append(frame)
        self.frames += 1

    def add(self, reward: float, event: Event, frame: int) -> None:
        self.position.append(self.frames - 1)
        self.obs.append(list(self.stack))
        self.stack.append(frame)
        self.next_obs.append(list(self.stack))
        self.reward.append(reward)
        self.event.append(event)
        self.frames += 1

    def n_step(self, start: int) -> tuple[float, list[int], float]:
        """Return, bootstrap stack and discount of transition `start`."""
        total, discount = 0.0, 1.0
        for number in range(start, start + self.spec.n_step):
            total += discount * self.reward[number]
            discount *= self.spec.gamma
            if self.event[number].terminated:
                return total, self.next_obs[number], 0.0
            if self.event[number].truncated:
                break
        return total, self.next_obs[number], discount

    def valid(self) -> range:
        """The transitions that may be sampled: not too old for either ring, not too new for their return."""
        count, spec = len(self.reward), self.spec
        oldest = max(0, count - spec.capacity)
        first_frame = self.frames - spec.slots
        while oldest < count and self.position[oldest] - (spec.stack - 1) < first_frame:
            oldest += 1
        return range(oldest, count - spec.n_step - spec.prioritised + 1)


def picture(number: int, shape: Sequence[int] = SHAPE) -> np.ndarray:
    """A frame that shows its number in two bytes, and in each channel differently."""
    frame = np.zeros(shape, np.uint8)
    if number:
        for channel in range(shape[0]):
            frame[channel] = [[number % 256, number // 256], [channel + 1, 9]]
    return frame


def stacked(numbers: list[int]) -> Tensor:
    return torch.from_numpy(np.concatenate([picture(number) for number in numbers]))


class Pair:
    """A replay and its slow twin, fed the same."""

    def __init__(self, spec: ReplaySpec, trials: int, replay: Replay | None = None) -> None:
        self.replay = replay or Replay(spec, trials)
        self.slow = [SlowTrial(spec) for _ in range(trials)]
        self.step = 0
        self._begin(np.ones(trials, bool), np.zeros(trials, bool))

    def _begin(self, which: np.ndarray, continues: np.ndarray) -> None:
        for trial, (slow, begins) in enumerate(zip(self.slow, which, strict=True)):
            if begins:
                slow.begin(self._number(slow), bool(continues[trial]))
        # Frames of trials that do not begin are not to be looked at.
        frames = [
            picture(slow.stack[-1]) if begins else picture(999) for slow, begins in zip(self.slow, which, strict=True)
        ]
        self.replay.begin(np.stack(frames), which, continues)

    @staticmethod
    def _number(slow: SlowTrial) -> int:
        return slow.frames + 1  # 0 is the zero frame

    def advance(self, events: Sequence[Event]) -> None:
        self.step += 1
        rewards = [float((self.step * 7 + trial * 3) % 11 - 5) for trial in range(len(events))]
        for slow, event, reward in zip(self.slow, events, rewards, strict=True):
            slow.add(reward, event, self._number(slow))
        self.replay.add(
            np.array([[self.step, trial] for trial in range(len(events))], np.float32),
            np.array(rewards, np.float32),
            np.array([event.terminated for event in events]),
            np.array([event.truncated for event in events]),
            np.stack([picture(slow.stack[-1]) for slow in self.slow]),
        )
        ended = np.array([event.terminated or event.truncated for event in events])
        if ended.any():
            self._begin(ended, np.array([event.continues for event in events]))

    def check(self) -> None:
        assert torch.equal(self.replay.stacks(), torch.stack([stacked(list(slow.stack)) for slow in self.slow]))
        valid = [slow.valid() for slow in self.slow]
        assert self.replay.ready == (len(valid[0]) > 0)
        if not self.replay.ready:
            return
        assert all(len(numbers) for numbers in valid)
        batch = max(len(numbers) for numbers in valid)
        sampled = self.replay.sample(every_index(valid, batch))
        for trial, numbers in enumerate(valid):
            assert sorted(set(sampled.index[trial].tolist())) == list(numbers)
        self.compare(sampled)

    def compare(self, sampled: Batch) -> None:
        for trial, slow in enumerate(self.slow):
            for place, number in enumerate(sampled.index[trial].tolist()):
                reward, next_obs, discount = slow.n_step(number)
                assert torch.equal(sampled.obs[trial, place], stacked(slow.obs[number]))
                assert torch.equal(sampled.next_obs[trial, place], stacked(next_obs))
                assert sampled.reward[trial, place].item() == pytest.approx(reward, abs=1e-4)
                assert sampled.discount[trial, place].item() == pytest.approx(discount, abs=1e-6)
                assert sampled.action[trial, place].tolist() == [number + 1, trial]


def every_index(valid: list[range], batch: int) -> Tensor:
    """Words that make uniform sampling visit each valid transition, in a batch that has room for all."""
    places = [[place % len(numbers) for place in range(batch)] for numbers in valid]
    sizes = torch.tensor([[len(numbers)] for numbers in valid])
    return (torch.tensor(places) * 2**32 + sizes - 1) // sizes


EVENTS = st.sampled_from(
    [Event()] * 6
    + [Event(terminated=True), Event(truncated=True), Event(terminated=True, truncated=True)]
    + [Event(terminated=True, continues=True), Event(truncated=True, continues=True)]
)
UNIFORM = st.builds(
    ReplaySpec,
    frame_shape=st.just(SHAPE),
    action_shape=st.just((2,)),
    capacity=st.integers(6, 40),
    stack=st.integers(1, 4),
    n_step=st.integers(1, 5),
    gamma=st.just(0.9),
    before_start=st.sampled_from(["repeat", "zeros"]),
    end_frames=st.sampled_from([0.0, 0.1, 1.0]),
)
# Left to itself Hypothesis makes short lists, which never wrap.
RUNS = st.integers(0, 90).flatmap(
    lambda steps: st.lists(st.tuples(EVENTS, EVENTS, EVENTS), min_size=steps, max_size=steps)
)
SETTINGS = settings(deadline=None, max_examples=120, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@SETTINGS
@given(spec=UNIFORM, trials=st.sampled_from([1, 3]), events=RUNS)
def test_every_transition_equals_the_slow_reference(
    spec: ReplaySpec, trials: int, events: list[tuple[Event, ...]]
) -> None:
    pair = Pair(spec, trials)
    pair.check()
    for number, event in enumerate(events):
        pair.advance(event[:trials])
        if number % 13 == 0:
            pair.check()
    pair.check()


def rich_events(seed: int, steps: int, trials: int, rate: float = 0.1) -> list[list[Event]]:
    random = np.random.default_rng(seed)
    draws = random.random((steps, trials, 3))
    return [[Event(a < rate, a > 1 - rate / 2, c < 0.4) for a, _, c in row] for row in draws]


@pytest.mark.parametrize("rate", [0.1, 0.002])
@pytest.mark.parametrize("before_start", ["repeat", "zeros"])
def test_a_long_run_that_wraps_many_times(before_start: str, rate: float) -> None:
    spec = ReplaySpec(SHAPE, (2,), 50, stack=3, n_step=3, gamma=0.9, before_start=before_start)  # type: ignore[arg-type]
    pair = Pair(spec, 2)
    for number, events in enumerate(rich_events(1, 600, 2, rate)):
        pair.advance(events)
        if number % 60 == 0:
            pair.check()


def test_episodes_of_one_step_leave_something_to_sample() -> None:
    spec = ReplaySpec(SHAPE, (2,), 6, stack=4, n_step=5, end_frames=0.0)
    pair = Pair(spec, 1)
    for _ in range(40):
        pair.advance([Event(terminated=True)])
        pair.check()


def test_without_short_episodes_the_whole_capacity_can_be_sampled() -> None:
    spec = ReplaySpec(SHAPE, (2,), 100, stack=4, end_frames=0.05)
    pair = Pair(spec, 1)
    for step in range(1, 1001):
        pair.advance([Event(truncated=step % 25 == 0)])
    assert len(pair.slow[0].valid()) == 100
    pair.check()


def test_a_truncated_step_bootstraps_from_the_real_last_frame() -> None:
    pair = Pair(ReplaySpec(SHAPE, (2,), 20, stack=2), 1)
    for event in [Event(), Event(truncated=True), Event(), Event()]:
        pair.advance([event])
    batch = pair.replay.sample(every_index([range(4)], 4))
    assert batch.index.tolist() == [[0, 1, 2, 3]]
    assert torch.equal(batch.next_obs[0, 1], stacked([2, 3]))  # frame 4 begins the next episode
    assert torch.equal(batch.obs[0, 2], stacked([4, 4]))
    assert batch.discount[0].tolist() == pytest.approx([0.99] * 4)


def test_a_lost_life_ends_the_return_and_not_the_stack() -> None:
    pair = Pair(ReplaySpec(SHAPE, (2,), 20, stack=3, n_step=2, before_start="zeros"), 1)
    for event in [Event(), Event(terminated=True, continues=True), Event(), Event()]:
        pair.advance([event])
    batch = pair.replay.sample(every_index([range(3)], 3))
    assert torch.equal(batch.obs[0, 0], stacked([0, 0, 1]))
    assert torch.equal(batch.obs[0, 2], stacked([2, 3, 4]))
    assert batch.discount[0].tolist() == pytest.approx([0, 0, 0.99**2])


def test_an_episode_begun_in_the_middle_of_another_truncates_it() -> None:
    """An environment that could not be restored starts anew; no return may cross."""
    pair = Pair(ReplaySpec(SHAPE, (2,), 20, stack=2, n_step=3), 2)
    for _ in range(3):
        pair.advance([Event(), Event()])
    pair.slow[1].event[-1].truncated = True
    pair._begin(np.array([False, True]), np.zeros(2, bool))
    for _ in range(5):
        pair.advance([Event(), Event()])
        pair.check()


def test_a_population_equals_its_trials_alone() -> None:
    spec = ReplaySpec(SHAPE, (2,), 30, stack=3, n_step=2, prioritised=True)
    events = rich_events(3, 100, 3)
    together, alone = Pair(spec, 3), [Pair(spec, 1) for _ in range(3)]
    for step, row in enumerate(events):
        if together.replay.ready:
            drawn = words([4, 5, 6], step, Purpose.SAMPLE, 8)
            batch = together.replay.sample(drawn, 0.5)
            priority = (batch.index * 37 % 13 + 1).float()
            for trial, pair in enumerate(alone):
                single = pair.replay.sample(drawn[trial : trial + 1], 0.5)
                for name in set(Batch._fields) - {"action"}:  # these actions show the number of the trial
                    assert torch.equal(getattr(batch, name)[trial], getattr(single, name)[0]), name
                pair.replay.update_priorities(single.index, priority[trial : trial + 1])
            together.replay.update_priorities(batch.index, priority)
        together.advance(row)
        for trial, pair in enumerate(alone):
            add_as(pair, together, trial, row[trial])
        assert torch.equal(together.replay.stacks(), torch.cat([pair.replay.stacks() for pair in alone]))


def add_as(single: Pair, population: Pair, trial: int, event: Event) -> None:
    """Advance a single run with the reward that the population's trial received."""
    single.step = population.step - 1
    reward = float((population.step * 7 + trial * 3) % 11 - 5)
    slow = single.slow[0]
    slow.add(reward, event, single._number(slow))
    flags = np.array([event.terminated]), np.array([event.truncated])
    frame = picture(slow.stack[-1])[None]
    single.replay.add(np.zeros((1, 2), np.float32), np.array([reward], np.float32), *flags, frame)
    if event.terminated or event.truncated:
        single._begin(np.array([True]), np.array([event.continues]))


def test_vectors_of_state_are_observations_too() -> None:
    spec = ReplaySpec((5,), (1,), 10, frame_dtype=torch.float32)
    replay = Replay(spec, 2)
    random = np.random.default_rng(0).normal(size=(9, 2, 5)).astype(np.float32)
    no = np.zeros(2, bool)
    replay.begin(random[0], ~no, no)
    for frames in random[1:]:
        replay.add(np.zeros((2, 1), np.float32), np.zeros(2, np.float32), no, no, frames)
    assert torch.equal(replay.stacks(), torch.from_numpy(random[-1]))
    batch = replay.sample(every_index([range(8)] * 2, 8))
    assert torch.equal(batch.obs, torch.from_numpy(random[:-1]).transpose(0, 1))
    assert torch.equal(batch.next_obs, torch.from_numpy(random[1:]).transpose(0, 1))
    assert batch.obs.dtype == torch.float32


def test_discrete_actions_and_tensors_are_taken_as_they_come() -> None:
    replay = Replay(ReplaySpec(SHAPE, (), 10, action_dtype=torch.int64), 2)
    no = np.zeros(2, bool)
    frames = torch.stack([torch.from_numpy(picture(1)), torch.from_numpy(picture(2))])
    replay.begin(frames, ~no, no)
    replay.add(torch.tensor([7, 8]), torch.tensor([0.5, 1.5]), no, no, frames)
    batch = replay.sample(torch.zeros(2, 1, dtype=torch.int64))
    assert batch.action.tolist() == [[7], [8]]
    assert batch.action.dtype == torch.int64
    assert batch.reward.tolist() == [[0.5], [1.5]]


def test_uniform_sampling_is_uniform_over_what_is_valid() -> None:
    pair = Pair(ReplaySpec(SHAPE, (2,), 40, stack=2, n_step=3), 2)
    for events in rich_events(5, 130, 2, rate=0.3):
        pair.advance(events)
    sampled = pair.replay.sample(words([1, 2], 0, Purpose.SAMPLE, 20_000))
    assert (sampled.weight == 1).all()
    for trial, slow in enumerate(pair.slow):
        valid = slow.valid()
        counts = np.bincount(sampled.index[trial].numpy() - valid.start, minlength=len(valid))
        assert len(counts) == len(valid) < 40  # short episodes have used up the frames
        assert stats.chisquare(counts).pvalue > 0.001


def test_mistakes_of_the_caller_are_refused() -> None:
    spec = ReplaySpec(SHAPE, (2,), 10, n_step=3)
    pair, frames = Pair(spec, 1), picture(1)[None]
    no, yes = np.array([False]), np.array([True])
    with pytest.raises(ValueError, match="too few"):
        pair.replay.sample(torch.zeros(1, 1, dtype=torch.int64))
    pair.replay.add(np.zeros((1, 2)), np.zeros(1), yes, no, frames)
    with pytest.raises(ValueError, match=r"begin\(\) is missing in trials \[0\]"):
        pair.replay.add(np.zeros((1, 2)), np.zeros(1), no, no, frames)
    with pytest.raises(ValueError, match="uniformly"):
        pair.replay.update_priorities(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1))
    with pytest.raises(ValueError, match="capacity of 3"):
        replace(spec, capacity=3)


# ---------------------------------------------------------------- on other devices


class NothingWaits(TorchDispatchMode):
    """Refuses every operation that would make the host wait for a GPU's result or give shapes that depend on it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        forbidden = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "unique", "equal", "_to_copy.cpu")
        assert not any(name in str(func) for name in forbidden), f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


def as_on_a_gpu(replay: Replay) -> Replay:
    """The same replay by the path of other devices: tensors only, and copies of the host's bookkeeping."""
    replay._on_cpu = replay.frames.on_cpu = False
    replay._position = replay._position.copy()
    replay._cursor_tensor = replay._cursor_tensor.clone()
    return replay


def addresses_of(replay: Replay) -> dict[str, int]:
    """Where a captured graph would look for the replay's tensors for ever after."""
    owners = [replay, replay.frames, *([replay.priorities] if replay.priorities else [])]
    return {f"{owner} {k}": v.data_ptr() for owner in owners for k, v in vars(owner).items() if isinstance(v, Tensor)}


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("before_start", ["repeat", "zeros"])
def test_the_path_of_other_devices_gives_the_same_and_never_waits(before_start: str, n_step: int) -> None:
    spec = ReplaySpec(SHAPE, (2,), 30, 3, n_step, 0.9, before_start, prioritised=n_step > 1)  # type: ignore[arg-type]
    pair, twin = Pair(spec, 2), Pair(spec, 2, as_on_a_gpu(Replay(spec, 2)))
    addresses = addresses_of(twin.replay)
    for step, events in enumerate(rich_events(8, 90, 2)):
        pair.advance(events)
        twin.advance(events)
        assert torch.equal(pair.replay.stacks(), twin.replay.stacks())
        if not pair.replay.ready:
            continue
        drawn = words([1, 2], step, Purpose.SAMPLE, 5)
        beta = torch.tensor(0.4)
        expected = pair.replay.sample(drawn, beta)
        with NothingWaits():
            found = twin.replay.sample(drawn, beta)
            if spec.prioritised:
                twin.replay.update_priorities(found.index, found.index.float())
        if spec.prioritised:
            pair.replay.update_priorities(expected.index, expected.index.float())
        twin.compare(found)
        for name in Batch._fields:
            assert torch.equal(getattr(found, name), getattr(expected, name)), name
    twin.replay.load_state(pair.replay.state())
    assert addresses_of(twin.replay) == addresses


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_captured_graph_on_a_gpu_gives_the_same() -> None:
    spec = ReplaySpec(SHAPE, (2,), 30, stack=3, n_step=3, before_start="zeros", prioritised=True)
    pair, twin = Pair(spec, 2), Pair(spec, 2, Replay(spec, 2, device="cuda"))
    events = rich_events(8, 90, 2)
    for row in events[:10]:
        pair.advance(row)
        twin.advance(row)
    drawn = torch.zeros(2, 5, dtype=torch.int64, device="cuda")

    def update() -> Batch:
        batch = twin.replay.sample(drawn, 0.4)
        twin.replay.update_priorities(batch.index, batch.index.float())
        return batch

    before = twin.replay.state()
    update()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = update()
    twin.replay.load_state(before)
    for step, row in enumerate(events[10:]):
        drawn.copy_(words([1, 2], step, Purpose.SAMPLE, 5))
        graph.replay()
        expected = pair.replay.sample(drawn.cpu(), 0.4)
        pair.replay.update_priorities(expected.index, expected.index.float())
        for name in set(Batch._fields) - {"weight", "reward"}:
            assert torch.equal(getattr(found, name).cpu(), getattr(expected, name)), name
        assert torch.allclose(found.weight.cpu(), expected.weight)
        assert torch.allclose(found.reward.cpu(), expected.reward)
        pair.advance(row)
        twin.advance(row)
        assert torch.equal(pair.replay.stacks(), twin.replay.stacks().cpu())


# ---------------------------------------------------------------- checkpoints


def save_segments(replay: Replay, segments: list[dict[int, Tensor]], ends: list[int]) -> None:
    """Append each trial's new frames, as a checkpoint would to its files."""
    for trial in range(replay.trials):
        first, end = replay.frame_range(trial)
        start = max(first, ends[trial])
        segments[trial][start] = replay.frames_between(trial, start, end)
        ends[trial] = end


@pytest.mark.parametrize(
    ("prioritised", "steps", "capacity"),
    # Into a larger one as well: a run that was extended by a larger budget. (By priority, a ring that has wrapped is
    # then searched in another order: the same probabilities, other draws.)
    [(p, *case) for p in (False, True) for case in ((70, 40), (30, 40), (30, 100))] + [(False, 70, 100)],
)
@pytest.mark.parametrize("other_device", [False, True])
def test_a_replay_restored_from_segments_goes_on_identically(
    prioritised: bool, steps: int, capacity: int, other_device: bool
) -> None:
    spec = ReplaySpec(SHAPE, (2,), 40, stack=3, n_step=2, prioritised=prioritised)
    pair, ends = Pair(spec, 2), [0, 0]
    segments: list[dict[int, Tensor]] = [{}, {}]
    events = rich_events(11, steps + 60, 2)
    for step, row in enumerate(events[:steps]):
        pair.advance(row)
        if pair.replay.ready and prioritised:
            batch = pair.replay.sample(words([1, 2], step, Purpose.SAMPLE, 4))
            pair.replay.update_priorities(batch.index, batch.index.float() % 5)
        if step % 12 == 0:
            save_segments(pair.replay, segments, ends)
    save_segments(pair.replay, segments, ends)
    state = pair.replay.state()
    assert all(tensor.shape[0] == 2 for tensor in state.values())
    unchanged = {name: tensor.clone() for name, tensor in state.items()}

    restored = Replay(replace(spec, capacity=capacity), 2)
    if other_device:
        as_on_a_gpu(restored)
    used = Pair(spec, 2, restored)  # whatever it held before must be forgotten
    for row in rich_events(12, 90, 2):
        used.advance(row)
    restored.load_state(state)
    for trial, parts in enumerate(segments):
        for start, frames in parts.items():
            restored.write_frames(trial, start, frames)
    for step, row in enumerate(events[steps:], steps):
        assert torch.equal(pair.replay.stacks(), restored.stacks())
        drawn = words([1, 2], step, Purpose.SAMPLE, 16)
        expected, found = pair.replay.sample(drawn, 0.4), restored.sample(drawn, 0.4)
        for name in Batch._fields:
            assert torch.equal(getattr(found, name), getattr(expected, name)), (step, name)
        if capacity > spec.capacity:
            break  # from here on the larger one keeps more
        if prioritised:
            for replay in (pair.replay, restored):
                replay.update_priorities(found.index, found.index.float() % 7)
        feed_both(pair, restored, row)
    assert all(torch.equal(state[name], tensor) for name, tensor in unchanged.items())


def feed_both(pair: Pair, other: Replay, events: Sequence[Event]) -> None:
    """Advance the pair, and give the same calls to another replay."""

    class Both:
        def begin(self, *arguments: np.ndarray) -> None:
            pair_replay.begin(*arguments)
            other.begin(*arguments)

        def add(self, *arguments: np.ndarray) -> None:
            pair_replay.add(*arguments)
            other.add(*arguments)

    pair_replay, pair.replay = pair.replay, Both()  # type: ignore[assignment]
    pair.advance(events)
    pair.replay = pair_replay


def test_a_grown_replay_keeps_what_the_old_one_held_and_more() -> None:
    spec = ReplaySpec(SHAPE, (2,), 20, stack=3)
    pair = Pair(spec, 1)
    for row in rich_events(2, 15, 1):
        pair.advance(row)
    grown = Replay(replace(spec, capacity=60))
    grown.load_state(pair.replay.state())
    grown.write_frames(0, 0, pair.replay.frames_between(0, *pair.replay.frame_range(0)))
    continued = Pair(replace(spec, capacity=60), 1)
    for row in rich_events(2, 15, 1):
        continued.advance(row)
    continued.replay = grown
    for row in rich_events(9, 30, 1):
        continued.advance(row)
        continued.check()
    assert len(continued.slow[0].valid()) == 45


def test_a_smaller_replay_refuses_a_larger_state() -> None:
    spec = ReplaySpec(SHAPE, (2,), 20)
    pair = Pair(spec, 1)
    for row in rich_events(2, 15, 1):
        pair.advance(row)
    with pytest.raises(ValueError, match="15 stored transitions do not fit"):
        Replay(replace(spec, capacity=10)).load_state(pair.replay.state())
