"""The router: which tier is asked, what makes it go on to another one, and what it never does."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import aclosing, suppress

import httpx
import pytest
import virtual
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_stage import GOING_ON, HI, IMAGE, PRICED, USAGE, Actor, Book, actors, answer, judge, router, tier

from aiflow_jupyter.errors import ConfigError, ProviderError, StreamCut
from aiflow_jupyter.events import Event, Finish, Usage
from aiflow_jupyter.providers.openai import OpenAICompatible
from aiflow_jupyter.runtime.source import Request
from aiflow_jupyter.tiers.choosing import Routing
from aiflow_jupyter.tiers.database import Database
from aiflow_jupyter.tiers.judge.fixed import FixedJudge
from aiflow_jupyter.tiers.judge.llm import LlmJudge
from aiflow_jupyter.tiers.ledger import Budgets, SqliteLedger
from aiflow_jupyter.tiers.router import Router
from aiflow_jupyter.tiers.terms import NAMES, PLACES, REACH, Described, Fitted, OverBudgetError, Price

EASY = ({"role": "user", "content": "What is the capital of France?"},)
DOWN = ProviderError("nothing answers", code="AF701", unread=True)
BUSY = ProviderError("too many requests", code="AF705", unread=True)
FAILED = ProviderError("HTTP 500", code="AF707", unread=True)
REFUSED = ProviderError("too long", code="AF706", unread=True, of_request=True)
CUT = StreamCut("the connection was lost")


def asked(of):
    return [name for name, actor in of.items() if actor.requests]


# -- choosing


@pytest.mark.parametrize(("label", "first"), [("LOW", "local"), ("MEDIUM", "hpc"), ("HIGH", "cloud")])
async def test_auto_takes_the_first_tier_of_the_labels_chain(label, first):
    of = actors()
    got = await answer(router(of, label=label))
    assert (got.text, asked(of), got.decision.chosen, got.decision.label) == ("ab[finish]", [first], first, label)
    assert of[first].requests[0].tier == first


async def test_the_chains_are_a_setting():
    of = actors()
    chains = {"LOW": ("cloud",), "MEDIUM": ("cloud",), "HIGH": ("cloud",)}
    await answer(router(of, settings=Routing(chains=chains)))
    assert asked(of) == ["cloud"]


async def test_where_one_tier_is_possible_nobody_has_to_judge():
    of = actors()
    source = router(of, label=lambda _: pytest.fail("judged"))
    got = await answer(source, stay="local")
    assert (asked(of), got.decision.label, got.decision.why) == (["local"], None, "only local is possible")


async def test_the_judge_is_told_of_the_floor():
    said = judge()
    await answer(router(actors(), judge=said), stay="institution")
    assert said.floors == ["institution"]


@pytest.mark.parametrize(
    ("error", "why"), [(ConfigError("no model file"), "no model file"), (ImportError("numpy"), "ImportError: numpy")]
)
async def test_a_judge_that_fails_costs_no_answer(error, why):
    def broken(messages, floor):
        raise error

    of = actors()
    got = await answer(router(of, judge=broken))
    assert (asked(of), got.decision.why) == (["hpc"], f"the judge failed: {why}")


def test_a_judge_that_does_not_end_is_not_waited_for():
    async def story(loop):
        async def slow(messages, floor):
            await asyncio.sleep(3600)

        got = await answer(router(actors(), judge=slow, loop=loop, settings=Routing(judge_s=2)))
        assert (got.text, got.decision.chosen, got.decision.judged_s) == ("ab[finish]", "hpc", 2.0)
        assert got.decision.seconds == 2.0
        assert got.decision.why == "the judge failed: no verdict in 2 s"

    virtual.run(story)


def test_a_judges_model_that_does_not_answer_at_first_leaves_the_verdict_to_who_judges_in_its_place():
    async def story(loop):
        silent = router(actors(hpc=[[3600.0, "HIGH"]]), loop=loop)
        asking = LlmJudge(silent, tier="hpc", fallback=FixedJudge("LOW"))
        got = await answer(router(actors(), judge=lambda messages, floor: asking.ajudge(messages), loop=loop), EASY)
        assert (got.decision.chosen, got.decision.label) == ("local", "LOW")
        assert "the model did not answer within 10 s" in got.decision.why

    virtual.run(story)


async def test_a_named_tier_is_strict():
    of = actors(local=[[DOWN]])
    got = await answer(router(of), tier="local")
    assert (got.error, asked(of), got.text) == (DOWN, ["local"], "")


async def test_a_named_tier_that_is_not_configured_is_told_so():
    of = actors()
    del of["hpc"]
    got = await answer(router(of), tier="hpc")
    assert isinstance(got.error, ConfigError)
    assert (got.error.code, asked(of)) == ("AF722", [])
    assert "local, cloud" in got.error.hint


async def test_nothing_configured_is_an_error():
    got = await answer(router({}))
    assert got.error.message == "no tier is configured"


async def test_a_named_tier_is_left_where_the_request_says_so():
    of = actors(local=[[DOWN]])
    got = await answer(router(of), tier="local", fallback=True)
    assert (got.text, got.decision.chosen) == ("ab[finish]", "hpc")
    assert got.decision.badge() == "local failed: nothing answers, answered by hpc"


async def test_a_tier_beyond_the_floor_is_refused_also_by_name():
    of = actors()
    got = await answer(router(of), tier="cloud", stay="institution", fallback=False)
    assert (got.error.code, asked(of)) == ("AF751", [])
    assert "not allowed: this request stays" in got.error.message
    assert "--stay" in got.error.hint


async def test_an_image_goes_to_a_tier_that_takes_images():
    of = actors()
    fields = {"cloud": {"takes": frozenset({"images"})}}
    got = await answer(router(of, fields=fields), IMAGE)
    assert (asked(of), got.decision.candidate("local").reason) == (["cloud"], "takes no images")


async def test_tools_go_to_a_tier_that_takes_tools():
    of = actors()
    fields = {"local": {"takes": frozenset()}}
    await answer(router(of, fields=fields), tools=({"type": "function"},))
    assert asked(of) == ["hpc"]


async def test_what_no_window_holds_is_refused_with_numbers():
    of = actors()
    got = await answer(router(of), ({"role": "user", "content": "word " * 20_000},))
    assert (got.error.code, asked(of)) == ("AF751", [])
    candidate = got.decision.candidate("local")
    assert candidate.tokens > 20_000
    assert str(candidate.tokens) in str(got.decision)


async def test_a_small_window_is_passed_over_also_after_a_failure():
    of = actors(hpc=[[DOWN]])
    got = await answer(
        router(of, label="MEDIUM", fields={"local": {"window": 2_048}}), ({"role": "user", "content": "word " * 2_000},)
    )
    assert (asked(of), got.decision.candidate("local").reason) == (["hpc", "cloud"], "the chat does not fit")


async def test_the_answer_has_to_fit_too():
    of = actors()
    await answer(router(of, fields={"local": {"window": 2_048}}), max_tokens=4_000)
    assert asked(of) == ["hpc"]


async def test_the_fitter_is_told_of_the_floor_and_what_it_folds_is_sent():
    seen = []

    class Folding:
        async def fit(self, messages, tier, output, floor, conversation):
            seen.append((tier.name, output, floor, conversation))
            return Fitted(({"role": "user", "content": "short"},), 3, folded=7, note="by an extract")

    of = actors()
    got = await answer(router(of, fitter=Folding()), stay="local", conversation="thesis")
    assert seen == [("local", 1_024, "local", "thesis")]
    assert of["local"].requests[0].messages[0]["content"] == "short"
    assert got.decision.badge() == "7 older messages folded"
    assert "7 older messages folded · by an extract" in str(got.decision)


# -- stickiness


async def test_a_conversation_stays_where_it_is_unless_the_label_rises():
    labels = iter(["LOW", "LOW", "MEDIUM", "LOW"])
    source = router(actors(), label=lambda _: next(labels))
    chosen = [(await answer(source, GOING_ON, conversation="thesis")).decision.chosen for _ in range(4)]
    assert chosen == ["local", "local", "hpc", "hpc"]


async def test_a_conversation_does_not_stay_elsewhere_where_nobody_says_that_it_is_free():
    labels = iter(["HIGH", "HIGH", "LOW"])
    source = router(actors(), label=lambda _: next(labels))
    chosen = [(await answer(source, GOING_ON, conversation="thesis")).decision.chosen for _ in range(3)]
    assert chosen == ["cloud", "cloud", "local"]


async def test_a_conversation_does_not_stay_where_it_costs_more_than_its_label_s_own_tier():
    labels = iter(["HIGH", "LOW", "MEDIUM", "HIGH"])
    source = router(actors(), label=lambda _: next(labels), fields=PRICED)
    got = [(await answer(source, GOING_ON, conversation="thesis")).decision for _ in range(4)]
    assert [each.chosen for each in got] == ["cloud", "local", "hpc", "cloud"]


async def test_the_badge_says_where_a_conversation_outweighs_the_label():
    labels = iter(["MEDIUM", "MEDIUM", "LOW"])
    source = router(actors(), label=lambda _: next(labels))
    badges = [(await answer(source, GOING_ON, conversation="thesis")).decision.badge() for _ in range(3)]
    assert badges == ["judged MEDIUM", "judged MEDIUM", "judged LOW · stays where its conversation was"]


async def test_a_first_turn_that_is_asked_again_stays_nowhere():
    labels = iter(["HIGH", "LOW"])
    source = router(actors(), label=lambda _: next(labels))
    chosen = [(await answer(source, conversation="thesis")).decision.chosen for _ in range(2)]
    assert chosen == ["cloud", "local"]


@pytest.mark.parametrize(
    ("before", "label", "chosen"),
    [
        ("cloud", "LOW", "local"),
        ("cloud", "HIGH", "cloud"),
        ("hpc", "LOW", "hpc"),
        ("hpc", "HIGH", "cloud"),
        ("local", "MEDIUM", "hpc"),
        ("", "LOW", "local"),
        ("moon", "LOW", "local"),
    ],
)
async def test_a_conversation_of_an_earlier_process_goes_on_where_its_last_turn_was(before, label, chosen):
    source = router(actors(), label=label, recall={"thesis": before}.__getitem__)
    assert (await answer(source, GOING_ON, conversation="thesis")).decision.chosen == chosen
    assert (await answer(source, GOING_ON)).decision.kept == ""


async def test_a_file_that_can_not_say_who_answered_costs_no_answer():
    def locked(name):
        raise ConfigError("the file is locked")

    got = await answer(router(actors(), label="HIGH", recall=locked), GOING_ON, conversation="thesis")
    assert (got.decision.chosen, got.decision.kept) == ("cloud", "")


async def test_a_conversation_leaves_a_tier_that_can_not_go_on():
    of = actors()
    source = router(of, fields={"hpc": {"takes": frozenset({"images"})}})
    await answer(source, GOING_ON, conversation="thesis")
    got = await answer(source, IMAGE, conversation="thesis")
    after = await answer(source, GOING_ON, conversation="thesis")
    assert (got.decision.chosen, after.decision.chosen, after.decision.kept) == ("hpc", "hpc", "thesis")


async def test_a_long_session_and_ok_continue_goes_where_it_fits():
    of = actors()
    source = router(of, fields={"local": {"window": 1_024}})
    long = ({"role": "user", "content": "word " * 900}, {"role": "assistant", "content": "yes"}, *HI)
    got = await answer(source, long, conversation="thesis")
    assert (got.text, got.decision.chosen) == ("ab[finish]", "hpc")


async def test_a_tier_that_stood_in_keeps_no_conversation():
    of = actors(local=[["a"], [DOWN], ["a"]])
    source = router(of)
    chosen = [(await answer(source, GOING_ON, conversation="thesis")).decision.chosen for _ in range(3)]
    assert chosen == ["local", "hpc", "local"]


def test_a_tier_that_stands_in_for_one_that_rests_or_is_on_trial_keeps_no_conversation():
    async def story(loop):
        source = router(actors(), label="MEDIUM", loop=loop)

        async def chosen():
            return (await answer(source, GOING_ON, conversation="thesis")).decision.chosen

        before = await chosen()
        for _ in range(3):
            source.health.enter("hpc").failed("down")
        resting = await chosen()
        await asyncio.sleep(31)
        trial = source.health.enter("hpc")
        beside = await chosen()
        trial.began(0.1)
        trial.ended()
        assert (before, resting, beside, await chosen()) == ("hpc", "local", "local", "hpc")

    virtual.run(story)


async def test_the_model_that_a_conversation_stays_with_is_its_tiers_alone():
    of = actors(hpc=[["a"], [DOWN]])
    source = router(of, label="MEDIUM")
    await answer(source, GOING_ON, conversation="thesis", model="qwen-72b")
    got = await answer(source, GOING_ON, conversation="thesis")
    assert [each.requests[-1].model for each in (of["hpc"], of["local"])] == ["qwen-72b", None]
    assert (got.decision.chosen, got.decision.model) == ("local", "local-model")


async def test_conversations_do_not_hold_each_other():
    labels = iter(["HIGH", "LOW"])
    source = router(actors(), label=lambda _: next(labels))
    first = await answer(source, GOING_ON, conversation="one")
    second = await answer(source, GOING_ON, conversation="two")
    assert (first.decision.chosen, second.decision.chosen) == ("cloud", "local")


async def test_a_model_that_no_setting_names_is_told_by_its_server():
    got = await answer(router(actors(), fields={"local": {"model": ""}}))
    assert str(got.decision).startswith("auto: local answers · m\n")


# -- fallback


@pytest.mark.parametrize("error", [DOWN, BUSY, FAILED, REFUSED, CUT, ConfigError("no key", code="AF724")])
async def test_a_failure_before_the_first_token_is_silent_and_noted(error):
    of = actors(local=[[error]])
    got = await answer(router(of))
    assert (got.text, got.error, got.decision.chosen) == ("ab[finish]", None, "hpc")
    assert got.decision.badge() == f"judged LOW · local failed: {error.message}, answered by hpc"
    assert got.decision.candidate("local").state == "failed"


async def test_a_failure_after_the_first_token_stops_with_what_came():
    of = actors(local=[["a", CUT]])
    got = await answer(router(of))
    assert (got.text, got.error, asked(of)) == ("a", CUT, ["local"])


async def test_a_stream_that_ends_without_a_finish_is_a_failure():
    of = actors(local=[[...]])
    got = await answer(router(of))
    assert (got.text, got.decision.chosen) == ("ab[finish]", "hpc")
    got = await answer(router(actors(local=[["a", ...]])))
    assert (got.text, type(got.error)) == ("a", StreamCut)


async def test_restart_begins_anew_behind_a_restart_event():
    of = actors(local=[["x", "y", CUT]])
    got = await answer(router(of), restart=True)
    assert (got.text, got.error) == ("xy[restart]ab[finish]", None)
    assert got.decision.fallbacks[0].begun


async def test_there_is_no_restart_without_anybody_to_begin_anew():
    of = actors(local=[["x", CUT]], hpc=[[DOWN]], cloud=[[DOWN]])
    got = await answer(router({"local": of["local"]}), restart=True)
    assert (got.text, got.error) == ("x", CUT)


async def test_restart_does_not_leave_a_named_tier():
    of = actors(local=[["x", CUT]])
    got = await answer(router(of), tier="local", restart=True)
    assert (got.text, got.error, asked(of)) == ("x", CUT, ["local"])


async def test_when_all_fail_each_is_named():
    of = actors(local=[[DOWN]], hpc=[[FAILED]], cloud=[[BUSY]])
    got = await answer(router(of))
    assert got.error.code == "AF755"
    assert got.error.hint.splitlines() == ["local: nothing answers", "hpc: HTTP 500", "cloud: too many requests"]


async def test_a_fault_in_a_provider_is_no_failure_of_its_tier():
    of = actors(local=[[ZeroDivisionError("a bug")]])
    book = Book()
    got = await answer(router(of, book=book))
    assert (type(got.error), asked(of), book.open) == (ZeroDivisionError, ["local"], {})


# -- deadlines


def test_a_tier_without_a_first_token_is_left_after_its_deadline():
    async def story(loop):
        of = actors(local=[[3600.0, "late"]])
        begun = loop.time()
        got = await answer(router(of, loop=loop, fields={"local": {"first_token_s": 20.0}}))
        assert (got.text, got.decision.fallbacks[0].code, loop.time() - begun) == ("ab[finish]", "AF753", 20.0)
        assert Actor.streaming == 0

    virtual.run(story)


def test_a_cold_start_that_reports_progress_is_no_failure():
    async def story(loop):
        waits = [part for n in range(30) for part in (15.0, ("report", f"submitted {n} s ago"))]
        said = []
        of = actors(local=[[*waits, "a"]])
        got = await answer(router(of, loop=loop, fields={"local": {"first_token_s": 20.0}}), report=said.append)
        own = [words for words in said if words.endswith("ago")]
        assert (got.text, got.decision.fallbacks, len(own)) == ("a[finish]", [], 30)

    virtual.run(story)


def test_silence_within_an_answer_is_a_cut():
    async def story(loop):
        of = actors(local=[["a", 3600.0, "b"]])
        got = await answer(router(of, loop=loop, fields={"local": {"silence_s": 30.0}}))
        assert (got.text, got.error.code, type(got.error)) == ("a", "AF754", StreamCut)

    virtual.run(story)


def test_the_readers_own_time_is_not_the_tiers():
    async def story(loop):
        source = router(actors(), loop=loop, fields={"local": {"silence_s": 30.0}})
        got = []
        async with aclosing(source.stream(Request(HI))) as events:
            async for event in events:
                got.append(event.kind)
                await asyncio.sleep(3600)
        assert got == ["token", "token", "finish"]

    virtual.run(story)


# -- cancelling


@pytest.mark.parametrize("script", [[3600.0, "a"], ["a", 3600.0]])
def test_a_cancelled_request_is_never_sent_on(script):
    async def story(loop):
        of = actors(local=[script])
        book = Book()
        task = asyncio.ensure_future(answer(router(of, book=book, loop=loop), restart=True))
        await asyncio.sleep(5)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert (asked(of), book.open, book.how, Actor.streaming) == (["local"], {}, [("local", "settled")], 0)

    virtual.run(story)


def test_a_provider_that_words_a_cancel_as_its_own_error_is_not_fallen_over():
    async def story(loop):
        of = actors()

        class Wordy(Actor):
            async def stream(self, request):
                self.requests.append(request)
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    raise DOWN from None
                yield

        of["local"] = Wordy("local")
        task = asyncio.ensure_future(answer(router(of, loop=loop)))
        await asyncio.sleep(1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert asked(of) == ["local"]

    virtual.run(story)


async def test_a_reader_that_leaves_closes_the_provider():
    of = actors()
    book = Book()
    async with aclosing(router(of, book=book).stream(Request(HI))) as events:
        await anext(events)
        assert Actor.streaming == 1
    assert (Actor.streaming, book.open, book.how) == (0, {}, [("local", "settled")])


async def test_a_request_that_is_cancelled_while_it_is_booked_leaves_nothing_open():
    class Slow(Book):
        def intend(self, intent):
            time.sleep(0.2)
            return super().intend(intent)

    of, book = actors(), Slow()
    counted = router(of)
    source = Router(
        counted.tiers, judge=judge(), ledger=book, fitter=counted._fitter, counter=counted._counter
    )  # with real threads
    task = asyncio.ensure_future(answer(source))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await source.aclose()
    assert (asked(of), book.open, book.how) == ([], {}, [("local", "released")])
    assert [actor.closed for actor in of.values()] == [1, 1, 1]


# -- health


def test_a_tier_that_fails_rests_and_is_tried_again_by_one_request():
    async def story(loop):
        of = actors(local=[[DOWN], [DOWN], [DOWN], [20.0, "a"]])
        source = router(of, loop=loop)
        for _ in range(3):
            assert (await answer(source)).decision.chosen == "hpc"
        got = await answer(source)
        assert (len(of["local"].requests), got.decision.fallbacks) == (3, [])
        assert "rests for 30 s" in got.decision.candidate("local").reason
        await asyncio.sleep(31)
        trial, beside = await asyncio.gather(answer(source), answer(source))
        assert (trial.decision.chosen, beside.decision.chosen) == ("local", "hpc")
        assert source.health.status("local").state == "closed"

    virtual.run(story)


def test_the_only_tier_is_tried_early_when_it_rests():
    async def story(loop):
        of = {"local": Actor("local", [DOWN], [DOWN], [DOWN], ["a"])}
        source = router(of, loop=loop)
        for _ in range(3):
            assert (await answer(source)).error is DOWN
        assert source.health.status("local").state == "open"
        assert (await answer(source)).text == "a[finish]"

    virtual.run(story)


def test_a_named_tier_is_asked_also_while_it_rests():
    async def story(loop):
        of = actors(local=[[DOWN], [DOWN], [DOWN], ["a"]])
        source = router(of, loop=loop)
        for _ in range(3):
            await answer(source, tier="local")
        assert (await answer(source, tier="local")).text == "a[finish]"
        assert source.health.status("local").state == "closed"

    virtual.run(story)


def test_a_refused_request_says_nothing_of_health():
    async def story(loop):
        of = actors(local=[[REFUSED]])
        source = router(of, loop=loop)
        for _ in range(5):
            await answer(source)
        assert (source.health.status("local").state, len(of["local"].requests)) == ("closed", 5)

    virtual.run(story)


def test_settings_that_change_count_from_the_next_request_on():
    async def story(loop):
        of = actors(local=[[DOWN]])
        source = router(of, loop=loop)
        for _ in range(3):
            await answer(source)
        mended = Actor("local", ["mended"])
        source.follow({**source.tiers, "local": tier(mended)}, Routing())
        assert (await answer(source)).text == "mended[finish]"

    virtual.run(story)


# -- money


async def test_the_worst_case_is_booked_and_the_usage_settled():
    of, book = actors(), Book()
    got = await answer(router(of, label="HIGH", fields=PRICED, book=book))
    ((intent, how),) = book.closed.values()
    tokens = got.decision.candidate("cloud").tokens
    assert intent.most == pytest.approx((tokens * 1.0 + 1_024 * 10.0) / 1e6)
    assert how == ("settled", USAGE, pytest.approx((10 * 1.0 + 5 * 10.0) / 1e6))
    assert got.decision.cost == how[2]
    assert of["cloud"].requests[0].max_tokens == 1_024


async def test_what_the_provider_says_it_cost_counts():
    said = Event("finish", Finish("stop", USAGE), sequence=1, meta={"cost": 0.25})
    of, book = actors(cloud=[["a", said, ...]]), Book()
    got = await answer(router(of, label="HIGH", fields=PRICED, book=book))
    assert (got.decision.cost, next(iter(book.closed.values()))[1]) == (0.25, ("settled", USAGE, 0.25))


@pytest.mark.parametrize("said", [math.nan, -1.0, "much", None])
async def test_a_cost_that_can_not_be_is_not_believed(said):
    event = Event("finish", Finish("stop", USAGE), sequence=1, meta={"cost": said})
    of, book = actors(cloud=[["a", event, ...]]), Book()
    got = await answer(router(of, label="HIGH", fields=PRICED, book=book))
    assert got.decision.cost == pytest.approx(60e-6)


async def test_what_an_answer_cost_of_which_nobody_says_the_usage_is_not_known():
    event = Event("finish", Finish("stop", Usage()), sequence=1)
    of, book = actors(cloud=[["a", event, ...]]), Book()
    got = await answer(router(of, label="HIGH", fields=PRICED, book=book))
    ((intent, how),) = book.closed.values()
    assert (how[2], got.decision.cost) == (None, None)
    assert got.decision.badge().endswith(f" · at most {intent.most:.4f} USD")
    assert f"cost: at most {intent.most:.4f} USD\nnobody said" in str(got.decision)


@pytest.mark.parametrize("script", [["a", CUT], ["a", FAILED], [CUT], ["a", ...]])
async def test_a_cut_answer_says_what_it_may_have_cost(script):
    got = await answer(router(actors(cloud=[script]), fields=PRICED), tier="cloud")
    assert got.error is not None
    assert (got.decision.cost, got.decision.badge().endswith(" · at most 0.0103 USD")) == (None, True)


async def test_an_interrupted_answer_says_what_it_may_have_cost():
    decisions, book = [], Book()
    source = router(actors(), fields=PRICED, book=book)
    async with aclosing(source.stream(Request(HI, tier="cloud", decided=decisions.append))) as events:
        await anext(events)
    assert book.how == [("cloud", "settled")]
    assert "cost: at most 0.0103 USD" in str(decisions[0])


async def test_an_answer_that_is_begun_anew_costs_what_both_cost():
    of = actors(cloud=[["a", CUT]])
    got = await answer(router(of, label="HIGH", fields=PRICED | {"hpc": {"price": Price(10.0, 20.0)}}), restart=True)
    assert [(each.tier, each.cost) for each in got.decision.charges] == [("cloud", None), ("hpc", pytest.approx(2e-4))]
    assert got.decision.badge().endswith(" · cloud at most 0.0103 USD, hpc 0.0002 USD")


async def test_what_never_got_through_costs_nothing():
    got = await answer(router(actors(cloud=[[DOWN]]), fields=PRICED), tier="cloud")
    assert (got.decision.charges, got.decision.costs) == ([], "")


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ([DOWN], "released"),
        ([FAILED], "released"),
        ([ProviderError("an answer that is no stream", code="AF708")], "settled"),
        ([CUT], "settled"),
        (["a", FAILED], "settled"),
        ([...], "settled"),
    ],
)
async def test_only_what_never_got_through_is_released(script, how):
    book = Book()
    await answer(router(actors(local=[script]), book=book), tier="local")
    assert book.how == [("local", how)]


@pytest.mark.parametrize(("media", "how"), [("text/html", "released"), ("application/json", "settled")])
async def test_the_page_of_a_portal_is_paid_with_nothing_and_an_answer_in_one_piece_is(media, how):
    def reply(_):
        return httpx.Response(200, headers={"content-type": media}, text="...")

    cloud = OpenAICompatible("https://api.example/v1", model="m", transport=httpx.MockTransport(reply))
    cloud.name, book = "cloud", Book()
    await answer(router({"cloud": cloud}, fields=PRICED, book=book), tier="cloud")
    assert book.how == [("cloud", how)]


async def test_over_budget_goes_where_it_costs_nothing():
    of, book = actors(), Book(limit=0)
    got = await answer(router(of, label="HIGH", fields=PRICED, book=book))
    assert (asked(of), got.decision.candidate("cloud").reason) == (["hpc"], "the budget of today is used up")


async def test_a_named_tier_over_budget_is_an_error():
    of = actors()
    got = await answer(router(of, fields=PRICED, book=Book(limit=0)), tier="cloud")
    assert (type(got.error), asked(of)) == (OverBudgetError, [])


async def test_max_tokens_in_further_fields_count_in_the_worst_case():
    book = Book()
    await answer(
        router(actors(), fields=PRICED, book=book), tier="cloud", extra={"max_completion_tokens": 5_000, "n": 2}
    )
    ((intent, _),) = book.closed.values()
    assert intent.most > 10_000 * 10.0 / 1e6


async def test_the_schemas_of_functions_count_in_the_worst_case():
    tools = ({"type": "function", "function": {"name": "look", "description": "word " * 4_000}},)
    plain, calling = [await router(actors(), fields=PRICED).explain(HI, tools=each) for each in ((), tools)]
    assert calling.candidate("cloud").most - plain.candidate("cloud").most > 4_000 * 1.0 / 1e6


async def test_a_budget_in_the_real_ledger_holds(tmp_path):
    ledger = SqliteLedger(Database(tmp_path / "aiflow.db"), lambda: Budgets(day=0.0105))
    of = actors()
    source = router(of, label="HIGH", fields=PRICED, book=ledger)
    first, second = await answer(source), await answer(source, max_tokens=1_200)
    assert (first.decision.chosen, second.decision.chosen) == ("cloud", "hpc")
    assert "budget of today" in second.decision.candidate("cloud").reason
    assert [(row.key, row.answers) for row in ledger.report("tier")] == [("cloud", 1), ("hpc", 1)]
    assert ledger.open() == []


OTHERS = {"cloud": {"price": Price(1.0, 10.0), "models": {"dear": Described(window=99_000, price=Price(50.0, 500.0))}}}


async def test_a_model_that_is_named_costs_and_holds_what_is_said_of_it():
    book = Book()
    got = await answer(router(actors(), fields=OTHERS, book=book), tier="cloud", model="dear")
    ((intent, how),) = book.closed.values()
    assert (intent.model, intent.known, got.decision.candidate("cloud").window) == ("dear", True, 99_000)
    assert how == ("settled", USAGE, pytest.approx((10 * 50.0 + 5 * 500.0) / 1e6))


async def test_a_model_without_a_price_of_its_own_is_not_asked_where_there_is_a_budget(tmp_path):
    ledger = SqliteLedger(Database(tmp_path / "aiflow.db"), lambda: Budgets(day=100.0))
    of = actors()
    source = router(of, fields=OTHERS, book=ledger)
    got = await answer(source, tier="cloud", model="dearer")
    assert (type(got.error), asked(of)) == (OverBudgetError, [])
    assert "price of 'dearer' is not known" in got.error.message
    assert '[tiers.cloud.models."dearer"]' in got.error.hint
    assert (await answer(source, tier="cloud", model="dear")).error is None
    assert (await answer(source, tier="local", model="another")).error is None  # the tier is free


async def test_a_model_without_a_price_of_its_own_is_said_to_be_counted_at_another_s():
    got = await answer(router(actors(), fields=OTHERS), tier="cloud", model="dearer")
    assert "this one's is not known" in got.decision.candidate("cloud").words()
    assert got.decision.costs == "0.00006 USD if its model costs what the tier's own does"


async def test_a_model_that_can_do_more_takes_what_its_tier_s_own_can_not():
    able = {"local": {"models": {"seeing": Described(takes=frozenset({"images"}))}}}
    got = await answer(router(actors(), fields=able), IMAGE, tier="local", model="seeing")
    assert (got.error, got.decision.chosen) == (None, "local")


async def test_the_model_that_its_server_named_is_booked(tmp_path):
    ledger = SqliteLedger(Database(tmp_path / "aiflow.db"))
    await answer(router(actors(), fields={"local": {"model": ""}}, book=ledger), tier="local")
    assert [row.key for row in ledger.report("model")] == ["m"]


async def test_a_ledger_that_can_not_be_written_takes_no_answer_back():
    class Locked(Book):
        def settle(self, entry, usage, cost, model=""):
            raise ConfigError("the file is locked")

    got = await answer(router(actors(), book=Locked()))
    assert (got.text, got.decision.notes) == ("ab[finish]", ["what it cost could not be booked: the file is locked"])


# -- explaining


async def test_explain_decides_and_sends_nothing():
    of, book = actors(), Book()
    source = router(of, label="HIGH", fields=PRICED, book=book)
    decision = await source.explain(HI, stay="institution")
    assert (asked(of), decision.chosen, book.how) == ([], "hpc", [])
    assert (await source.explain(HI)).candidate("cloud").most > 0
    assert (await answer(source)).decision.chosen == "cloud"


@pytest.mark.parametrize(("limit", "chosen"), [(1.0, "cloud"), (0.0, "hpc")])
async def test_explain_looks_at_the_budget_and_books_nothing(limit, chosen):
    book = Book(limit)
    decision = await router(actors(), label="HIGH", fields=PRICED, book=book).explain(HI)
    assert (decision.chosen, book.open, book.closed) == (chosen, {}, {})


async def test_explain_says_what_it_would_cost_elsewhere():
    decision = await router(actors(), fields=PRICED).explain(HI, max_tokens=1_000)
    assert "at most 0.0100 USD" in decision.candidate("cloud").words()
    assert (decision.candidate("cloud").state, decision.chosen) == ("unasked", "local")


async def test_explain_does_not_name_a_tier_that_the_chat_can_not_be_made_to_fit():
    source = router(actors(), fields={"local": {"window": 100}})
    long = ({"role": "user", "content": "word " * 900},)
    decision = await source.explain(long, max_tokens=10)
    assert (decision.chosen, decision.candidate("local").reason) == ("hpc", "the chat does not fit")
    assert (await source.explain(long, max_tokens=10, tier="local")).chosen is None


async def test_a_named_tier_that_is_not_configured_may_be_left_where_the_request_says_so():
    of = {name: actor for name, actor in actors().items() if name != "hpc"}
    assert (await answer(router(of), tier="hpc")).error.code == "AF722"
    got = await answer(router(of), tier="hpc", fallback=True)
    assert (got.decision.chosen, got.decision.candidate("hpc").reason) == ("local", "not configured")


async def test_explain_lets_a_judge_go_no_further_than_this_machine():
    named = judge("LOW")
    source = router(actors(), judge=named)
    await source.explain(HI)
    await answer(source)
    await answer(source, stay="institution")
    assert named.floors == ["local", "anywhere", "institution"]


async def test_a_decision_is_readable_as_a_text_and_as_a_dict():
    got = await answer(router(actors(local=[[DOWN]]), fields=PRICED), stay="institution")
    text = str(got.decision)
    assert text.splitlines()[0] == "auto: hpc answers · hpc-model"
    assert "judged LOW (LOW 1.00) in" in text
    assert "cloud  refused  not allowed: this request stays" in text
    assert "local failed before its first token, after 0 ms (AF701): nothing answers" in text
    assert got.decision.as_dict()["fallbacks"][0]["tier"] == "local"


async def test_what_nobody_can_answer_is_decided_too():
    got = await answer(router(actors()), tier="local", tools=(), stay="anywhere", max_tokens=999_999)
    assert (got.decision.chosen, got.error.code) == (None, "AF751")


# -- what never happens

STEPS = st.sampled_from(["a", "b", 1.0, 100.0, ("report", "queued"), DOWN, BUSY, FAILED, REFUSED, CUT, ...])
SCRIPTS = st.lists(STEPS, max_size=5)
REQUESTS = st.fixed_dictionaries(
    {
        "tier": st.sampled_from(["auto", *NAMES]),
        "stay": st.sampled_from(list(REACH)),
        "fallback": st.booleans(),
        "restart": st.booleans(),
        "conversation": st.sampled_from(["", "thesis"]),
        "max_tokens": st.sampled_from([None, 10, 9_000]),
        "messages": st.sampled_from([HI, IMAGE]),
    }
)


@settings(max_examples=300, deadline=None)
@given(
    scripts=st.fixed_dictionaries({name: st.lists(SCRIPTS, min_size=1, max_size=3) for name in NAMES}),
    requests=st.lists(st.tuples(REQUESTS, st.sampled_from([None, 0.5, 50.0])), min_size=1, max_size=6),
    label=st.sampled_from(["LOW", "MEDIUM", "HIGH"]),
    limit=st.sampled_from([0, float("inf")]),
)
def test_no_request_passes_its_floor_or_leaves_a_named_tier_and_every_intent_is_closed(scripts, requests, label, limit):
    async def story(loop):
        Actor.most = 0
        of, book = actors(**scripts), Book(limit)
        fields = {"cloud": {**PRICED["cloud"], "takes": frozenset({"images", "tools"})}}
        source = router(of, label=label, book=book, loop=loop, fields=fields)
        for request, patience in requests:
            before = {name: len(actor.requests) for name, actor in of.items()}
            given_ = dict(request)
            task = asyncio.ensure_future(answer(source, given_.pop("messages"), **given_))
            await asyncio.wait({task}, timeout=patience)
            task.cancel()
            await asyncio.wait({task})
            reached = [name for name, actor in of.items() if len(actor.requests) > before[name]]
            assert all(REACH[PLACES[name]] <= REACH[request["stay"]] for name in reached)
            if request["tier"] != "auto" and not request["fallback"]:
                assert set(reached) <= {request["tier"]}
            assert Actor.streaming == 0
            assert not book.open
            if not task.cancelled() and task.result().error is None:
                text = task.result().text
                assert text.endswith("[finish]")
                assert text.count("[restart]") == 0 or request["restart"]
        assert Actor.most <= 1

    virtual.run(story)


async def test_closing_closes_every_provider_even_if_one_can_not_be_closed():
    class Stuck(Actor):
        async def aclose(self):
            raise OSError("stuck")

    of = {**actors(), "local": Stuck("local")}
    with pytest.raises(OSError, match="stuck"):
        await router(of).aclose()
    assert (of["hpc"].closed, of["cloud"].closed) == (1, 1)


async def test_prices_are_of_the_tier_that_answers():
    book = Book()
    await answer(router(actors(), book=book, fields={"local": {"price": Price(0, 1, "EUR")}}))
    ((intent, _),) = book.closed.values()
    assert intent.currency == "EUR"
