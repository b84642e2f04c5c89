"""The circuit breaker: when it opens, who is let through, and what closes it again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.tiers.health import Health


class Clock:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return round(self.seconds * 1e9)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def health(clock):
    return Health(clock, failures=3, window_s=60, rest_s=30)


def fail(health, times=1, **more):
    for _ in range(times):
        health.enter("local", anyway=True).failed("down", **more)


def state(health):
    return health.status("local").state


def test_it_opens_after_some_failures_within_the_window(health, clock):
    fail(health, 2)
    clock.seconds = 61
    fail(health, 2)
    assert state(health) == "closed"
    fail(health)
    assert (state(health), health.enter("local")) == ("open", None)
    assert str(health.status("local")) == "rests for 30 s after it failed: down"


def test_a_whole_answer_makes_failures_before_it_not_count(health):
    fail(health, 2)
    health.enter("local").ended()
    fail(health, 2)
    assert (state(health), health.status("local").failures) == ("closed", 2)


def test_answers_that_begin_and_break_off_open_it_too(health):
    for _ in range(3):
        entered = health.enter("local")
        entered.began(0.1)
        entered.failed("cut")
    assert state(health) == "open"


def test_after_its_rest_one_request_is_on_trial(health, clock):
    fail(health, 3)
    clock.seconds = 30
    assert state(health) == "half-open"
    trial = health.enter("local")
    assert health.enter("local") is None
    trial.began(0.2)
    assert (state(health), health.status("local").failures) == ("closed", 0)
    assert health.enter("local") is not None


def test_a_trial_that_fails_opens_it_again(health, clock):
    fail(health, 3)
    clock.seconds = 100
    health.enter("local").failed("still down")
    assert (state(health), health.status("local").retry_s) == ("open", 60)


def test_it_rests_twice_as_long_after_each_trial_that_failed_until_one_begins_to_answer(health, clock):
    fail(health, 3)
    rests = []
    for _ in range(6):
        rests.append(health.status("local").retry_s)
        clock.seconds += rests[-1]
        health.enter("local").failed("still down")
    assert rests == [30, 60, 120, 240, 480, 600]
    clock.seconds += 600
    health.enter("local").began(0.1)
    fail(health, 3)
    assert health.status("local").retry_s == 30


def test_a_failure_that_was_long_waited_for_opens_it_at_once(health):
    fail(health, waited_s=5.0)
    assert state(health) == "closed"
    fail(health, waited_s=5.1)
    assert (state(health), health.status("local").retry_s) == ("open", 30)


def test_a_trial_that_is_given_back_lets_another_one_through(health, clock):
    fail(health, 3)
    clock.seconds = 31
    health.enter("local").over()
    assert health.enter("local") is not None


def test_early_is_one_request_while_it_rests(health):
    fail(health, 3)
    trial = health.enter("local", early=True)
    assert trial is not None
    assert health.enter("local", early=True) is None
    trial.began(0.1)
    assert state(health) == "closed"


def test_a_server_that_asks_to_be_left_alone_is(health, clock):
    fail(health, rest_s=120)
    clock.seconds = 119
    assert state(health) == "open"
    clock.seconds = 120
    assert state(health) == "half-open"


def test_no_server_is_left_alone_for_ever(health, clock):
    fail(health, rest_s=1e9)
    clock.seconds = 600
    assert state(health) == "half-open"


def test_latency_is_the_median_of_the_last_answers(health):
    assert health.status("local").latency_s is None
    for seconds in (0.1, 0.2, 9.0):
        health.enter("local").began(seconds)
    assert health.status("local").latency_s == 0.2


def test_tiers_do_not_share_a_breaker_and_new_settings_begin_anew(health):
    fail(health, 3)
    assert health.status("hpc").state == "closed"
    health.forget("local")
    assert str(health.status("local")) == "ok"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["enter", "early", "began", "ended", "failed", "over", "wait"]), st.integers(0, 3)),
        max_size=40,
    )
)
def test_at_most_one_request_is_let_through_while_it_is_not_closed(steps):
    clock = Clock()
    health = Health(clock, failures=2, window_s=60, rest_s=30)
    under_way, trials = [], []
    for step, which in steps:
        if step == "wait":
            clock.seconds += 10 * (which + 1)
        elif step in ("enter", "early"):
            was = state(health)
            entered = health.enter("local", early=step == "early")
            if entered is None:
                assert was != "closed"
                continue
            under_way.append(entered)
            if was != "closed":
                assert not [trial for trial in trials if trial in under_way]
                trials.append(entered)
        elif under_way:
            entered = under_way[which % len(under_way)]
            if step == "began":
                entered.began(0.1)
                trials.clear()
            else:
                under_way.remove(entered)
                getattr(entered, step)(*(["down"] if step == "failed" else []))
