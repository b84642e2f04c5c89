"""Waiting for a tier: words meanwhile, patience where another one may answer, and a rest after it."""

from __future__ import annotations

import asyncio

import virtual
from routing_stage import HI, actors, answer, router

from aiflow_jupyter.errors import ProviderError
from aiflow_jupyter.runtime.source import Request

DOWN = ProviderError("nothing answers at gpu01:8000", code="AF701")


def patience(of):
    return {name: [request.patience for request in actor.requests] for name, actor in of.items()}


def test_a_tier_is_waited_for_shortly_where_another_one_may_take_over():
    async def story(loop):
        of = actors(hpc=[[DOWN]], local=[[DOWN]])
        await answer(router(of, label="MEDIUM", loop=loop))
        assert patience(of) == {"hpc": [15.0], "local": [15.0], "cloud": [None]}

        of = actors(hpc=[[DOWN]], local=[["a"]])
        await answer(router(of, loop=loop), tier="hpc", fallback=True)
        assert patience(of) == {"hpc": [15.0], "local": [15.0], "cloud": []}

    virtual.run(story)


def test_a_tier_that_is_named_alone_is_waited_for_as_its_settings_say():
    async def story(loop):
        of = actors()
        await answer(router(of, loop=loop), tier="hpc")
        await answer(router(of, loop=loop), tier="hpc", patience=40.0)
        await answer(router({"hpc": of["hpc"]}, loop=loop))
        await answer(router(of, label="MEDIUM", loop=loop), stay="institution", patience=3.0)
        assert patience(of)["hpc"] == [None, 40.0, None, 3.0]

    virtual.run(story)


def test_a_tier_that_failed_before_is_waited_for_no_second_time():
    async def story(loop):
        of = actors(hpc=[[DOWN]], local=[["a"]])
        source = router(of, label="MEDIUM", loop=loop)
        source.health.enter("hpc").failed("down", rest_s=30)
        await answer(source, tier="hpc", fallback=True)
        await asyncio.sleep(60)
        await answer(source)
        await answer(source, tier="hpc")
        assert patience(of)["hpc"] == [2.0, 2.0, None]

    virtual.run(story)


def test_others_that_rest_do_not_shorten_the_wait():
    async def story(loop):
        of = actors()
        source = router(of, label="MEDIUM", loop=loop)
        for name in ("local", "cloud"):
            source.health.enter(name).failed("down", rest_s=60)
        await answer(source)
        assert patience(of)["hpc"] == [None]

    virtual.run(story)


def test_a_tier_that_failed_after_a_long_wait_is_not_waited_for_by_the_next_question():
    async def story(loop):
        of = actors(hpc=[[15.0, DOWN], ["b"]], local=[["a"]])
        source = router(of, label="MEDIUM", loop=loop)
        first = await answer(source)
        assert (first.text, [each.tier for each in first.decision.fallbacks]) == ("a[finish]", ["hpc"])
        second = await answer(source)
        assert (second.text, len(of["hpc"].requests)) == ("a[finish]", 1)
        assert second.decision.candidate("hpc").reason.startswith("rests for 30 s after it failed: nothing answers")
        await asyncio.sleep(30)
        assert (await answer(source)).text == "b[finish]"

    virtual.run(story)


def test_a_silent_tier_is_named_after_two_seconds_and_then_each_second():
    async def story(loop):
        said = []
        of = actors(cloud=[[4.5, "a", 20.0, "b"]])
        got = await answer(router(of, loop=loop), tier="cloud", report=said.append)
        assert got.text == "ab[finish]"
        assert said == ["waiting for cloud, 2 s", "waiting for cloud, 3 s", "waiting for cloud, 4 s"]

    virtual.run(story)


def test_what_a_tier_says_itself_stands_for_a_while_and_then_with_its_seconds():
    async def story(loop):
        said = []
        of = actors(local=[[("report", "starting the model"), 7.5, ("report", ""), 2.5, "a"]])
        await answer(router(of, loop=loop), tier="local", report=said.append)
        assert said == [
            "starting the model",
            "starting the model, 6 s",
            "starting the model, 7 s",
            "",
            "waiting for local, 10 s",
        ]

    virtual.run(story)


def test_nothing_is_said_of_a_tier_that_has_failed():
    async def story(loop):
        said = []
        of = actors(local=[[3.5, DOWN]])
        await answer(router(of, loop=loop), tier="local", report=said.append)
        await asyncio.sleep(60)
        assert said == ["waiting for local, 2 s", "waiting for local, 3 s"]

    virtual.run(story)


def test_whoever_leaves_hears_no_more():
    async def story(loop):
        said = []
        source = router(actors(local=[[3600.0]]), loop=loop)

        async def ask():
            async for _ in source.stream(Request(HI, tier="local", report=said.append)):
                pass

        asking = asyncio.create_task(ask())
        await asyncio.sleep(2.5)
        asking.cancel()
        await asyncio.wait({asking})
        await asyncio.sleep(60)
        assert said == ["waiting for local, 2 s"]

    virtual.run(story)
