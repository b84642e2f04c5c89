"""`join`: pairs by what events come from; driven by hand under any interleaving, and in runs in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import virtual
from driven import END, Node, Replies, build, finish, tell
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import ConfigError, RunError
from aiflow_jupyter.events import Event
from aiflow_jupyter.graph.checks.checking import examine
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.operators import SIGNATURES


def node(inputs=("a", "b"), policy=None, functions=None, **args):
    return Node("join", policy, functions, inputs=inputs, **args)


def part(name, sequence=0, lineage="0", payload=None, **meta):
    payload = f"{name}{sequence}" if payload is None else payload
    return Event("value", payload, source=name, sequence=sequence, lineage=lineage, meta=meta)


def control(kind, name="a", sequence=0, lineage="0"):
    return Event(kind, None, source=name, sequence=sequence, lineage=lineage)


def pairs(events):
    return [event.payload for event in events if event.kind == "value"]


def kinds(events):
    return [event.kind for event in events]


def test_a_result_names_its_inputs_in_their_order_and_keeps_the_identity():
    given_node = node(("a", "b", "c"))
    assert given_node.put(part("c", 3, "0/1.x"), part("a", 3, "0/1.x")) == []
    (out,) = given_node.put(part("b", 3, "0/1.x"))
    assert list(out.payload.items()) == [("a", "a3"), ("b", "b3"), ("c", "c3")]
    assert (out.kind, out.identity, out.source, out.complete) == ("value", ("0/1.x", 3), "n", True)
    assert given_node.behaviour.holds() == 0


def test_what_was_made_of_a_part_makes_a_part():
    (out,) = node().put(part("a", hops=2), part("b", complete=False, phase="answer"))
    assert dict(out.meta) == {"hops": 2, "complete": False}


@st.composite
def stories(draw):
    """What two to four inputs say of some events, each in an order of its own, and how that is interleaved."""
    names = [chr(97 + n) for n in range(draw(st.integers(2, 4)))]
    identities = [(str(n % 2), n) for n in range(draw(st.integers(1, 6)))]
    said = {name: [] for name in names}
    gone = set()
    for identity in identities:
        for name in names:
            kind = draw(st.sampled_from(["value"] * 4 + ["skip", "error"]))
            if kind != "value":
                gone.add(identity)
            made = part if kind == "value" else None
            event = made(name, identity[1], identity[0]) if made else control(kind, name, identity[1], identity[0])
            said[name].append(event)
    order = draw(st.permutations([name for name in names for _ in identities]))
    orders = {name: draw(st.permutations(events)) for name, events in said.items()}
    return names, identities, gone, [orders[name].pop(0) for name in order]


@settings(max_examples=400, deadline=None)
@given(stories())
def test_every_event_has_its_own_pair_or_one_skip_under_any_interleaving(story):
    names, identities, gone, events = story
    given_node = node(names)
    out = given_node.put(*events)
    results = Counter(event.identity for event in out if event.kind == "value")
    skips = Counter(event.identity for event in out if event.kind == "skip")
    for event in out:
        if event.kind == "value":
            assert event.payload == {name: f"{name}{event.sequence}" for name in names}
    assert set(results) == set(identities) - gone
    assert set(results.values()) <= {1}
    values = Counter(event.identity for event in events if event.kind == "value")
    told = {event.identity for event in events if event.kind == "skip"}
    assert set(skips) == {identity for identity in gone if identity in told or values[identity]}
    assert set(skips.values()) <= {1}
    assert given_node.behaviour.holds() == 0
    assert given_node.put(END) == []
    assert len(given_node.dropped) == sum(values[identity] for identity in gone)


def test_of_an_answer_that_begins_anew_nothing_old_is_paired_and_nothing_new_is_dead():
    given_node = node()
    out = given_node.put(part("a", 0, "0/0.ask", "old"), control("skip", "b", 1, "0/0.ask"), part("a", 0, "1"))
    assert kinds(out) == ["skip"]
    out = given_node.put(control("restart", "b", 1, "0/0.ask"))
    out += given_node.put(*(part(name, number, "0/0.ask", f"new {number}") for number in (0, 1) for name in "ba"))
    assert kinds(out) == ["restart", "value", "value"]
    assert pairs(out) == [{"a": f"new {number}", "b": f"new {number}"} for number in (0, 1)]
    assert pairs(given_node.put(part("b", 0, "1"))) == [{"a": "a0", "b": "b0"}]
    assert given_node.behaviour.holds() == 0


def test_what_comes_round_a_loop_is_paired_though_it_had_no_result_before():
    async def later(number):
        return number or None

    async def following(number):
        await asyncio.sleep(1)
        return number + 1 if number < 3 else None

    text = "s = map(same, inline=true)\na = map(same, inline=true)\nb = map(later)\nj = join()\no = sink(var='o')\n"
    text += "n = map(following)\ns -> a, b\na, b -> j -> o\na -> n\nn -> s [feedback, limit=4, hops=5]"
    result = tell(text, None, 0, same=same, later=later, following=following)[1]
    assert result["o"] == [{"a": number, "b": number} for number in (1, 2, 3)]


def test_a_second_event_of_one_input_fails_too_where_another_has_no_result():
    given_node = node()
    assert kinds(given_node.put(control("skip", "b"), part("a"))) == ["skip"]
    assert pairs(given_node.put(part("a"), part("b"))) == [{"a": "a0", "b": "b0"}]
    given_node.put(control("skip", "b", 1))
    with pytest.raises(RunError, match="a second event") as error:
        given_node.put(part("b", 1))
    assert error.value.code == "AF623"


def test_of_what_is_retracted_nothing_is_paired():
    given_node = node()
    out = given_node.put(part("a", 0, "0/0.ask"), part("a", 0, "1"), control("retract", "b", 0, "0/0.ask"))
    out += given_node.put(part("b", 0, "0/0.ask"), part("b", 1, "0/0.ask/0.x"), part("b", 0, "1"))
    assert (kinds(out), pairs(out)) == (["retract", "value"], [{"a": "a0", "b": "b0"}])
    assert given_node.dropped == ["value"] * 3


@pytest.mark.parametrize("event", [finish("0"), END])
def test_what_waits_alone_when_all_are_through_is_dropped(event):
    given_node = node()
    out = given_node.put(part("a"), part("a", 1, "7"), event)
    assert kinds(out) == (["skip", "finish"] if event.kind == "finish" else ["skip", "skip"])
    assert out[0].identity == ("0", 0)
    assert pairs(given_node.put(part("b"))) == []


@pytest.mark.parametrize("kind", ["flush", "commit"])
def test_what_does_not_concern_it_passes(kind):
    given_node = node()
    out = given_node.put(part("a"), control(kind, "b"), part("b"))
    assert kinds(out) == [kind, "value"]


# -- bounds and time


def test_more_than_may_wait_fail_by_name_and_their_partners_are_dropped():
    given_node = node(limit=2)
    given_node.put(part("a", 0), part("a", 1))
    with pytest.raises(RunError) as raised:
        given_node.put(part("a", 2))
    assert raised.value.code == "AF623"
    out = given_node.put(control("error", "n", 2), part("b", 2), part("b", 0), part("b", 1))
    assert kinds(out) == ["error", "skip", "value", "value"]


def test_what_is_offered_from_outside_has_no_partner():
    with pytest.raises(RunError) as raised:
        node().put(part("run"))
    assert raised.value.code == "AF623"


def test_last_partner_needs_no_room():
    given_node = node(("a", "b", "c"), limit=2)
    assert len(pairs(given_node.put(part("a"), part("b"), part("c")))) == 1


def test_partner_that_comes_too_late_is_dropped():
    given_node = node(timeout=5)
    given_node.put(part("a", 0), part("a", 1), part("b", 1))
    assert [seconds for seconds, _ in given_node.timers.values()] == [5]
    (skip,) = given_node.fire()
    assert (skip.kind, skip.identity) == ("skip", ("0", 0))
    assert given_node.put(part("b", 0)) == []
    assert given_node.dropped == ["value", "value"]
    assert given_node.timers == {}


# -- by a function


def test_pairs_by_what_a_function_gives():
    by = {"key": lambda payload: payload["id"]}
    given_node = node(functions=by, by="key")
    out = given_node.put(
        part("a", 0, "0", {"id": 1, "x": "a"}), part("b", 5, "9", {"id": 2}), part("b", 6, "9", {"id": 1, "y": "b"})
    )
    (pair,) = pairs(out)
    assert pair == {"a": {"id": 1, "x": "a"}, "b": {"id": 1, "y": "b"}}
    assert out[0].identity == ("0", 0)
    assert [event.identity for event in given_node.put(END)] == [("9", 5)]


def test_two_of_one_input_with_one_key_are_no_pair():
    given_node = node(functions={"key": lambda _payload: "k"}, by="key")
    given_node.put(part("a", 0))
    with pytest.raises(RunError) as raised:
        given_node.put(part("a", 1))
    assert raised.value.code == "AF623"
    assert "'a' gave a second event for 'k'" in raised.value.message


def test_a_key_has_to_have_a_hash_and_its_function_to_be_plain():
    with pytest.raises(RunError) as raised:
        node(functions={"key": lambda _payload: []}, by="key").put(part("a"))
    assert raised.value.code == "AF303"

    async def later(payload):
        return payload

    with pytest.raises(ConfigError):
        node(functions={"later": later}, by="later")


# -- in runs

TWO = """
question = map(same, inline=true)
ask1 = generate(model="one") {ask1}
ask2 = generate(model="two") {ask2}
one  = reduce("join")
two  = reduce("join")
both = join({args})
out  = sink(var="x")
question -> ask1 -> one
question -> ask2 -> two
one, two -> both -> out
"""


def same(payload):
    return payload


def two(**words):
    return TWO.format(**{"ask1": "", "ask2": "", "args": ""} | words)


def answering(request):
    question = request.messages[-1]["content"]
    count = int(question) % 3 + 1 if request.model == "one" else 2
    return [request.model, *[f" {question}"] * count]


@pytest.mark.parametrize("ask1", ["", "[workers=3]", "[workers=3, order=none]", "[queue=1]"])
def test_answers_of_two_models_to_many_questions_are_joined_by_their_question(ask1):
    async def story(loop):
        run = build(loop, two(ask1=ask1), Replies(answering, pause=0.2), same=same)
        for number in range(9):
            await run.offer("question", str(number))
        await run.close_inputs()
        result = await run.wait()
        assert len(result.variables["x"]) == 9
        for pair in result.variables["x"]:
            assert list(pair) == ["one", "two"]
            assert pair["one"].split()[1:][0] == pair["two"].split()[1:][0]
            assert (pair["one"].split()[0], pair["two"].split()[0]) == ("one", "two")

    virtual.run(story)


def test_an_answer_that_breaks_off_makes_a_part_of_its_pair_alone():
    def reply(request):
        words = answering(request)
        if request.model == "one" and request.messages[-1]["content"] == "1":
            return [*words[:2], OSError("cut")]
        return words

    seen = []

    def see(event: Event):
        seen.append((event.payload["two"].split()[-1], event.complete))

    see.__annotations__["event"] = Event

    async def story(loop):
        text = two().replace('sink(var="x")', "sink(function=see, inline=true)")
        text += 'failed = sink(var="failed")\nask1.error -> failed'
        run = build(loop, text, Replies(reply), same=same, see=see)
        for number in range(3):
            await run.offer("question", str(number))
        await run.close_inputs()
        await run.wait()

    virtual.run(story)
    assert seen == [("0", True), ("1", False), ("2", True)]


def test_a_model_that_is_too_late_leaves_its_pair_out():
    async def story(loop):
        source = Replies(answering)
        stream = source.stream

        async def slow(request):
            if request.model == "two" and request.messages[-1]["content"] == "1":
                await asyncio.sleep(60)
            async for event in stream(request):
                yield event

        source.stream = slow
        run = build(loop, two(args="timeout=30", ask2="[workers=3, order=none]"), source, same=same)
        for number in range(3):
            await run.offer("question", str(number))
        await run.close_inputs()
        result = await run.wait()
        assert [pair["one"].split()[-1] for pair in result.variables["x"]] == ["0", "2"]
        assert run.guardians["both"].drops == {"value": 2}

    virtual.run(story)


BRANCHES = """
left  = filter(some, inline=true)
right = map(later) [workers=4, queue=2]
both  = join()
out   = sink(var="x")
start = map(same, inline=true)
start -> left, right
left, right -> both -> out
"""


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=25), st.booleans())
def test_a_branch_that_drops_and_one_that_is_slow_still_pair_right(events, ordered):
    async def story(loop):
        def some(payload):
            return events[payload][0]

        async def later(payload):
            await asyncio.sleep(events[payload][1])
            return payload

        text = BRANCHES if ordered else BRANCHES.replace("queue=2]", "queue=2, order=none]")
        run = build(loop, text, None, same=same, some=some, later=later)
        for number in range(len(events)):
            await run.offer("start", number)
        await run.close_inputs()
        result = await run.wait()
        assert sorted(pair["left"] for pair in result.variables["x"]) == [
            n for n, (kept, _) in enumerate(events) if kept
        ]
        assert all(pair["left"] == pair["right"] for pair in result.variables["x"])
        assert run.guardians["both"].most <= run.guardians["both"].bound

    virtual.run(story)


def test_three_branches_of_unlike_speed_never_overfill_the_join():
    async def story(loop):
        async def slow(payload):
            await asyncio.sleep(1)
            return payload

        text = """
        start = map(same, inline=true)
        a = map(same, inline=true)
        b = map(same, inline=true)
        c = map(slow) [queue=40]
        both = join()
        out = sink(var="x")
        start -> a, b, c
        a, b, c -> both -> out
        """
        run = build(loop, text, None, same=same, slow=slow)
        for number in range(100):
            await run.offer("start", number)
        await run.close_inputs()
        result = await run.wait()
        assert [set(pair.values()) for pair in result.variables["x"]] == [{n} for n in range(100)]
        join = run.guardians["both"]
        assert 64 < join.most <= join.bound

    virtual.run(story)


def test_checks_want_branches_of_one_split():
    def found(text):
        return [p.code for p in examine(parse(text, "g", SIGNATURES).spec, SIGNATURES, {"same": same}).errors]

    assert found(two()) == []
    assert found(two(args="limit=1")) == ["AF502"]
    apart = two().replace("question -> ask2", "other -> ask2") + "other = map(same)"
    assert found(apart) == ["AF215"]


def test_a_run_with_one_question():
    _, result = tell(two(), Replies(answering), value="1", same=same)
    assert result.variables["x"] == [{"one": "one 1 1", "two": "two 1 1"}]


@pytest.mark.parametrize("args", ["", "timeout=5"])
def test_what_an_input_that_was_stopped_leaves_alone_is_skipped_and_not_kept(args):
    async def same(payload):
        return payload

    async def late(payload):
        await asyncio.sleep(100)
        return payload

    async def story(loop):
        text = f's = map(same)\na = map(same)\nb = map(late)\nj = join({args})\no = sink(var="o")\n'
        run = build(loop, f"{text}s -> a, b\na, b -> j -> o", same=same, late=late)
        await run.offer("s", 0)
        await asyncio.sleep(1)
        assert run.guardians["j"].holds() == 1
        await run.stop("b")
        await asyncio.sleep(1)
        assert run.guardians["j"].holds() == 0
        for number in range(200):
            await run.offer("s", number)
            await asyncio.sleep(0.01)
        assert (run.state, run.guardians["j"].holds(), run.guardians["j"].drops["value"]) == ("running", 0, 201)
        await run.close_inputs()
        assert not (await run.wait()).complete

    virtual.run(story)
