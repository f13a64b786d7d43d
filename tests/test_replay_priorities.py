"""Prioritised sampling against loops over Python numbers."""

from dataclasses import dataclass, field
from fractions import Fraction
from math import floor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from curl_rl.priorities import Priorities
from curl_rl.rng import Purpose, words

CPU = torch.device("cpu")
LAST = 2**32 - 1
UNIT = 2**22


@dataclass
class SlowPriorities:
    """One trial's priorities by transition number, in exact fractions."""

    capacity: int
    held_back: int
    count: int = 0
    oldest: int = 0
    largest: Fraction = Fraction(1)
    priority: dict[int, Fraction] = field(default_factory=dict)

    def add(self) -> None:
        self.priority[self.count] = self.largest
        self.count += 1
        self.remove_before(self.count - self.capacity)

    def remove_before(self, number: int) -> None:
        self.oldest = max(self.oldest, number)
        self.priority = {other: value for other, value in self.priority.items() if other >= self.oldest}

    def update(self, numbers: list[int], values: list[float]) -> None:
        new: dict[int, Fraction] = {}
        for number, value in zip(numbers, values, strict=True):
            rounded = Fraction(max(1, floor(Fraction(value) * UNIT)), UNIT)
            if number in self.priority:
                new[number] = max(new.get(number, Fraction(0)), rounded)
                self.largest = max(self.largest, rounded)
        self.priority.update(new)

    def drawable(self) -> list[int]:
        """In the order of the ring's columns."""
        valid = [number for number in self.priority if number < self.count - self.held_back]
        return sorted(valid, key=lambda number: number % self.capacity)

    def sample(self, random: list[int], beta: float) -> tuple[list[int], list[float]]:
        valid = self.drawable()
        total = sum(self.priority[number] for number in valid)
        drawn = []
        for segment, word in enumerate(random):
            left = Fraction(segment * 2**32 + word, len(random) * 2**32) * total
            for number in valid:
                if left < self.priority[number]:
                    break
                left -= self.priority[number]
            drawn.append(number)
        weights = [float(len(valid) * self.priority[number] / total) ** -beta for number in drawn]
        return drawn, [weight / max(weights) for weight in weights]


def count_of(slow: SlowPriorities) -> Tensor:
    return torch.tensor([[slow.count]])


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, int, list[tuple[str, int]]]:
    held_back = draw(st.integers(0, 4))
    capacity = draw(st.integers(held_back + 2, 20))
    steps = draw(st.integers(1, 60))
    kinds = st.sampled_from(["add"] * 4 + ["update"] * 3 + ["forget"])
    return held_back, capacity, draw(st.lists(st.tuples(kinds, st.integers(0, 2**31)), min_size=steps, max_size=steps))


@settings(deadline=None, max_examples=150, derandomize=True)
@given(history=histories(), trials=st.sampled_from([1, 3]))
def test_draws_and_weights_equal_the_loop(history: tuple[int, int, list[tuple[str, int]]], trials: int) -> None:
    held_back, capacity, actions = history
    fast = Priorities(trials, capacity, held_back, CPU)
    slow = [SlowPriorities(capacity, held_back) for _ in range(trials)]
    for kind, seed in [("add", 0)] * (held_back + 1) + actions:
        random = np.random.default_rng(seed)
        if kind == "add":
            fast.add(slow[0].count)
            for trial in slow:
                trial.add()
        elif kind == "forget" and len(slow[-1].drawable()) > 1:
            number = slow[-1].oldest
            slow[-1].remove_before(number + 1)
            fast.remove(torch.tensor([trials - 1]), torch.tensor([number % capacity]))
        elif kind == "update":
            drawn = random.integers(0, 2**32, (trials, 5))
            numbers, weights = fast.sample(torch.from_numpy(drawn), 0.6, count_of(slow[0]))
            for row, trial in enumerate(slow):
                expected_numbers, expected_weights = trial.sample(drawn[row].tolist(), 0.6)
                assert numbers[row].tolist() == expected_numbers
                assert weights[row].tolist() == pytest.approx(expected_weights, rel=1e-4)
            values = random.choice([1e-9, 0.03, 0.5, 1.0, 7.5], (trials, 5)).astype(np.float32)
            fast.update(numbers, torch.from_numpy(values), torch.tensor([trial.oldest for trial in slow]))
            for row, trial in enumerate(slow):
                trial.update(numbers[row].tolist(), values[row].tolist())


def filled(count: int, capacity: int, held_back: int = 0) -> Priorities:
    priorities = Priorities(1, capacity, held_back, CPU)
    for number in range(count):
        priorities.add(number)
    return priorities


def set_priorities(priorities: Priorities, values: list[float]) -> None:
    priorities.update(torch.arange(len(values))[None], torch.tensor([values]), torch.zeros(1, dtype=torch.int64))


def test_probabilities_are_proportional_to_priorities() -> None:
    values = [0.1, 3.0, 0.5, 0.5, 0.01, 2.0, 1.0, 0.25]
    priorities = filled(8, 16)
    set_priorities(priorities, values)
    counts = np.zeros(8)
    for step in range(500):
        numbers, _ = priorities.sample(words([3], step, Purpose.SAMPLE, 7), 1.0, torch.tensor([[8]]))
        counts += np.bincount(numbers[0].numpy(), minlength=8)
    expected = np.array(values) / sum(values) * counts.sum()
    # Segments make the counts less random than independent draws would be, so compare with their standard deviations.
    assert (abs(counts - expected) <= 4 * np.sqrt(expected)).all()
    even = np.full(8, counts.sum() / 8)
    assert stats.chisquare(counts, even).pvalue < 1e-9


def test_each_segment_of_the_sum_is_drawn_from_once() -> None:
    priorities = filled(32, 32)
    for word in (0, 2**31, LAST):
        numbers, weights = priorities.sample(torch.full((1, 32), word), 1.0, torch.tensor([[32]]))
        assert numbers[0].tolist() == list(range(32))
        assert weights[0].tolist() == [1.0] * 32


@pytest.mark.parametrize("word", [0, LAST])
def test_only_what_has_a_priority_is_drawn_at_the_ends_of_the_range(word: int) -> None:
    """Of 40 columns the first 10 and the last 10 hold nothing to draw."""
    priorities = filled(33, 40, held_back=3)
    priorities.remove(torch.zeros(10, dtype=torch.int64), torch.arange(10))
    numbers, _ = priorities.sample(torch.full((1, 64), word), 1.0, torch.tensor([[33]]))
    assert set(numbers[0].tolist()) == set(range(10, 30))


@pytest.mark.parametrize("trials", [1, 4])
def test_the_largest_sums_stay_exact(trials: int) -> None:
    capacity = 2**22
    priorities = Priorities(trials, capacity, 0, CPU)
    priorities.mass.fill_(2**34)  # each as large as it may be
    priorities.mass[:, -1] = 1
    numbers, weights = priorities.sample(torch.full((trials, 3), LAST), 0.5, torch.tensor([[capacity]]))
    assert (numbers[:, -1] >= capacity - 2).all()
    assert ((numbers >= 0) & (numbers < capacity)).all()
    assert weights.isfinite().all()


def test_more_than_the_sum_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="more than"):
        Priorities(300, 1_000_000, 0, CPU)


def test_new_transitions_enter_at_the_maximum_of_their_own_time() -> None:
    priorities = filled(5, 10, held_back=2)  # 0, 1 and 2 may be drawn; 3 and 4 entered at 1
    set_priorities(priorities, [4.0, 0.5, 0.5])
    set_priorities(priorities, [0.5, 0.5, 0.5])  # the maximum does not decay
    for number in (5, 6, 7):
        priorities.add(number)
    assert (priorities.mass[0] / UNIT).tolist() == [0.5, 0.5, 0.5, 1, 1, 4, 0, 0, 0, 0]


def test_unusable_priorities_do_no_harm() -> None:
    priorities = filled(6, 8)
    set_priorities(priorities, [float("nan"), float("inf"), -1.0, 0.0, 1e-30, 1e30])
    assert priorities.mass[0].tolist() == [1, 2**34, 1, 1, 1, 2**34, 0, 0]


def test_a_failed_trial_does_not_disturb_its_neighbours() -> None:
    priorities = Priorities(3, 8, 0, CPU)
    for number in range(8):
        priorities.add(number)
    numbers = torch.arange(8).expand(3, -1)
    values = torch.ones(3, 8)
    values[1] = float("nan")
    priorities.update(numbers, values, torch.zeros(3, dtype=torch.int64))
    for word in (0, LAST):
        drawn, weights = priorities.sample(torch.full((3, 8), word), 1.0, torch.tensor([[8]]))
        assert drawn[0].tolist() == drawn[2].tolist() == list(range(8))
        assert weights.isfinite().all()


def test_of_a_transition_drawn_twice_the_larger_priority_counts() -> None:
    priorities = filled(3, 4)
    numbers = torch.tensor([[1, 1, 2]])
    priorities.update(numbers, torch.tensor([[2.0, 0.5, 0.25]]), torch.zeros(1, dtype=torch.int64))
    assert (priorities.mass[0] / UNIT).tolist() == [1, 2, 0.25, 0]


def test_a_transition_that_has_left_stays_away() -> None:
    """Its column belongs to another one by now, or to none."""
    priorities = filled(6, 4)
    priorities.remove(torch.tensor([0]), torch.tensor([2]))
    priorities.update(torch.tensor([[1, 2, 3]]), torch.tensor([[9.0, 9.0, 0.5]]), torch.tensor([3]))
    assert (priorities.mass[0] / UNIT).tolist() == [1, 1, 0, 0.5]
    assert (priorities.maximum / UNIT).tolist() == [1]
