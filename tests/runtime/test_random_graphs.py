"""What holds for every graph, whatever its shape, its policies, its timing and what is done to it while it runs.

Each property has a reference that knows nothing of the runtime; `random_graphs.py` makes the graphs. In a soak all are
tried on more of them: `AIFLOW_SOAK=50 pytest tests/runtime/test_random_graphs.py`.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import accumulate

import pytest
import virtual
from graphs import Boom, Lab, Seen, assert_sane_figures, burst, make_run, source
from hypothesis import example, given
from hypothesis import strategies as st
from random_graphs import (
    ANSWERS,
    COUNT,
    MODES,
    Node,
    Plan,
    Trial,
    assert_same,
    by_port,
    deeds,
    examples,
    key_of,
    lineage_of,
    number_of,
    plans,
    policies,
    told,
    units,
)

from aiflow_jupyter.errors import AiflowError, RunCancelled, RunError
from aiflow_jupyter.events import DATA, Event, Finish
from aiflow_jupyter.graph.bounds import bounds
from aiflow_jupyter.graph.checks.checking import check
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.graph.signatures import OperatorSignature
from aiflow_jupyter.graph.spec import Feedback
from aiflow_jupyter.operators import OPERATORS
from aiflow_jupyter.operators import SIGNATURES as SIGNATURES_OF_ALL
from aiflow_jupyter.runtime.behaviour import Behaviour
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler

SIGNATURES = {"node": OperatorSignature("node")}
ANY_RULE = st.sampled_from(["block", "drop_newest", "drop_oldest", "error"]) | st.dictionaries(
    st.sampled_from(["token", "chunk", "value", "else"]),
    st.sampled_from(["block", "drop_newest", "drop_oldest", "error"]),
    min_size=1,
)


def tried(plan: Plan, check, **how):
    """Run a plan on the virtual clock, then check what came of it."""

    async def story(loop):
        trial = Trial(plan, loop, **how)
        await trial.story()
        check(trial)

    virtual.run(story, tick_ns=plan.tick_ns)


def assert_models(trial: Trial) -> None:
    """Every node with one edge into it gave what its model says, in order."""
    for node in trial.plan.nodes:
        taps = trial.into(node.name)
        guardian = trial.run.guardians[node.name]
        came = Counter(event.payload for tap in taps for event in tap.log if event.kind in DATA)
        uncalled = came - Counter(trial.calls[node.name])
        refusals = [f for f in trial.failures[node.name].events if f.kind in DATA]
        refusals = [f for f in refusals if getattr(f.payload.error, "code", "") in ("AF602", "AF608")]
        refused = Counter({p: n for p, n in uncalled.items() if any(_about(f, p) for f in refusals)})
        gone = uncalled - refused
        assert sum(gone.values()) == guardian.dropped
        if len(taps) > 1:
            continue
        expected = trial.expected(node, gone, refused)
        for tap in trial.out_of(node.name):
            port = tap.edge[1]
            loose = node.loose or any(each.name == taps[0].edge[0] and each.loose for each in trial.plan.nodes)
            assert_same(told(tap.log), by_port(expected, port), loose=loose)


def assert_last_words(trial: Trial) -> None:
    """Every edge brought one last word on each answer, and nothing of one is remembered after it."""
    for tap in trial.taps.values():
        assert sorted(tap.words) == [lineage_of(number) for number in range(0, COUNT, COUNT // ANSWERS)], tap.edge
    for guardian in trial.run.guardians.values():
        assert not guardian.endings.broken, guardian.node
        assert not guardian.endings.left(), guardian.node


def _about(failure, payload: str) -> bool:
    return failure.sequence == int(payload.partition(".")[0].partition(";")[0])


@examples(120)
@given(plans(policies(ANY_RULE), happens=deeds("pause", "resume", "stop", "cancel"), mixed=True), st.booleans())
def test_no_node_ever_owns_more_than_its_bound(plan: Plan, slow: bool) -> None:
    def check(trial: Trial) -> None:
        declared = {each.node: each.events for each in bounds(trial.run.spec, SIGNATURES).nodes}
        for name, guardian in trial.run.guardians.items():
            assert guardian.bound == declared[name]
            assert trial.most[name] <= max(guardian.most, 1), name  # a control event in hand looks like one
            assert guardian.most <= guardian.bound, name
        assert_sane_figures(trial.run)

    tried(plan, check, slow_sinks=slow)


APART = {"queue": 1, "workers": 3, "order": "none", "state": "partitioned", "key": "key_of"}
SIZED = {"queue": 1, "queue_bytes": 400}
OVERTAKEN = [
    Node("n1", "await", {0: ""}, APART, pace=9),
    Node("n2", "iterate", {0: ""}, SIZED),
    Node("n3", "inline", {0: ""}, SIZED),
]


@examples(150)
@given(plans(policies(), happens=deeds("pause", "resume")), st.booleans())
@example(plan=Plan(OVERTAKEN, happens=[(1, "pause", 0), (11, "pause", 0)]), slow=False)
def test_nothing_is_lost_repeated_or_out_of_order_where_nothing_may_be_dropped(plan: Plan, slow: bool) -> None:
    def check(trial: Trial) -> None:
        assert trial.run.state == "done", trial.error
        assert_models(trial)
        assert_last_words(trial)
        assert all(guardian.dropped == 0 for guardian in trial.run.guardians.values())
        for name, sink in trial.sinks.items():
            assert sum(len(tap.log) for tap in trial.into(f"sink_{name}")) >= len(sink.events)
        assert_sane_figures(trial.run)

    tried(plan, check, slow_sinks=slow)


@examples(120)
@given(plans(policies(ANY_RULE), happens=deeds("pause", "resume"), mixed=True), st.booleans())
def test_what_overflow_drops_is_counted_and_the_rest_is_as_if_it_had_never_come(plan: Plan, slow: bool) -> None:
    def check(trial: Trial) -> None:
        assert trial.run.state == "done", trial.error
        assert_models(trial)
        assert_last_words(trial)
        assert_sane_figures(trial.run)

    tried(plan, check, slow_sinks=slow)


@examples(80)
@given(plans(policies(st.sampled_from(["conflate", "block"]), tries=False), fails=False, mixed=True), st.booleans())
def test_conflated_text_holds_every_piece_once_and_in_order(plan: Plan, slow: bool) -> None:
    def check(trial: Trial) -> None:
        assert trial.run.state == "done", trial.error
        for node in plan.nodes:
            came = [
                unit for tap in trial.into(node.name) for e in tap.log if e.kind in DATA for unit in units(e.payload)
            ]
            called = [unit for payload in trial.calls[node.name] for unit in units(payload)]
            assert Counter(called) == Counter(came)
            kinds = {
                payload: e.kind
                for tap in trial.into(node.name)
                for e in tap.log
                if e.kind in DATA
                for payload in units(e.payload)
            }
            guardian = trial.run.guardians[node.name]
            entered = sum(event.kind in DATA for tap in trial.into(node.name) for event in tap.log)
            assert guardian.processed + guardian.conflated == entered
            for payload in trial.calls[node.name]:
                assert len({(kinds[unit], lineage_of(number_of(unit))) for unit in units(payload)}) == 1
            if len(trial.into(node.name)) == 1 and node.policy.get("state") != "partitioned":
                assert called == came
        assert_sane_figures(trial.run)

    tried(plan, check, slow_sinks=slow)


@examples(100)
@given(plans(policies(ANY_RULE), mixed=True), st.integers(0, 80), st.booleans(), st.booleans())
def test_after_cancel_nothing_is_called_given_or_open(plan: Plan, after_ms: int, drain: bool, slow: bool) -> None:
    async def story(loop):
        trial = Trial(plan, loop, slow_sinks=slow)
        running = asyncio.ensure_future(trial.run.run("0;"))
        await asyncio.sleep(after_ms * 0.001)
        await trial.run.cancel(drain=drain)
        assert trial.open == 0
        assert not +trial.busy
        before = [len(tap.log) for tap in trial.taps.values()], trial.started
        await asyncio.sleep(1e6)
        assert before == ([len(tap.log) for tap in trial.taps.values()], trial.started)
        (error,) = await asyncio.gather(running, return_exceptions=True)
        assert isinstance(error, RunCancelled) == (trial.run.state == "cancelled")
        if drain:
            assert trial.run.state == "done"
            assert_models(trial)
            assert_last_words(trial)
        assert trial.run.still_running == []
        assert_sane_figures(trial.run)

    virtual.run(story, tick_ns=plan.tick_ns)


@examples(150)
@given(plans(policies(), happens=deeds("stop", "stop", "pause", "resume")), st.booleans())
def test_stop_of_a_node_leaves_the_others_alone_and_no_part_finishes_as_the_whole(plan: Plan, slow: bool) -> None:
    async def story(loop):
        trial = Trial(plan, loop, slow_sinks=slow)
        await trial.story()
        assert trial.run.state == "done", trial.error
        whole = plan.arriving()
        closed = {name for name, guardian in trial.run.guardians.items() if guardian.closed}
        touched = plan.below(closed)
        for node in plan.ends:
            sink = trial.run.guardians[f"sink_{node.name}"]
            seen = trial.sinks[node.name].events
            expected = Counter(out for _, came in whole[node.name] for out in node.gives(came)[0] if out != "error")
            given_out = Counter(event.payload for event in seen if event.kind in DATA)
            if node.name not in touched and not sink.closed:
                assert given_out == expected
            assert given_out <= expected
            for lineage in {event.lineage for event in seen if event.kind == "finish" and "lost" not in event.meta}:
                part = Counter({p: n for p, n in given_out.items() if lineage_of(number_of(p)) == lineage})
                assert part == Counter({p: n for p, n in expected.items() if lineage_of(number_of(p)) == lineage})
            if not sink.closed:
                assert seen[-1].kind == "end"
                assert sum(event.kind == "end" for event in seen) == 1
                if node.name in closed:
                    assert not seen[-1].complete
        assert trial.run.result().complete == (not closed and not any(g.errors for g in trial.run.guardians.values()))
        assert_sane_figures(trial.run)

    virtual.run(story, tick_ns=plan.tick_ns)


RULES = ("block", "drop_newest", "drop_oldest", "error")


def kept(
    arrivals: list[tuple[int, str]], queue: int, service: int, rules: dict[str, str]
) -> tuple[list[int], list[int]]:
    """What a node of one worker serves of what comes, and what it refuses; in milliseconds, and as slowly as can be.

    Args:
        arrivals: when each event would come, if nothing held it up, and its kind.
        queue: the places.
        service: of every event.
        rules: of every kind.
    """
    waiting: deque[int] = deque()
    served: list[int] = []
    refused: list[int] = []
    free_at = held_up = 0
    for number, (due, kind) in enumerate(arrivals):
        now = due + held_up
        while waiting and free_at <= now:
            served.append(waiting.popleft())
            free_at += service
        if not waiting and free_at <= now:
            served.append(number)
            free_at = now + service
        elif len(waiting) < queue:
            waiting.append(number)
        elif (rule := rules[kind]) == "error":
            refused.append(number)
        elif rule == "drop_oldest" and (old := [n for n in waiting if rules[arrivals[n][1]].startswith("drop")]):
            waiting.remove(old[0])
            waiting.append(number)
        elif rule != "drop_newest":  # it waits for a place, and what comes after it with it
            held_up += free_at - now
            served.append(waiting.popleft())
            waiting.append(number)
            free_at += service
    return served + list(waiting), refused


@examples(150)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 2, 4, 6, 10, 40]), st.sampled_from(["value", "token", "chunk"])), max_size=25
    ),
    st.integers(1, 4),
    st.sampled_from([5, 11, 21]),
    st.fixed_dictionaries({kind: st.sampled_from(RULES) for kind in ("value", "token", "chunk")}),
)
def test_exactly_what_the_rules_say_is_dropped(gaps, queue, service, rules) -> None:
    arrivals = list(zip(accumulate(gap for gap, _ in gaps), (kind for _, kind in gaps), strict=True))
    served, refused = kept(arrivals, queue, service, rules)

    async def story(loop):
        async def give(_event):
            for number, (gap, kind) in enumerate(gaps):
                await asyncio.sleep(gap * 0.001)
                yield Event(kind, str(number), source="src", sequence=number, lineage="a")

        async def serve(event):
            await asyncio.sleep(service * 0.001)
            return event

        seen, failures = Seen(), Seen()
        behaviours = {
            "src": Behaviour("stream", give),
            "work": Behaviour("await", serve),
            "sink": seen.behaviour(),
            "failures": failures.behaviour(),
        }
        edges = [("src", "work"), ("work", "sink"), ("work", "failures", "error")]
        run = make_run(loop, behaviours, edges, {"work": {"queue": queue, "overflow": rules}})
        await run.run("go")
        assert [int(event.payload) for event in seen.events if event.kind in DATA] == served
        assert [event.sequence for event in failures.events if event.kind in DATA] == refused
        work = run.guardians["work"]
        assert work.dropped == len(gaps) - len(served) - len(refused)
        kinds = Counter(kind for number, (_, kind) in enumerate(gaps) if number not in (*served, *refused))
        assert +work.drops == kinds

    virtual.run(story)


# -- state and tries


@examples(120)
@given(
    st.sampled_from(["await", "stream"]),
    policies(),
    st.lists(st.sampled_from([0, 1, 3, 8]), min_size=1, max_size=4),
    st.dictionaries(st.integers(0, 11), st.integers(1, 4), max_size=6),
    st.sampled_from(["raise", "hang", "late"]),
    st.integers(0, 200) | st.none(),
)
def test_state_is_committed_with_its_outputs_or_not_at_all_and_tries_are_as_many_as_allowed(
    mode, policy, pauses, fails, how, cancel_after
) -> None:
    policy |= {"timeout": 0.5} if how == "hang" else {}
    together = policy["state"] == "transactional"
    allowed = policy.get("retry", 1)
    of = policy.get("retry_on", [])
    worth = not of or ("Boom" in of and how != "hang")
    tries: Counter[int] = Counter()
    keys: dict[int, set[str]] = {}
    undone: list[str] = []
    now: list[int] = []

    async def story(loop):
        async def work(event, state, idempotency_key):
            number = int(event.payload[:-1])
            tries[number] += 1
            keys.setdefault(number, set()).add(idempotency_key)
            same = [each for each in now if policy["state"] != "partitioned" or key_of(f"{each};") == number % 3]
            if policy["state"] != "stateless":
                assert not same, "one event at a time, or one of a key"
            now.append(number)
            try:
                state["calls"] = state.get("calls", 0) + 1
                await asyncio.sleep(pauses[number % len(pauses)] * 0.001)
                if how == "late" and mode == "stream":
                    yield event.derive((number, state["calls"]))
                if tries[number] <= fails.get(number, 0):
                    if how == "hang":
                        await asyncio.sleep(1e5)
                    raise Boom(number)
                if not (how == "late" and mode == "stream"):
                    yield event.derive((number, state["calls"]))
            finally:
                now.remove(number)

        async def await_(event, **extras):
            async with aclosing(work(event, **extras)) as given_out:
                return await anext(given_out, None)

        async def compensate(payload, _error):
            undone.append(payload)

        def give(_event):
            for number in range(12):
                yield Event("value", f"{number};", source="src", sequence=number, lineage="a")

        seen, failures = Seen(), Seen()
        behaviours = {
            "src": Behaviour("iterate", give),
            "work": Behaviour(
                mode, work if mode == "stream" else await_, extras=frozenset({"state", "idempotency_key"})
            ),
            "sink": seen.behaviour("await"),
            "failures": failures.behaviour(),
        }
        edges = [("src", "work"), ("work", "sink"), ("work", "failures", "error")]
        functions = {"key_of": key_of, "undo": compensate}
        run = make_run(loop, behaviours, edges, {"work": policy}, functions=functions)
        running = asyncio.ensure_future(run.run("go"))
        if cancel_after is not None:
            await asyncio.sleep(cancel_after * 0.001)
            await run.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert all(len(each) == 1 for each in keys.values())
        assert len(set().union(*keys.values())) == len(keys)
        again = [each for number, count in tries.items() for each in [number] * (count - 1)]
        assert run.guardians["work"].retries >= len(again)
        if policy.get("effect") == "non_idempotent":
            assert len(undone) >= len(again)
        if run.state != "done":
            assert all(count <= allowed for count in tries.values())
            return
        visible = how == "late" and mode == "stream" and not together
        for number in range(12):
            wanted = min(allowed, fails.get(number, 0) + 1) if worth and not visible else 1
            assert tries[number] == wanted
        assert {event.sequence for event in failures.events if event.kind in DATA} == {
            number for number in range(12) if fails.get(number, 0) >= tries[number]
        }
        if together:
            committed = [payload for payload in seen.data if isinstance(payload, tuple)]
            assert sorted(calls for _, calls in committed) == list(range(1, len(committed) + 1))
            assert {number for number, _ in committed} == {n for n in range(12) if fails.get(n, 0) < tries[n]}

    virtual.run(story)


# -- loops and deadlock


@st.composite
def loops(draw):
    """A loop of three nodes that sends each number round as often as drawn."""
    policy = policies(tries=False)
    return (
        [draw(st.sampled_from(MODES)) for _ in range(2)],
        [draw(policy) for _ in range(2)],
        draw(st.lists(st.integers(0, 4), min_size=1, max_size=20)),
        draw(st.integers(1, 12)),
        draw(st.lists(st.sampled_from([0, 1, 5, 30]), min_size=1, max_size=4)),
        draw(deeds("stop", "pause", "resume", "cancel")),
    )


@examples(150)
@given(loops())
def test_loops_keep_their_bounds_lose_nothing_and_end_whatever_is_done_to_them(plan) -> None:
    modes, policed, rounds, limit, pauses, happens = plan

    async def story(loop):
        turns: Counter[int] = Counter()
        most: Counter[str] = Counter()

        def look():
            for name, guardian in run.guardians.items():
                assert guardian.owned() <= guardian.bound, name
                assert 0 <= guardian.depth <= guardian.policy.queue, name
                most[name] = max(most[name], guardian.owned())

        def node(mode):
            async def await_(event):
                look()
                await asyncio.sleep(pauses[number_of(event.payload) % len(pauses)] * 0.001)
                look()
                return event

            async def stream(event):
                yield await await_(event)

            def inline(event):
                look()
                return event

            calls = {
                "await": await_,
                "stream": stream,
                "inline": inline,
                "iterate": lambda event: iter([inline(event)]),
            }
            return Behaviour(mode, calls[mode])

        def turn(event):
            look()
            number = number_of(event.payload)
            turns[number] += 1
            return ("again" if turns[number] <= rounds[number] else "out"), event

        def give(_event):
            for number in range(len(rounds)):
                yield Event("value", f"{number};", source="src", sequence=number, lineage=f"a{number}")

        seen = Seen()
        behaviours = {
            "src": Behaviour("iterate", give),
            "head": node(modes[0]),
            "body": node(modes[1]),
            "turn": Behaviour("inline", turn, routes=True),
            "sink": seen.behaviour(),
        }
        edges = [
            ("src", "head"),
            ("head", "body"),
            ("body", "turn"),
            ("turn", "head", "again", Feedback(limit=limit)),
            ("turn", "sink", "out"),
        ]
        policies_ = {"head": policed[0], "body": policed[1]}
        run = make_run(loop, behaviours, edges, policies_, functions={"key_of": key_of})
        ending = asyncio.ensure_future(run.run("go"))
        names = list(behaviours)
        for after, what, index in happens:
            await asyncio.sleep(after * 0.001)
            if what == "stop":
                await run.stop(names[index % len(names)])
            elif what == "cancel":
                await run.cancel()
            elif what == "pause":
                run.pause()
            else:
                run.resume()
        run.resume()
        (error,) = await asyncio.gather(ending, return_exceptions=True)
        assert run.state in ("done", "cancelled") or error.code == "AF607"
        out = sorted(number_of(payload) for payload in seen.data)
        assert len(out) == len(set(out))
        if run.state == "done" and run.result().complete:
            assert out == list(range(len(rounds)))
            assert turns == Counter({number: count + 1 for number, count in enumerate(rounds)})
        for name, guardian in run.guardians.items():
            assert most[name] <= max(1, guardian.most), name
            assert guardian.most <= guardian.bound, name
        assert_sane_figures(run)

    virtual.run(story)


@st.composite
def rings(draw):
    """A chain whose last node also gives to the first: what the checks refuse."""
    policy = policies(tries=False)
    return (
        [draw(st.sampled_from(MODES)) for _ in range(3)],
        [{**draw(policy), "overflow": draw(st.sampled_from(["block", "block", "drop_newest"]))} for _ in range(3)],
        draw(st.integers(1, 30)),
        draw(st.integers(0, 6)),
        draw(st.lists(st.sampled_from([0, 1, 5]), min_size=1, max_size=3)),
    )


@examples(100)
@given(rings())
def test_detector_finds_a_run_stuck_exactly_when_nothing_can_ever_happen_and_something_waits(plan) -> None:
    modes, policed, count, rounds, pauses = plan

    def made(loop):
        lab = Lab()
        nodes = {
            f"n{i}": lab.node(f"n{i}", mode, delay=lambda n: pauses[n % len(pauses)] * 0.001)
            for i, mode in enumerate(modes)
        }
        turns: Counter[int] = Counter()

        def turn(event):
            number = event.payload[0]
            turns[number] += 1
            return ("again" if turns[number] <= rounds else "out"), event.derive((number, ()))

        behaviours = {"src": source(burst(count)), **nodes, "turn": Behaviour("inline", turn, routes=True)}
        behaviours["sink"] = Seen().behaviour()
        edges = [
            ("src", "n0"),
            ("n0", "n1"),
            ("n1", "n2"),
            ("n2", "turn"),
            ("turn", "n0", "again"),
            ("turn", "sink", "out"),
        ]
        policies_ = {f"n{i}": policy for i, policy in enumerate(policed)}
        lab.run = make_run(
            loop, behaviours, edges, policies_, functions={"key_of": lambda payload: _number(payload) % 3}
        )
        return lab.run

    def _number(payload):
        return payload[0] if isinstance(payload, tuple) else payload

    async def story(loop):
        run = made(loop)
        found: list[int] = []
        run._detector._found = lambda _who: found.append(served())  # it goes on, to see whether anything does

        def served():
            return sum(guardian.processed + guardian.emitted for guardian in run.guardians.values())

        ending = asyncio.ensure_future(run.run("go"))
        await asyncio.sleep(1_000)  # far longer than all service together
        stuck = any(guardian.blocked() for guardian in run.guardians.values())
        assert found == ([served()] if stuck else [])
        await run.cancel()
        await asyncio.gather(ending, return_exceptions=True)

    virtual.run(story)


# -- real operators


TEXTS = ("Well. ", "It ", "is ", "so, ", "I ", "think. ", "Yes! ", "No", "? ", "End.")


class Answering:
    """Answers in these texts, and breaks off before the one that is told."""

    def __init__(self, cut):
        self.cut = cut

    async def stream(self, _request):
        for number, text in enumerate(TEXTS):
            await asyncio.sleep(0.002)
            if number == self.cut:
                raise Boom("cut")
            yield Event("token", text, source="it", sequence=number, meta={"phase": "answer"})
        yield Event("finish", Finish())


STAGES = {
    "map": "map(shout{0})",
    "sentences": 'segment(by="sentence")',
    "clauses": 'segment(by="clause")',
    "letters": "flat_map(letters{0})",
    "count": 'segment(by="tokens", count=3)',
}


@st.composite
def branches(draw):
    """The stages of a branch, each with its policy, and the calls that fail in each."""
    names = draw(st.lists(st.sampled_from(list(STAGES)), max_size=3))
    return [
        (
            name,
            draw(st.integers(1, 4)),
            draw(st.integers(1, 3)) if name == "map" else 1,
            draw(st.sampled_from([None, None, 0, 3])),
            draw(st.sampled_from([1, 1, 2])),
            draw(st.sampled_from(["both", "none"])),
        )
        for name in names
    ]


@examples(150)
@given(
    st.lists(branches(), min_size=1, max_size=3),
    st.sampled_from(["join", "merge", "apart"]),
    st.none() | st.integers(0, len(TEXTS)),
    st.integers(1, 2),
    deeds("stop", "pause", "resume", most=2),
)
def test_a_part_of_an_answer_never_passes_as_the_whole(made, together, cut, asked, happens) -> None:
    whole = "".join(TEXTS)
    lines, names, functions = ["ask = generate()", 'bad = sink(var="bad")'], ["ask"], {}
    ends = []
    for index, branch in enumerate(made):
        before = "ask"
        for place, (name, queue, workers, failing, tries, cancel) in enumerate(branch):
            node = f"b{index}_{place}"
            lines.append(
                f"{node} = {STAGES[name].format(node)} "
                f"[queue={queue}, workers={workers}, retry={tries}, backoff=0.01, cancel={cancel}]"
            )
            lines += [f"{before} -> {node}", f"{node}.error -> bad"]
            functions |= {f"shout{node}": shouting(failing), f"letters{node}": spelling(failing)}
            before = node
            names.append(node)
        lines += [f'whole{index} = reduce("join")', f"{before} -> whole{index}"]
        names.append(f"whole{index}")
        ends.append(f"whole{index}")
    lines.append("ask.error -> bad")
    lines.append("out = sink(function=take, inline=true)")
    if together == "apart" or len(made) == 1:
        lines += [f"{end} -> out" for end in ends]
    else:
        lines += [f"both = {together}()", *(f"{end} -> both" for end in ends), "both -> out"]
    given_out: list[Event] = []

    def take(event: Event) -> None:
        given_out.append(event)

    functions["take"] = take
    parsed = parse("\n".join(lines), "g", SIGNATURES_OF_ALL)
    assert check(parsed.spec, SIGNATURES_OF_ALL, functions, parsed) == []

    async def story(loop):
        run = Run(parsed.spec, OPERATORS, Scheduler(loop, loop.clock), functions=functions, source=Answering(cut))
        for _ in range(asked):
            await run.offer("ask", "why?")
        ending = asyncio.ensure_future(run.close_inputs())
        for after, what, index in happens:
            await asyncio.sleep(after * 0.001)
            if what == "stop":
                await run.stop(names[index % len(names)])
            elif what == "pause":
                run.pause()
            else:
                run.resume()
        run.resume()
        await ending
        result = await run.wait()
        untouched = result.complete
        for event in given_out:
            texts = list(event.payload.values()) if isinstance(event.payload, dict) else [event.payload]
            assert all(text.lower() == whole.lower() for text in texts) or not event.complete
        if untouched:
            assert len(given_out) == asked * (1 if together == "join" else len(made))
            assert all(event.complete for event in given_out)
        assert_sane_figures(run)

    virtual.run(story)


def shouting(failing):
    calls = 0

    async def shout(text: str) -> str:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.003)
        if failing is not None and calls - 1 == failing:
            raise Boom("shout")
        return text.upper()

    return shout


def spelling(failing):
    calls = 0

    async def letters(text: str) -> AsyncIterator[str]:
        nonlocal calls
        calls += 1
        for letter in text:
            yield letter
            if failing is not None and calls - 1 == failing:
                raise Boom("letters")

    return letters


# -- offers and counters


@examples(100)
@given(
    policies(ANY_RULE, tries=False),
    st.sampled_from(MODES),
    st.lists(st.integers(0, 12), min_size=1, max_size=30),
    st.sampled_from([0, 3, 9]),
    deeds("pause", "resume", "stop", "cancel", "give_up"),
)
def test_every_offer_is_served_dropped_refused_or_told_that_it_was_not_taken(
    policy, mode, gaps, pause, happens
) -> None:
    async def story(loop):
        started: Counter[str] = Counter()

        def inline(event):
            started[event.payload] += 1
            return event

        async def await_(event):
            started[event.payload] += 1
            await asyncio.sleep(pause * 0.001)
            return event

        async def stream(event):
            yield await await_(event)

        calls = {"inline": inline, "iterate": lambda event: iter([inline(event)]), "await": await_, "stream": stream}
        seen, failures = Seen(), Seen()
        behaviours = {"work": Behaviour(mode, calls[mode]), "sink": seen.behaviour(), "failures": failures.behaviour()}
        edges = [("work", "sink"), ("work", "failures", "error")]
        run = make_run(loop, behaviours, edges, {"work": policy}, functions={"key_of": key_of})
        work = run.guardians["work"]
        taken: set[str] = set()
        told: set[str] = set()
        offers: list[asyncio.Task[None]] = []

        async def offer(number: int) -> None:
            try:
                await run.offer("work", f"{number};")
                taken.add(f"{number};")
            except (AiflowError, asyncio.CancelledError):
                told.add(f"{number};")

        async def offering() -> None:
            for number, gap in enumerate(gaps):
                await asyncio.sleep(gap * 0.001)
                offers.append(asyncio.ensure_future(offer(number)))

        async def doing() -> None:
            for after, what, index in happens:
                await asyncio.sleep(after * 0.001)
                if what == "stop":
                    await run.stop("work")
                elif what == "cancel":
                    await run.cancel()
                elif what == "give_up" and offers:
                    offers[index % len(offers)].cancel()
                elif what == "pause":
                    run.pause()
                elif what == "resume":
                    run.resume()
                owned = work.owned()
                assert owned <= work.bound
                assert sum(started.values()) <= len(offers)

        await asyncio.gather(offering(), doing())
        run.resume()
        await asyncio.gather(*offers, return_exceptions=True)
        if run.state == "running":
            await run.close_inputs()
            await run.wait()
        await asyncio.sleep(1)
        assert all(count == 1 for count in started.values())
        assert not told & set(started), "what was not taken was not served either"
        assert (
            len(taken) + len(told) == len(gaps) or run.state != "done" or "give_up" in {what for _, what, _ in happens}
        )
        refused = {event.sequence for event in failures.events if event.kind in DATA}
        if run.state == "done" and not work.closed:
            assert len(taken) == len(started) + work.dropped + len(refused)
            assert work.processed == len(started)
            assert work.errors == len(refused)
            assert Counter(seen.data) == Counter(started)
        assert_sane_figures(run)

    virtual.run(story)


# -- what these found, by itself


def chained(loop, call, policy, *, mode="await", count=6, extras=(), functions=None):
    """A run of a source, one node of that call and policy, and a sink."""
    seen = Seen()
    behaviours = {
        "src": source(burst(count)),
        "work": Behaviour(mode, call, extras=frozenset(extras)),
        "sink": seen.behaviour(),
    }
    run = make_run(loop, behaviours, [("src", "work"), ("work", "sink")], {"work": policy}, functions=functions)
    return run, seen


@pytest.mark.parametrize("mode", ["await", "stream"])
def test_one_state_is_had_in_order_and_by_no_stream_that_waits_for_its_turn(mode):
    order, tries = [], Counter()

    async def once(event):
        tries[event.payload] += 1
        await asyncio.sleep(1)
        if event.payload == 0 and tries[0] == 1:
            raise Boom("once")
        order.append(event.payload)
        return event

    async def stream(event):
        yield await once(event)

    async def story(loop):
        policy = {"workers": 3, "state": "serialized", "retry": 2, "timeout": 1.5}
        run, seen = chained(loop, once if mode == "await" else stream, policy, mode=mode)
        await run.run("go")
        assert order == seen.data == list(range(6))

    virtual.run(story)


def test_what_a_busy_key_lays_aside_takes_bytes_and_is_not_served_in_a_pause():
    served = []

    async def story(loop):
        async def slow(event):
            served.append(event.sequence)
            assert sum(sys.getsizeof(t.event.payload) for laid in work._laid.values() for t in laid) <= 2_500
            await asyncio.sleep(1)
            return event

        policy = {"workers": 2, "queue_bytes": 2_500, "state": "partitioned", "key": "one"}
        run, _ = chained(loop, slow, policy, functions={"one": lambda _payload: 1})
        work = run.guardians["work"]
        run.guardians["src"].call = lambda _e: (Event("value", "x" * 1_000, sequence=n, lineage="a") for n in range(8))
        ending = asyncio.ensure_future(run.run("go"))
        await asyncio.sleep(1.5)
        run.pause()
        await asyncio.sleep(100)
        assert served == [0, 1]
        run.resume()
        await ending
        assert served == list(range(8))

    virtual.run(story)


def test_part_that_is_left_when_a_node_was_stopped_says_so():
    async def many(_value):
        for number in range(10):
            await asyncio.sleep(1)
            yield str(number)

    given_out: list[Event] = []

    def take(event: Event) -> None:
        given_out.append(event)

    async def story(loop):
        text = (
            'each = flat_map(many)\nall = reduce("count")\npieces = window(count=100)\n'
            "out = sink(function=take, inline=true)\neach -> all -> out\neach -> pieces -> out"
        )
        functions = {"many": many, "take": take}
        run = Run(parse(text, "g", SIGNATURES_OF_ALL).spec, OPERATORS, Scheduler(loop, loop.clock), functions=functions)
        await run.start("go")
        await asyncio.sleep(4.5)
        await run.stop("each")
        await run.wait()

    virtual.run(story)
    assert sorted((event.source, event.complete) for event in given_out) == [("all", False), ("pieces", False)]


def test_loop_ends_when_a_node_of_it_is_stopped():
    async def story(loop):
        def way(event):
            return "out", event

        behaviours = {
            "src": source(burst(5)),
            "head": Behaviour("inline", lambda event: event),
            "turn": Behaviour("inline", way, routes=True),
            "sink": Behaviour("await", lambda _event: asyncio.sleep(100)),
        }
        edges = [("src", "head"), ("head", "turn"), ("turn", "head", "again", Feedback()), ("turn", "sink", "out")]
        run = make_run(loop, behaviours, edges, {"sink": {"queue": 1}, "turn": {"cancel": "none"}})
        ending = asyncio.ensure_future(run.run("go"))
        await asyncio.sleep(1)
        await run.stop("turn")
        await asyncio.wait_for(ending, 10_000)
        assert run.guardians["sink"].processed == 3  # one in service, one that waited, and one that was in hand

    virtual.run(story)


def test_conflated_text_keeps_its_white_space_and_what_it_is():
    async def story(loop):
        async def give(_event):
            metas = ({}, {}, {"gap": " "}, {"gap": " ", "complete": False}, {"label": "other"})
            for number, meta in enumerate(metas):
                yield Event("chunk", f"{number}.", source="src", lineage="a", meta=meta)
                await asyncio.sleep(0.01 if not number else 0)

        async def slow(event):
            await asyncio.sleep(1)
            return event

        seen = Seen()
        behaviours = {"src": Behaviour("stream", give), "work": Behaviour("await", slow), "sink": seen.behaviour()}
        run = make_run(
            loop, behaviours, [("src", "work"), ("work", "sink")], {"work": {"queue": 1, "overflow": "conflate"}}
        )
        await run.run("go")
        texts = [
            (event.payload, event.complete, event.meta.get("label")) for event in seen.events if event.kind in DATA
        ]
        assert texts == [("0.", True, None), ("1. 2.", True, None), ("3.", False, None), ("4.", True, "other")]

    virtual.run(story)


def test_event_larger_than_queue_bytes_is_refused_by_an_idle_node_on_the_loop_too():
    async def story(loop):
        run, _ = chained(loop, lambda event: event, {"queue_bytes": 100}, mode="inline")
        run.guardians["src"].call = lambda _event: iter([Event("value", "x" * 10_000, lineage="a")])
        with pytest.raises(RunError) as raised:
            await run.run("go")
        assert raised.value.code == "AF608"

    virtual.run(story)


def test_value_that_the_input_does_not_take_fails_the_run_for_whoever_waits_for_it():
    async def story(loop):
        text = 'pieces = segment(by="line")\nout = sink(var="o")\npieces -> out'
        run = Run(parse(text, "g", SIGNATURES_OF_ALL).spec, OPERATORS, Scheduler(loop, loop.clock))
        waiting = asyncio.ensure_future(run.wait())
        with pytest.raises(AiflowError):
            await run.run(42)
        with pytest.raises(AiflowError):
            await waiting
        assert run.state == "failed"

    virtual.run(story)


def test_offer_that_waits_at_a_node_that_is_stopped_is_told_so():
    async def story(loop):
        behaviours = {"work": Behaviour("await", lambda _event: asyncio.sleep(1e4)), "sink": Seen().behaviour()}
        run = make_run(loop, behaviours, [("work", "sink")], {"work": {"queue": 1}})
        offers = [asyncio.ensure_future(run.offer("work", number)) for number in range(4)]
        await asyncio.sleep(1)
        await run.stop("work")
        told = await asyncio.gather(*offers, return_exceptions=True)
        assert [getattr(each, "code", None) for each in told] == [None, None, "AF605", "AF605"]

    virtual.run(story)


def test_drop_of_what_is_next_in_turn_during_a_pause_lets_the_rest_go():
    async def story(loop):
        async def slow(event):
            await asyncio.sleep(1)
            return event

        async def give(_event):
            for number in range(12):
                yield Event("value", number, source="src", sequence=number, lineage="a")
                await asyncio.sleep(0.3)

        policy = {"workers": 2, "queue": 2, "state": "partitioned", "key": "one", "overflow": "drop_oldest"}
        seen = Seen()
        behaviours = {"src": Behaviour("stream", give), "work": Behaviour("await", slow), "sink": seen.behaviour()}
        edges = [("src", "work"), ("work", "sink")]
        run = make_run(loop, behaviours, edges, {"work": policy}, functions={"one": lambda _number: 1})
        ending = asyncio.ensure_future(run.run("go"))
        await asyncio.sleep(0.7)
        run.pause()
        await asyncio.sleep(10)
        run.resume()
        await ending
        assert seen.data == [0, 10, 11]
        assert run.guardians["work"].dropped == 9

    virtual.run(story)
