"""What went wrong elsewhere, and must not here: one test for each fault that was reported of a comparable system.

Above each test stands the name of the project in which it was seen.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from itertools import pairwise

import pytest
import virtual
from graphs import Boom, Seen, burst, make_run, source

from aiflow_jupyter.errors import RunCancelled, RunError
from aiflow_jupyter.events import Event, Finish, ToolResult
from aiflow_jupyter.graph.checks.checking import check
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.graph.spec import Feedback
from aiflow_jupyter.operators import OPERATORS, SIGNATURES
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler


def slowly(seconds: float) -> Behaviour:
    async def serve(event: Event) -> Event:
        await asyncio.sleep(seconds)
        return event

    return Behaviour("await", serve)


def passing() -> Behaviour:
    return Behaviour("inline", lambda event: event)


def chain(loop, nodes, policies=None, **more):
    return make_run(loop, nodes, list(pairwise(nodes)), policies, **more)


def of_text(loop, text, functions, source=None):
    """A run of a graph in cell text, which passed its checks."""
    parsed = parse(text, "g", SIGNATURES)
    assert check(parsed.spec, SIGNATURES, functions, parsed) == []
    return Run(parsed.spec, OPERATORS, Scheduler(loop, loop.clock), functions=functions, source=source)


class Texts:
    """Answers every request with these texts, one each `pause` seconds; `taken` counts those that were read."""

    def __init__(self, *texts, pause=0.0):
        self.texts, self.pause = texts, pause
        self.taken, self.closed = 0, False

    async def stream(self, _request):
        try:
            for number, text in enumerate(self.texts):
                await asyncio.sleep(self.pause)
                self.taken += 1
                yield Event("token", text, sequence=number, meta={"phase": "answer"})
            yield Event("finish", Finish())
        finally:
            self.closed = True


# Pipecat: an interruption took the EndFrame with it, and the pipeline froze.
@pytest.mark.parametrize("cancel", ["both", "upstream", "downstream", "none"])
def test_a_node_that_is_stopped_in_the_midst_still_ends_its_stream(cancel):
    async def story(loop):
        seen = Seen()
        nodes = {"src": source(burst(20)), "work": slowly(1), "sink": seen.behaviour()}
        run = chain(loop, nodes, {"work": {"cancel": cancel}})
        ending = asyncio.ensure_future(run.run("go"))
        await asyncio.sleep(3.5)
        await run.stop("work")
        assert (await ending).complete is False
        assert [event.kind for event in seen.events] == ["value"] * 3 + ["end"]
        assert not seen.events[-1].complete

    virtual.run(story)


# Pipecat: results of tools were lost when the user interrupted or a queue was full.
@pytest.mark.parametrize("rule", ["drop_newest", "drop_oldest"])
def test_results_of_tools_outlive_every_full_queue(rule):
    async def story(loop):
        results = [ToolResult(str(n), "look_up", "found") for n in range(12)]
        events = []
        for number, result in enumerate(results):
            events.append(Event("tool_result", result, source="src", sequence=2 * number, lineage="a"))
            events.append(Event("token", "x", source="src", sequence=2 * number + 1, lineage="a"))
        seen = Seen()
        nodes = {"src": source(events), "work": slowly(1), "sink": seen.behaviour()}
        run = chain(loop, nodes, {"work": {"queue": 2, "overflow": rule}})
        await run.run("go")
        assert [event.payload for event in seen.events if event.kind == "tool_result"] == results
        assert run.guardians["work"].drops["token"] > 0

    virtual.run(story)


# Pipecat: frames overtook one another, so that an interruption hit what came after it.
@pytest.mark.parametrize("workers", [1, 4])
def test_no_control_event_overtakes_the_data_before_it_nor_the_other_way_round(workers):
    async def story(loop):
        async def uneven(event):
            await asyncio.sleep(5 - event.sequence % 5)
            return event

        kinds = ("value", "flush", "value", "skip", "value", "commit", "value", "retract", "value", "finish")
        events = [Event(kind, n, source="src", sequence=n, lineage=f"a{n}") for n, kind in enumerate(kinds)]
        seen = Seen()
        nodes = {"src": source(events), "work": Behaviour("await", uneven), "sink": seen.behaviour()}
        await chain(loop, nodes, {"work": {"workers": workers}}).run("go")
        assert [event.kind for event in seen.events] == [*kinds, "end"]

    virtual.run(story)


# Pipecat: a task that was told to end by a system frame ended before the work in its queues was done.
def test_end_comes_after_all_work_that_was_admitted_before_it():
    async def story(loop):
        seen = Seen()
        nodes = {"src": source(burst(30)), "one": slowly(1), "two": slowly(2), "sink": seen.behaviour("await")}
        run = chain(loop, nodes, {"one": {"workers": 3}, "two": {"workers": 2}})
        await run.run("go")
        assert seen.data == list(range(30))
        assert seen.events[-1].kind == "end"

    virtual.run(story)


# Pipecat: a slow frame blocked the interruption behind it.
def test_cancel_does_not_wait_for_a_slow_event():
    async def story(loop):
        run = chain(loop, {"src": source(burst(5)), "work": slowly(10_000), "sink": Seen().behaviour()})
        ending = asyncio.ensure_future(run.run("go"))
        await asyncio.sleep(1)
        begun = loop.time()
        await run.cancel()
        assert loop.time() == begun
        with pytest.raises(RunCancelled):
            await ending

    virtual.run(story)


# Pipecat: a cancel waited behind an end that was waiting itself.
def test_cancel_overtakes_a_drain_that_does_not_come_to_an_end():
    async def story(loop):
        nodes = {"src": source(burst(50)), "work": slowly(1_000), "sink": Seen().behaviour()}
        run = chain(loop, nodes)
        ending = asyncio.ensure_future(run.run("go"))
        await asyncio.sleep(1)
        drained = asyncio.ensure_future(run.cancel(drain=True))
        await asyncio.sleep(1)
        begun = loop.time()
        await run.cancel()
        assert loop.time() == begun
        assert run.state == "cancelled"
        await drained
        with pytest.raises(RunCancelled):
            await ending

    virtual.run(story)


# Pipecat: the frame that resumes a paused processor waited in the queue that was paused.
def test_resume_is_not_held_up_by_what_is_paused():
    async def story(loop):
        seen = Seen()
        nodes = {"src": source(burst(40)), "work": slowly(0.1), "sink": seen.behaviour("await")}
        run = chain(loop, nodes, {"work": {"queue": 1}, "sink": {"queue": 1}})
        ending = asyncio.ensure_future(run.run("go"))
        for _ in range(5):
            await asyncio.sleep(0.35)
            run.pause()
            await asyncio.sleep(100)
            run.resume()
        await ending
        assert seen.data == list(range(40))

    virtual.run(story)


# Pipecat, LangGraph, LlamaIndex Workflows, Haystack: a reader slower than the producer left hundreds in memory.
@pytest.mark.parametrize("mode", ["inline", "await"])
def test_producer_is_never_further_ahead_of_a_slow_reader_than_was_declared(mode):
    async def story(loop):
        given, ahead, seen = 0, 0, Seen()

        async def give(_event):
            nonlocal given, ahead
            for number in range(500):
                given += 1
                ahead = max(ahead, given - len(seen.events))
                yield Event("token", "x", source="src", sequence=number, lineage="a")
                await asyncio.sleep(0.001)

        async def read(event):
            await asyncio.sleep(0.005)
            seen.events.append(event)

        middle = passing() if mode == "inline" else slowly(0.0001)
        nodes = {"src": Behaviour("stream", give), "middle": middle, "reader": Behaviour("await", read)}
        run = chain(loop, nodes)
        await run.run("go")
        assert len(seen.events) == 500
        assert ahead <= run.guardians["middle"].bound + run.guardians["reader"].bound + 1

    virtual.run(story)


# LangGraph, Haystack: the next node started only when the whole answer was there.
def test_next_node_starts_with_the_first_token():
    async def story(loop):
        texts, at = Texts(*"abcdefghij", pause=1.0), []

        async def first(text: str) -> str:
            at.append(loop.time())
            return text

        text = 'ask = generate()\nsee = map(first)\nout = sink(var="o")\nask -> see -> out'
        run = of_text(loop, text, {"first": first}, texts)
        begun = loop.time()
        await run.run("why?")
        assert at[0] - begun == pytest.approx(1.0)
        assert len(at) == 10

    virtual.run(story)


# NodeTool: a join by arrival paired results with the wrong partners; the workflow completed, but was wrong.
def test_join_pairs_by_what_was_asked_whatever_the_order_of_arrival():
    async def story(loop):
        async def left(number: int) -> int:
            await asyncio.sleep(number % 3)
            return None if number % 4 == 0 else number

        async def right(number: int) -> int:
            await asyncio.sleep(5 - number % 5)
            return None if number % 5 == 0 else number

        text = (
            "each = map(same, inline=true)\nleft = map(left_of) [workers=3, order=none]\n"
            'right = map(right_of) [workers=4]\nboth = join()\nout = sink(var="pairs")\n'
            "each -> left -> both\neach -> right -> both\nboth -> out"
        )
        run = of_text(loop, text, {"same": lambda number: number, "left_of": left, "right_of": right})
        for number in range(40):
            await run.offer("each", number)
        await run.close_inputs()
        pairs = (await run.wait())["pairs"]
        assert all(pair["left"] == pair["right"] for pair in pairs)
        assert sorted(pair["left"] for pair in pairs) == [n for n in range(40) if n % 4 and n % 5]

    virtual.run(story)


# Ray Data: a union that keeps order came to a deadlock under backpressure.
@pytest.mark.parametrize("node", ["join()", 'merge(order="source") [hold=40]'])
def test_what_comes_together_again_behind_small_queues_comes_to_no_deadlock(node):
    async def story(loop):
        async def slow(number: int) -> int:
            await asyncio.sleep(10)
            return number

        text = (
            "each = map(same, inline=true) [queue=1]\nquick = map(same, inline=true) [queue=1]\n"
            f'slow = map(slow_one) [queue=1, workers=3]\nboth = {node}\nout = sink(var="all") [queue=1]\n'
            "each -> quick -> both\neach -> slow -> both\nboth -> out"
        )
        run = of_text(loop, text, {"same": lambda number: number, "slow_one": slow})
        for number in range(30):
            await run.offer("each", number)
        await run.close_inputs()
        assert len((await run.wait())["all"]) == (30 if node == "join()" else 60)

    virtual.run(story)


# Eino, Hermes: a retry in mid-stream repeated the text that was already to be seen.
@pytest.mark.parametrize("restart", [False, True])
def test_retry_in_mid_stream_never_repeats_visible_text(restart):
    async def story(loop):
        calls = 0

        class Cut:
            async def stream(self, _request):
                nonlocal calls
                calls += 1
                for number, text in enumerate(("one ", "two ", "three")):
                    if calls == 1 and number == 2:
                        raise Boom("cut")
                    yield Event("token", text, sequence=number, meta={"phase": "answer"})
                yield Event("finish", Finish())

        text = f'ask = generate() [retry=3, restart={str(restart).lower()}]\nout = sink(var="o")\nask -> out'
        run = of_text(loop, text, {}, Cut())
        if restart:
            assert (await run.run("why?"))["o"] == "one two three"
        else:
            with pytest.raises(RunError):
                await run.run("why?")
            assert run.result()["o"] == "one two "
        assert calls == 1 + restart

    virtual.run(story)


# LiveKit Agents: a retry of a node lost what the first try had already taken from its input.
def test_retry_is_given_the_same_event_again():
    async def story(loop):
        tried = []

        async def flaky(event):
            tried.append(event.payload)
            if tried.count(event.payload) == 1:
                raise Boom("once")
            return event

        seen = Seen()
        nodes = {"src": source(burst(6)), "work": Behaviour("await", flaky), "sink": seen.behaviour()}
        await chain(loop, nodes, {"work": {"retry": 2, "backoff": 0.1}}).run("go")
        assert seen.data == list(range(6))
        assert tried == [n for n in range(6) for _ in range(2)]

    virtual.run(story)


# LlamaIndex Workflows: whoever read the stream of events waited for ever once a step had raised.
def test_consumer_that_raises_ends_the_run_although_a_stream_hangs():
    async def story(loop):
        class Hanging:
            closed = False

            async def stream(self, _request):
                try:
                    yield Event("token", "a", meta={"phase": "answer"})
                    await asyncio.Event().wait()
                finally:
                    self.closed = True

        async def broken(_text: str) -> str:
            raise Boom("consumer")

        hanging = Hanging()
        spec = parse(
            'ask = generate()\nsee = map(broken)\nout = sink(var="o")\nask -> see -> out', "g", SIGNATURES
        ).spec
        run = Run(spec, OPERATORS, Scheduler(loop, loop.clock), functions={"broken": broken}, source=hanging)
        with pytest.raises(RunError, match="'see' failed"):
            await run.run("why?")
        assert hanging.closed

    virtual.run(story)


# LangGraph, LangGraph.js: no cancel reached what ran inside, which went on and burned tokens.
def test_cancel_stops_the_model_and_reads_no_further_token():
    async def story(loop):
        texts = Texts(*"abcdefghij" * 100, pause=1.0)
        run = of_text(loop, 'ask = generate()\nout = sink(var="o")\nask -> out', {}, texts)
        ending = asyncio.ensure_future(run.run("why?"))
        await asyncio.sleep(5.5)
        await run.cancel()
        assert texts.closed
        assert texts.taken == 5
        await asyncio.sleep(1_000)
        assert texts.taken == 5
        assert run.result()["o"] == "abcde"  # LangGraph: what had come before the cancel was lost
        await asyncio.gather(ending, return_exceptions=True)

    virtual.run(story)


# Dify, LangGraph: what parallel branches and workers gave came out of order.
@pytest.mark.parametrize("workers", [2, 5])
def test_parallel_work_leaves_in_the_order_in_which_it_came(workers):
    async def story(loop):
        async def uneven(event):
            await asyncio.sleep((event.payload * 7) % 5)
            return event

        seen = Seen()
        nodes = {"src": source(burst(50)), "work": Behaviour("await", uneven), "sink": seen.behaviour()}
        await chain(loop, nodes, {"work": {"workers": workers}}).run("go")
        assert seen.data == list(range(50))

    virtual.run(story)


# Reactor, RxJava: the buffer that is there by default has no bound.
def test_every_node_has_a_bound_without_asking_for_one():
    async def story(loop):
        given = 0

        async def give(_event):
            nonlocal given
            for number in range(10_000):
                given += 1
                yield Event("value", number, source="src", sequence=number, lineage="a")

        nodes = {"src": Behaviour("stream", give), "a": passing(), "b": slowly(1e4), "sink": Seen().behaviour()}
        run = chain(loop, nodes)
        ending = asyncio.ensure_future(run.run("go"))
        await asyncio.sleep(100)
        assert given <= run.guardians["a"].bound + run.guardians["b"].bound + 1
        await run.cancel()
        await asyncio.gather(ending, return_exceptions=True)

    virtual.run(story)


# Eino: the slowest copy of a stream kept all that the others had long read.
def test_slow_copy_of_a_split_keeps_no_more_than_its_bound():
    class Payload:
        pass

    async def story(loop):
        alive: weakref.WeakSet[Payload] = weakref.WeakSet()
        most = 0

        async def give(_event):
            nonlocal most
            for number in range(200):
                payload = Payload()
                alive.add(payload)
                event = Event("value", payload, source="src", sequence=number, lineage="a")
                del payload
                yield event
                del event
                await asyncio.sleep(0.01)
                gc.collect(0)
                most = max(most, len(alive))

        nodes = {
            "src": Behaviour("stream", give),
            "quick": Behaviour("inline", lambda _event: None),
            "slow": Behaviour("await", slowly(1).call),
        }
        edges = [("src", "quick"), ("src", "slow")]
        run = make_run(loop, nodes, edges, {"slow": {"overflow": "drop_oldest", "queue": 4}})
        await run.run("go")
        assert run.guardians["quick"].processed == 200
        assert most <= run.guardians["slow"].bound + 2

    virtual.run(story)


# DeerFlow: a reader that was gone left the producer waiting for ever.
def test_reader_that_is_stopped_does_not_stall_the_producer():
    async def story(loop):
        seen = Seen()
        nodes = {"src": source(burst(100)), "reader": slowly(1e4), "other": seen.behaviour()}
        run = make_run(loop, nodes, [("src", "reader"), ("src", "other")])
        ending = asyncio.ensure_future(run.run("go"))
        await asyncio.sleep(10)
        assert len(seen.data) < 100
        await run.stop("reader")
        await ending
        assert seen.data == list(range(100))

    virtual.run(story)


# Swarm: a buffer of the newest dropped tokens and nobody could tell.
def test_every_dropped_event_is_counted_by_its_kind():
    async def story(loop):
        events = [Event("token", "x", source="src", sequence=n, lineage="a") for n in range(50)]
        seen = Seen()
        nodes = {"src": source(events), "work": slowly(1), "sink": seen.behaviour()}
        run = chain(loop, nodes, {"work": {"queue": 3, "overflow": "drop_oldest"}})
        result = await run.run("go")
        status = next(node for node in result.status.nodes if node.node == "work")
        assert status.drops == {"token": 50 - len(seen.data)}

    virtual.run(story)


# Ray Data, Reactor: whoever was slow could not be told from whoever waited for it.
def test_the_node_that_holds_the_others_up_is_named():
    async def story(loop):
        nodes = {"src": source(burst(200)), "a": slowly(0.01), "slow": slowly(1), "b": slowly(0.01)}
        nodes["sink"] = Seen().behaviour()
        run = chain(loop, nodes)
        ending = asyncio.ensure_future(run.run("go"))
        await asyncio.sleep(100)
        assert run.bottleneck().node == "slow"
        assert {n.node for n in run.status().nodes if n.state == "blocked"} >= {"src", "a"}
        await ending

    virtual.run(story)


# Bytewax, Flink and others: one key that is slow held up all others.
def test_slow_key_does_not_hold_up_what_may_be_dropped_beside_it():
    async def story(loop):
        async def by_key(event):
            await asyncio.sleep(1e3 if event.payload % 2 else 0.01)
            return event

        async def give(_event):
            for number in range(40):
                yield Event("value", number, source="src", sequence=number, lineage="a")
                await asyncio.sleep(0.1)

        seen = Seen()
        nodes = {"src": Behaviour("stream", give), "work": Behaviour("await", by_key), "sink": seen.behaviour()}
        policy = {"workers": 2, "queue": 4, "state": "partitioned", "key": "side", "overflow": "drop_oldest"}
        run = chain(loop, nodes, {"work": {**policy, "order": "none"}}, functions={"side": lambda number: number % 2})
        ending = asyncio.ensure_future(run.run("go"))
        await asyncio.sleep(10)
        assert run.guardians["src"].done
        assert [number for number in seen.data if not number % 2] == list(range(0, 40, 2))
        await run.cancel()
        await asyncio.gather(ending, return_exceptions=True)

    virtual.run(story)


# NodeTool: a node in a loop waited for a control event that only it could send.
def test_loop_ends_by_itself():
    async def story(loop):
        seen = Seen()
        nodes = {
            "src": source(burst(10)),
            "work": slowly(1),
            "turn": Behaviour("inline", lambda e: ("again" if e.meta.get("hops", 0) < 3 else "out", e), routes=True),
            "sink": seen.behaviour(),
        }
        edges = [("src", "work"), ("work", "turn"), ("turn", "work", "again", Feedback(limit=12))]
        run = make_run(loop, nodes, [*edges, ("turn", "sink", "out")])
        await run.run("go")
        assert sorted(seen.data) == list(range(10))

    virtual.run(story)


# OpenAI Agents: the identifier of a call changed from one try to the next, so that it told no repetition.
def test_key_of_an_idempotent_call_is_the_same_for_every_try_and_for_no_other():
    async def story(loop):
        keys: dict[int, list[str]] = {}

        async def send(event, idempotency_key):
            keys.setdefault(event.payload, []).append(idempotency_key)
            if len(keys[event.payload]) < 3:
                raise Boom("again")
            return event

        work = Behaviour("await", send, extras=frozenset({"idempotency_key"}))
        policy = {"retry": 3, "effect": "idempotent", "backoff": 0.1, "workers": 3}
        await chain(loop, {"src": source(burst(9)), "work": work, "sink": Seen().behaviour()}, {"work": policy}).run(
            "go"
        )
        assert all(len(each) == 3 and len(set(each)) == 1 for each in keys.values())
        assert len({each[0] for each in keys.values()}) == 9

    virtual.run(story)


# LiteLLM: what ran when a client left held up the loop for all others.
def test_cancel_of_one_run_holds_up_no_other():
    async def story(loop):
        async def stubborn(event):
            try:
                await asyncio.sleep(1e4)
            except asyncio.CancelledError:
                await asyncio.sleep(1)
                raise
            return event

        gone = chain(loop, {"src": source(burst(3)), "work": Behaviour("await", stubborn), "sink": Seen().behaviour()})
        seen = Seen()
        other = chain(loop, {"src": source(burst(100)), "work": slowly(0.01), "sink": seen.behaviour()})
        first = asyncio.ensure_future(gone.run("go"))
        await asyncio.sleep(1)
        second = asyncio.ensure_future(other.run("go"))
        cancelled = asyncio.ensure_future(gone.cancel())
        await asyncio.sleep(0.5)
        assert not cancelled.done()
        assert len(seen.data) >= 45
        await asyncio.gather(first, second, cancelled, return_exceptions=True)
        assert len(seen.data) == 100

    virtual.run(story)


# Haystack, NeMo Guardrails: a stream could not be taken back once a later part of it was found wanting.
def test_what_is_retracted_is_gone_from_the_result():
    async def story(loop):
        texts = Texts("All is ", "well. ", "The secret ", "is 42. ", "Bye.")
        text = 'ask = generate()\nsafe = guard(check, hold="sentence")\nout = sink(var="o")\nask -> safe -> out'
        result = await of_text(loop, text, {"check": check_text}, texts).run("why?")
        assert "secret" not in result["o"]
        assert "42" not in result["o"]

    virtual.run(story)


async def check_text(text: str) -> bool:
    return "secret" not in text
