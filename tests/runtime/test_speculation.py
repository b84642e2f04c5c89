"""Speculation: nothing leaves that nobody vouched for, and all that somebody did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
import virtual
from graphs import Boom, Seen, make_run
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import RunError
from aiflow_jupyter.events import Event, Finish, descends
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.signatures import OperatorSignature
from aiflow_jupyter.graph.spec import EdgeSpec, GraphSpec, NodeSpec
from aiflow_jupyter.operators import OPERATORS, SIGNATURES
from aiflow_jupyter.runtime.behaviour import Behaviour, Operator
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler
from aiflow_jupyter.runtime.verdicts import MOST_VERDICTS, Verdicts


def script(*steps) -> Behaviour:
    """Gives events and waits for seconds, in turn."""

    async def give(_event: Event) -> AsyncIterator[Event]:
        for step in steps:
            if isinstance(step, Event):
                yield step
            else:
                await asyncio.sleep(step)

    return Behaviour("stream", give)


def data(payload, lineage="a"):
    return Event("token", payload, source="src", lineage=lineage)


def finish(lineage="a"):
    return Event("finish", Finish(), source="src", lineage=lineage)


def verdict(kind, lineage="a"):
    return Event(kind, None, source="judge", lineage=lineage)


def restart(lineage="a", number=0):
    return Event("restart", None, source="src", sequence=number, lineage=lineage)


MODES = ["inline", "await", "stream", "iterate"]


def working(mode, delay=lambda _payload: 0.01):
    def inline(event):
        return event

    async def call(event):
        await asyncio.sleep(delay(event.payload))
        return event

    async def stream(event):
        yield event

    def iterate(event):
        yield event

    calls = {"inline": inline, "await": call, "stream": stream, "iterate": iterate}
    return Behaviour(mode, calls[mode])


@dataclass
class Told:
    """What was seen of a run with a speculative node.

    Attributes:
        seen: what came out, and when.
        result: of the run; None where it was cancelled.
    """

    seen: Seen
    run: Run
    result: object = None
    times: list[float] = field(default_factory=list)

    @property
    def tokens(self):
        return [event.payload for event in self.seen.events if event.kind == "token"]


def speculative(loop, behaviours, seen, policy=None, *, holds=0, apart=False) -> Run:
    """The graph src -> spec -> sink, and judge, whose verdicts come by a port for them alone where they are `apart`."""
    pieces = {"start": Behaviour("inline", lambda event: event), "sink": seen.behaviour(), **behaviours}
    judges = [name for name in pieces if name.startswith("judge")]
    operators = {
        "node": Operator(OperatorSignature("node"), lambda _args, binding: pieces[binding.node]),
        "spec": Operator(OperatorSignature("spec", holds=lambda _args: holds), lambda _args, _binding: pieces["spec"]),
        "judge": Operator(
            OperatorSignature("judge", ports=lambda _args: ("", "verdict"), verdicts=True),
            lambda _args, binding: pieces[binding.node],
        ),
    }
    policies = {"spec": {"effect": "speculative", **(policy or {})}}
    nodes = {
        name: NodeSpec(operator="judge" if name in judges else name if name == "spec" else "node", policy=policy)
        for name, policy in ((name, Policy(**policies.get(name, {}))) for name in pieces)
    }
    edges = [("start", "src"), ("src", "spec"), ("spec", "sink")]
    edges += [edge for judge in judges for edge in (("start", judge), (judge, "spec"))]
    given = [EdgeSpec(source=s, target=t, port="verdict" if apart and s in judges else None) for s, t in edges]
    return Run(GraphSpec(name="g", nodes=nodes, edges=given), operators, Scheduler(loop, loop.clock))


def tell(
    events, verdicts, *more_verdicts, mode="inline", policy=None, spec=None, holds=0, apart=False, until=None
) -> Told:
    """Run the story to its end, or cancel it `until` seconds after its beginning."""

    async def story(loop):
        behaviours = {"src": script(*events), "judge": script(*verdicts), "spec": spec or working(mode)}
        behaviours |= {f"judge{number}": script(*steps) for number, steps in enumerate(more_verdicts)}
        told = Told(Seen(), None)
        sink = told.seen.behaviour()
        take = sink.call

        def timed(event):
            told.times.append(round(loop.time() - begun, 6))
            take(event)

        sink.call = timed
        told.run = speculative(loop, {**behaviours, "sink": sink}, told.seen, policy, holds=holds, apart=apart)
        begun = loop.time()
        guardian = told.run.guardians["spec"]
        if until is not None:
            await told.run.start("go")
            await asyncio.sleep(until)
            await told.run.cancel()
            left = len(told.seen.events)
            await asyncio.sleep(100)
            assert len(told.seen.events) == left
        else:
            try:
                told.result = await told.run.run("go")
            finally:
                assert guardian.most <= guardian.bound
            assert guardian.holds() == 0
        return told

    return virtual.run(story)


def told(events, verdicts, **more):
    return tell(events, verdicts, **more).seen


@pytest.mark.parametrize("mode", MODES)
def test_what_is_committed_leaves_in_order_and_not_before(mode):
    seen = told([data("a"), data("b"), finish()], [5, verdict("commit")], mode=mode)
    assert seen.data[:2] == ["a", "b"]
    kinds = [event.kind for event in seen.events]
    assert kinds.index("token") < kinds.index("commit")


@pytest.mark.parametrize("verdicts", [[5, verdict("retract")], [verdict("retract")], []])
def test_what_is_retracted_or_never_judged_never_leaves(verdicts):
    seen = told([1, data("a"), data("b"), finish()], verdicts)
    assert "token" not in [event.kind for event in seen.events]
    assert seen.count("finish", "a") == 0


def test_verdict_that_comes_before_what_it_judges_holds_for_it():
    seen = told([5, data("a"), data("x", "b"), finish()], [verdict("commit"), verdict("retract", "b")])
    assert [e.payload for e in seen.events if e.kind == "token"] == ["a"]


def test_verdict_holds_for_the_answers_below_its_lineage_only():
    events = [data("below", "a/0.ask"), data("beside", "ab"), data("own")]
    seen = told(events, [5, verdict("commit")])
    assert sorted(e.payload for e in seen.events if e.kind == "token") == ["below", "own"]


@pytest.mark.parametrize("first", ["a", "a/0.ask"])
def test_what_is_retracted_stays_so_whatever_is_committed_above_or_below(first):
    second = "a/0.ask" if first == "a" else "a"
    events = [data("early", "a/0.ask"), 20, data("late", "a/0.ask")]
    for kinds in (("retract", "commit"), ("commit", "retract")):
        steps = [5, verdict(kinds[0], first), 1, verdict(kinds[1], second)]
        early = ["early"] if kinds[0] == "commit" else []
        assert tell(events, steps).tokens == early


def test_no_verdict_in_time_is_a_retraction():
    seen = told(
        [data("late"), 10, data("x", "b")], [6, verdict("commit"), verdict("commit", "b")], policy={"timeout": 5}
    )
    assert [e.payload for e in seen.events if e.kind == "token"] == ["x"]


@pytest.mark.parametrize(
    ("verdicts", "policy", "complete", "says"),
    [
        ([], {}, False, "nobody has judged 2 of the events"),
        ([6, verdict("commit")], {"timeout": 5}, False, "nobody has judged 2 of the events"),
        ([5, verdict("retract")], {}, True, ""),
    ],
    ids=["never", "late", "retracted"],
)
def test_all_that_is_discarded_is_counted_and_what_nobody_judged_is_told(verdicts, policy, complete, says):
    done = tell([data("a"), data("b"), finish()], verdicts, policy=policy)
    assert done.tokens == []
    assert dict(done.run.guardians["spec"].drops) == {"token": 2}
    assert done.result.complete is complete
    assert [says in each for each in done.result.status.warnings] == ([True] if says else [])


def test_more_than_may_be_held_fails_by_name():
    with pytest.raises(Exception, match="wait for a verdict") as raised:
        told([data(str(n)) for n in range(5)], [5, verdict("commit")], policy={"hold": 4})
    assert raised.value.code == "AF613"


@pytest.mark.parametrize("apart", [False, True])
def test_verdict_acts_while_the_node_is_in_the_call_that_it_is_about(apart):
    spec = script(data("a"), 2, data("b"), 3, data("c"), 5)
    done = tell([data("go", "x")], [1, verdict("commit")], spec=spec, apart=apart)
    assert list(zip(done.tokens, done.times, strict=True)) == [("a", 1), ("b", 2), ("c", 5)]
    done = tell([data("go", "x")], [3, verdict("retract")], spec=spec, apart=apart)
    assert done.tokens == []


def test_what_is_vouched_for_takes_no_place_among_what_is_held():
    spec = script(1, *(data(number) for number in range(300)))
    done = tell([data("go", "x")], [verdict("commit")], spec=spec)
    assert done.tokens == list(range(300))


def test_time_for_a_verdict_is_over_while_the_call_goes_on():
    spec = script(data("a"), 20, data("b"))
    done = tell([data("go", "x")], [10, verdict("commit")], spec=spec, policy={"timeout": 5})
    assert done.tokens == []
    assert not done.result.complete


def test_passing_on_of_a_verdict_keeps_its_place():
    answer = "0/0.src"
    events = [data("a", answer), data("b", answer), finish(answer)]
    done = tell(events, [0.001, verdict("commit", answer)], mode="await")
    kinds = [event.kind for event in done.seen.events if event.lineage == answer]
    assert kinds == ["token", "token", "finish", "commit"]


def test_results_of_several_workers_are_let_go_in_their_order():
    spec = working("await", delay=lambda number: 10 - number)
    done = tell([data(number) for number in range(8)], [50, verdict("commit")], spec=spec, policy={"workers": 8})
    assert done.tokens == list(range(8))


def test_slow_receiver_takes_what_is_let_go_one_by_one_and_the_rest_behind_it():
    async def story(loop):
        seen = Seen()
        events = [*(data(n) for n in range(20)), 6, *(data(n) for n in range(20, 40)), finish()]
        pieces = {"src": script(*events), "judge": script(5, verdict("commit")), "spec": working("inline")}
        run = speculative(loop, {**pieces, "sink": seen.behaviour("await")}, seen)
        await run.run("go")
        assert [event.payload for event in seen.events if event.kind == "token"] == list(range(40))
        kinds = [event.kind for event in seen.events if event.lineage == "a"]
        assert kinds.index("finish") == kinds.index("token") + 40 + (kinds.index("commit") < kinds.index("finish"))
        assert run.guardians["spec"].holds() == 0
        assert run.guardians["spec"].emitted == 40

    virtual.run(story)


@pytest.mark.parametrize("ends", ["cancelled", "failed"])
def test_stream_that_waits_for_its_receiver_is_closed_when_the_run_is_over(ends):
    async def story(loop):
        said = []

        async def stream(event):
            try:
                for _ in range(100):
                    yield event
            finally:
                await asyncio.sleep(1)
                said.append("closed")

        async def take(_event):
            await asyncio.sleep(5)
            if ends == "failed":
                raise Boom
            await asyncio.sleep(100)

        pieces = {"src": script(1, data("a")), "judge": script(verdict("commit")), "spec": Behaviour("stream", stream)}
        run = speculative(loop, {**pieces, "sink": Behaviour("await", take)}, Seen())
        await run.start("go")
        await asyncio.sleep(2)
        if ends == "cancelled":
            await run.cancel()
        else:
            with pytest.raises(RunError, match="Boom"):
                await run.wait()
        said.append("over")
        assert said == ["closed", "over"]

    virtual.run(story)


def holder(kept) -> Behaviour:
    """Keeps all of a lineage until its finish, a flush or the end."""

    def take(event):
        kept.append(event)

    def let_go(event, lineages):
        for each in [each for each in kept if lineages(each.lineage)]:
            kept.remove(each)
            if event.kind in ("finish", "flush", "end"):
                yield each

    def control(event):
        if event.kind in ("finish", "retract", "restart", "error"):
            below = event.kind != "finish"
            yield from let_go(event, lambda each: descends(each, event.lineage) if below else each == event.lineage)
        elif event.kind in ("flush", "end"):
            yield from let_go(event, lambda _each: True)
        if event.kind != "end":
            yield event

    return Behaviour("inline", take, control=control, holds=lambda: len(kept))


def test_what_the_operator_holds_counts_beside_what_waits_for_a_verdict():
    async def story(loop):
        kept, answer = [], "0/0.src"
        events = [data("a", answer), data("b", answer), finish(answer), data("c"), 10]
        run = speculative(loop, {"src": script(*events), "judge": script(20), "spec": holder(kept)}, Seen(), holds=8)
        await run.start("go")
        await asyncio.sleep(5)
        assert (len(kept), run.guardians["spec"].owned()) == (1, 3)
        await run.wait()

    virtual.run(story)


def test_operator_that_keeps_more_than_it_declares_is_found_out():
    async def story(loop):
        pieces = {"src": script(*(data(number) for number in range(400))), "judge": script(), "spec": holder([])}
        with pytest.raises(RunError, match="it declared at most") as raised:
            await speculative(loop, pieces, Seen()).run("go")
        assert raised.value.code == "AF691"

    virtual.run(story)


@pytest.mark.parametrize("when", [0.5, 20])
def test_what_is_gathered_goes_through_its_function_and_is_held_once(when):
    kept = []

    async def call(event):
        if isinstance(event.payload, list):
            await asyncio.sleep(1)
            return event.derive("+".join(event.payload))
        kept.append(event.payload)
        return None

    def control(event):
        if event.kind == "finish":
            yield data(kept, event.lineage)
        if event.kind != "end":
            yield event

    answer = "0/0.src"
    events = [data("a", answer), data("b", answer), finish(answer)]
    spec = Behaviour("await", call, control=control, holds=lambda: 0, recalls=True)
    assert tell(events, [when, verdict("commit", answer)], spec=spec).tokens == ["a+b"]


@pytest.mark.parametrize("what", [restart("a/0.ask"), Event("error", source="src", lineage="a/0.ask")])
def test_what_comes_of_a_lineage_that_is_void_is_discarded_with_it(what):
    below = "a/0.ask/1.find"
    events = [data("old", below), data("other", "a/0.other"), 1, what, 1, data("new", below)]
    done = tell(events, [5, verdict("commit", "a/0.ask"), verdict("commit", "a/0.other")])
    assert sorted(done.tokens) == ["new", "other"]


def test_verdict_on_an_answer_is_none_on_what_it_is_begun_anew_as():
    events = [data("old"), 2, restart(), data("new"), finish()]
    assert tell(events, [1, verdict("commit")]).tokens == ["old"]
    assert tell(events, [1, verdict("retract")]).tokens == []
    assert tell(events, [1, verdict("retract"), 2, verdict("commit")]).tokens == ["new"]
    assert tell(events, [1, verdict("commit", "b")]).run.guardians["spec"].drops["token"] == 1


@pytest.mark.parametrize("ahead", [True, False])
def test_answer_that_begins_anew_is_told_by_two_ways_and_is_whole(ahead):
    """The word of the restart reaches the node with its data, and by the edge of the verdicts before or after that."""
    events = [data("old"), 2, data("old"), 2, restart(), data("new"), 2, data("new"), finish()]
    early = [1, restart(), 1, verdict("commit")]
    late = [1, verdict("retract"), 4, restart(), 1, verdict("commit")]
    done = tell(events, early if ahead else late, apart=True)
    assert done.tokens == ["new", "new"]
    kinds = [event.kind for event in done.seen.events]
    assert kinds.index("restart") < kinds.index("token")
    assert done.seen.count("restart") == 1
    assert done.result.complete


def test_failure_of_the_lineage_discards_what_is_held():
    async def fail(_event):
        yield data("a")
        raise Boom

    async def story(loop):
        seen = Seen()
        behaviours = {
            "start": Behaviour("inline", lambda event: event),
            "src": Behaviour("stream", fail),
            "judge": script(5, verdict("commit")),
            "spec": Behaviour("inline", lambda event: event),
            "sink": seen.behaviour(),
            "failures": Seen().behaviour(),
        }
        edges = [
            ("start", "src"),
            ("start", "judge"),
            ("src", "spec"),
            ("judge", "spec"),
            ("spec", "sink"),
            ("src", "failures", "error"),
        ]
        await make_run(loop, behaviours, edges, {"spec": {"effect": "speculative"}}).run("go")
        assert "token" not in [event.kind for event in seen.events]
        assert seen.count("error") == 1

    virtual.run(story)


def test_node_that_is_stopped_lets_nothing_go_that_nobody_judged():
    async def story(loop):
        seen = Seen()
        pieces = {"src": script(data("a"), data("x", "b"), 10), "judge": script(1, verdict("commit", "b"), 20)}
        run = speculative(loop, {**pieces, "spec": working("inline")}, seen, {"cancel": "downstream"})
        await run.start("go")
        await asyncio.sleep(5)
        await run.stop("spec")
        await run.wait()
        assert [event.payload for event in seen.events if event.kind == "token"] == ["x"]
        assert seen.count("end") == 1
        assert run.guardians["spec"].drops["token"] == 1

    virtual.run(story)


@pytest.mark.parametrize("stopped", ["sink", "spec"])
@pytest.mark.parametrize("discards", [True, False])
def test_what_is_on_its_way_out_when_a_node_is_stopped_holds_nobody_up(stopped, discards):
    async def story(loop):
        seen = Seen()

        async def take(event):
            await asyncio.sleep(1)
            seen.events.append(event)

        pieces = {"src": script(*(data(n) for n in range(20)), 30), "judge": script(1, verdict("commit"), 40)}
        sink = Behaviour("await", take, control=seen.behaviour().control)
        policy = {"cancel": "downstream" if discards else "none"}
        run = speculative(loop, {**pieces, "spec": working("inline"), "sink": sink}, seen, policy)
        await run.start("go")
        await asyncio.sleep(4.5)
        assert run.guardians["spec"].holds() > 0
        await run.stop(stopped)
        await run.wait()
        came = [event.payload for event in seen.events if event.kind == "token"]
        whole = stopped == "spec" and not discards
        assert came == (list(range(20)) if whole else [0, 1, 2, 3] if stopped == "spec" else [0, 1, 2])
        assert run.guardians["spec"].holds() == 0
        assert seen.count("end") == (stopped == "spec")

    virtual.run(story)


def test_long_stream_forgets_its_oldest_verdicts_and_never_takes_one_for_another():
    verdicts = Verdicts()
    verdicts.note("0", good=True)
    verdicts.note("0/0.ask", good=False)
    assert (verdicts.of("0/0.ask"), verdicts.of("0/1.ask")) == (False, True)
    for number in range(1, MOST_VERDICTS):
        verdicts.note(f"0/{number}.ask", good=True)
    assert verdicts.of("0/0.ask") is False
    verdicts.note("0", good=True)
    verdicts.note("1", good=True)
    assert verdicts.of("0/0.ask") is None  # its retraction is forgotten: what is said of all of 0 is not sure for it
    assert (verdicts.of("0"), verdicts.of("1"), verdicts.of(f"0/{MOST_VERDICTS - 1}.ask/0.b")) == (True, True, True)


def test_long_stream_keeps_nothing_of_what_is_through():
    count = 3 * MOST_VERDICTS
    steps, verdicts = [], []
    for number in range(count):
        lineage = f"0/{number}.ask"
        steps += [data(number, lineage), finish(lineage), 1]
        verdicts += [0.5, verdict("commit" if number % 3 else "retract", lineage), 0.5]
    done = tell(steps, verdicts, mode="iterate", policy={"timeout": 2})
    assert done.tokens == [number for number in range(count) if number % 3]
    gate = done.run.guardians["spec"].gate
    assert not gate._held
    assert not gate._timers
    assert len(gate._verdicts._said) == MOST_VERDICTS
    assert done.result.complete


# -- with the standard operators

AHEAD = """
ask = generate() [retry=2, restart=true, backoff=1]
safe = guard(check, inline=true)
s = segment()
act = map(work) [effect=speculative, workers={workers}]
all = reduce("join")
out = sink(var="out")
ask -> safe
ask -> s -> act -> all -> out
safe.verdict -> act
"""


class Cut:
    """Breaks off the first time that it is asked."""

    def __init__(self, first: list[str], then: list[str]) -> None:
        self.answers = [first, then]

    async def stream(self, _request):
        texts = self.answers.pop(0)
        for number, text in enumerate(texts):
            await asyncio.sleep(0.5)
            yield Event("token", text, source="m", sequence=number, meta={"phase": "answer"})
        if self.answers:
            raise ConnectionError
        yield Event("finish", Finish())


@pytest.mark.parametrize("first", [["Old one. ", "Two. "], ["A secret. ", "Two. ", "Three. "]])
@pytest.mark.parametrize("then", [["New one. ", "Two. ", "Three."], ["New one. ", "A secret. ", "Three."]])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("slow", [0.01, 0.7, 3])
def test_work_ahead_on_an_answer_that_begins_anew_is_of_all_of_it_in_order_or_of_nothing(first, then, workers, slow):
    async def work(text: str) -> str:
        await asyncio.sleep(slow)
        return text.upper()

    async def story(loop):
        functions = {"check": lambda text: "secret" not in text, "work": work}
        spec = parse(AHEAD.format(workers=workers), "g", SIGNATURES).spec
        scheduler = Scheduler(loop, loop.clock)
        run = Run(spec, OPERATORS, scheduler, functions=functions, source=Cut(first, then))
        result = await run.run("go")
        whole = "".join(then)
        assert list(result.variables["out"]) == ([] if "secret" in whole else [whole.upper()])

    virtual.run(story)


# -- all of it, against a model

TREE = ["0/0.src", "0/0.src/0.src", "0/0.src/0.src/1.src", "0/0.src/1.src", "0/0.src+1", "1/0.src"]


class Model:
    """What leaves a speculative node, by one step at a time."""

    def __init__(self, *, holds: bool) -> None:
        self.holds = holds
        self.kept: list[tuple[int, str]] = []
        self.held: list[tuple[int, str]] = []
        self.said: dict[str, bool] = {}
        self.out: list[tuple[int, str]] = []
        self.dropped = 0

    def verdict(self, lineage: str) -> bool | None:
        above = [good for of, good in self.said.items() if descends(lineage, of)]
        return all(above) if above else None

    def gives(self, number: int, lineage: str) -> None:
        good = self.verdict(lineage)
        if good is None:
            self.held.append((number, lineage))
        elif good:
            self.out.append((number, lineage))
        else:
            self.dropped += 1

    def step(self, kind: str, lineage: str, number: int) -> None:
        under = [each for each in self.held if descends(each[1], lineage)]
        if kind == "token" and not self.holds:
            self.gives(number, lineage)
        elif kind == "token":
            self.kept.append((number, lineage))
        elif kind == "finish":
            for each in [each for each in self.kept if each[1] == lineage]:
                self.kept.remove(each)
                self.gives(*each)
        elif kind in ("commit", "retract"):
            if self.said.get(lineage) is not False:
                self.said[lineage] = kind == "commit"
            judged = [each for each in under if self.verdict(each[1]) is not None]
            self.out += [each for each in judged if self.verdict(each[1])]
            self.dropped += sum(not self.verdict(each[1]) for each in judged)
            self.held = [each for each in self.held if each not in judged]
        elif kind in ("restart", "error"):
            self.held = [each for each in self.held if each not in under]
            self.dropped += len(under) if kind == "error" else 0
            if kind == "restart":
                self.said = {of: good for of, good in self.said.items() if not descends(of, lineage)}
        if kind in ("retract", "restart", "error"):
            self.kept = [each for each in self.kept if not descends(each[1], lineage)]

    def end(self) -> bool:
        """The end; whether all that came was judged."""
        for each in self.kept:
            self.gives(*each)
        self.dropped += len(self.held)
        return not self.held


KINDS = ["token"] * 8 + ["finish", "restart", "error"]
STORY = st.lists(
    st.one_of(
        st.tuples(st.just("src"), st.sampled_from(KINDS), st.sampled_from(TREE)),
        st.tuples(st.just("judge"), st.sampled_from(["commit", "retract"]), st.sampled_from(TREE)),
    ),
    max_size=24,
)


@settings(max_examples=300, deadline=None)
@given(STORY, st.sampled_from([*MODES, "holds"]), st.one_of(st.none(), st.integers(0, 24)), st.integers(1, 2))
@example([("src", "token", TREE[2]), ("src", "restart", TREE[1]), ("judge", "commit", TREE[1])], "inline", None, 1)
@example([("src", kind, TREE[4]) for kind in ("error", "token", "finish", "error")], "holds", None, 1)
@example([("judge", "commit", TREE[1]), ("judge", "retract", TREE[0]), ("src", "token", TREE[1])], "await", None, 1)
def test_exactly_what_was_vouched_for_leaves_whole_and_in_order(story, mode, until, workers):
    """One thing happens each second; a run may be cancelled in between."""
    until = None if until is not None and until >= len(story) - 1 else until
    steps = {"src": [], "judge": []}
    last = dict.fromkeys(steps, 0)
    model = Model(holds=mode == "holds")
    for second, (who, kind, lineage) in enumerate(story):
        if kind in ("finish", "error", "restart"):
            made = Event(kind, Finish() if kind == "finish" else None, source=who, sequence=second, lineage=lineage)
        else:
            made = data(second, lineage) if kind == "token" else verdict(kind, lineage)
        steps[who] += [second - last[who], made]
        last[who] = second
        if until is None or second <= until:
            model.step(kind, lineage, second)
    spec = holder([]) if mode == "holds" else working(mode)
    policy = {"workers": workers if mode in ("await", "stream") else 1}
    stop = None if until is None else until + 0.5
    done = tell(steps["src"], steps["judge"], spec=spec, policy=policy, holds=64, until=stop)
    if until is None:
        whole = model.end()
        assert done.result.complete is whole
        assert done.run.guardians["spec"].drops["token"] == model.dropped
        assert done.run.guardians["spec"].emitted == len(model.out)
    for each in TREE:
        came = [event.payload for event in done.seen.events if event.kind == "token" and event.lineage == each]
        assert came == [number for number, lineage in model.out if lineage == each]
    assert sorted(done.tokens) == sorted(number for number, _ in model.out)


TRY = st.lists(st.floats(0, 3), max_size=3)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(TRY, min_size=1, max_size=4),
    st.lists(
        st.tuples(st.lists(st.tuples(st.floats(0, 9), st.booleans()), min_size=4, max_size=4)), min_size=1, max_size=2
    ),
    st.sampled_from(["commit", "retract", "none"]),
    st.sampled_from(MODES),
    st.integers(1, 3),
    st.sampled_from([0, 0.01, 2]),
)
def test_answer_that_begins_anew_again_and_again_leaves_only_as_what_it_was_at_last(
    tries, judges, last, mode, workers, slow
):
    """Each of the guards hears of the restarts in a time of its own, and may have refused what is void by then."""
    answer = "0/0.src"
    events: list[Event | float] = []
    for number, pauses in enumerate(tries):
        events += [step for pause in pauses for step in (pause, data(number, answer))]
        events += [restart(answer, number)] if number < len(tries) - 1 else [finish(answer)]
    told_by = []
    for (steps,) in judges:
        said: list[Event | float] = []
        for number in range(len(tries) - 1):
            pause, refused = steps[number]
            said += [pause, *([verdict("retract", answer)] if refused else []), pause, restart(answer, number)]
        said += [steps[3][0], *([] if last == "none" else [verdict(last, answer)])]
        told_by.append([*said, Event("finish", Finish(), source="judge", lineage=answer)])
    policy = {"workers": workers if mode in ("await", "stream") else 1}
    done = tell(events, *told_by, spec=working(mode, delay=lambda _number: slow), policy=policy, apart=True)
    kept = [event for event in done.seen.events if event.kind in ("token", "restart")]
    after = max((place for place, event in enumerate(kept) if event.kind == "restart"), default=-1) + 1
    assert [event.payload for event in kept[after:]] == ([len(tries) - 1] * len(tries[-1]) if last == "commit" else [])
    assert [event.kind for event in kept[:after]] == ["restart"] * (len(tries) - 1)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 2), st.floats(0, 3)), max_size=12),
    st.dictionaries(st.sampled_from("abc"), st.tuples(st.floats(0, 20), st.booleans())),
    st.sampled_from(MODES),
    st.integers(1, 4),
)
def test_calls_that_overtake_each_other_leave_in_order_whenever_the_verdict_comes(tokens, verdicts, mode, workers):
    events: list[Event | float] = []
    for number, (lineage, pause, _) in enumerate(tokens):
        events += [pause, data(number, lineage)]
    steps: list[Event | float] = []
    now = 0.0
    for lineage, (at, good) in sorted(verdicts.items(), key=lambda item: item[1][0]):
        steps += [at - now, verdict("commit" if good else "retract", lineage)]
        now = at
    spec = working(mode, delay=lambda number: tokens[number][2])
    seen = told(events, steps, spec=spec, policy={"workers": workers} if mode in ("await", "stream") else {})
    for lineage in "abc":
        came = [e.payload for e in seen.events if e.kind == "token" and e.lineage == lineage]
        good = lineage in verdicts and verdicts[lineage][1]
        assert came == ([n for n, (each, *_) in enumerate(tokens) if each == lineage] if good else [])
