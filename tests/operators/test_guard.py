"""`guard`: nothing leaves unchecked; driven by hand, and in runs in virtual time and in threads."""

from __future__ import annotations

import asyncio
import re
import threading

import pytest
import virtual
from driven import END, Node, Replies, Scripted, build, error, finish, tell, token, told, value
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import ConfigError, GraphError, RunError
from aiflow_jupyter.events import Event, ToolFragment
from aiflow_jupyter.graph.checks.checking import examine, require
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.operators import SIGNATURES

SECRET = "secret"


def clean(text: str) -> bool:
    return SECRET not in text


def node(check=clean, policy=None, **args):
    return Node("guard", policy, {"check": check}, check="check", **args)


def texts(events):
    return [event.payload for event in events if event.kind in ("token", "chunk")]


def kinds(events):
    return [event.kind for event in events if event.kind not in ("token", "chunk")]


def tokens(*pieces, lineage="0/0.ask"):
    return [token(piece, n, lineage) for n, piece in enumerate(pieces)]


# -- by sentences


def test_a_sentence_leaves_once_it_is_whole_and_was_checked():
    seen = []
    given_node = node(lambda text: seen.append(text) or True, overlap=0)
    assert given_node.put(*tokens("One", " thing.")) == []
    assert texts(given_node.put(token(" Two", 2))) == ["One", " thing."]
    assert texts(given_node.put(token(" things.", 3), token(" ", 4))) == [" Two", " things.", " "]
    out = given_node.put(token("Three", 5), finish())
    assert texts(out) == ["Three"]
    assert kinds(out) == ["commit", "finish"]
    assert seen == ["One thing. Two", "One thing. Two things. ", "One thing. Two things. Three"]
    assert [event.sequence for event in given_node.given if event.kind == "token"] == list(range(6))


def test_what_is_refused_is_dropped_retracted_and_nothing_follows():
    given_node = node(overlap=0)
    out = given_node.put(*tokens("Fine. ", "The se", "cr", "et is 7. ", "More. ", "And more."), finish())
    assert texts(out) == ["Fine. "]
    assert kinds(out) == ["retract"]
    retract = out[-1]
    assert (retract.lineage, retract.source) == ("0/0.ask", "n")
    assert "'check' refused" in retract.payload
    assert len(given_node.dropped) == 5
    assert given_node.put(*tokens("Next."), finish()) != []  # the same lineage, anew


def test_the_rest_is_checked_at_finish():
    out = node().put(*tokens("a sec", "ret"), finish())
    assert (texts(out), kinds(out)) == ([], ["retract"])


def test_a_sentence_leaves_once_it_was_checked_together_with_the_one_behind_it():
    seen = []
    given_node = node(lambda text: seen.append(text) or True)
    assert given_node.put(*tokens("One. ", "Two")) == []
    assert texts(given_node.put(token(". ", 2), token("x", 3))) == ["One. "]
    assert seen == ["One. Two. "]
    out = given_node.put(token("y. ", 4), token("z", 5), finish())
    assert (texts(out), kinds(out)) == (["Two", ". ", "x", "y. ", "z"], ["commit", "finish"])
    assert seen == ["One. Two. ", "One. Two. xy. ", "One. Two. xy. z"]


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 3),
    st.lists(st.sampled_from(["A. ", "B b. "]), max_size=4),
    st.lists(st.sampled_from(["C. ", "d", "E e. "]), max_size=4),
    st.data(),
)
def test_no_part_leaves_of_what_spans_a_sentence_and_the_overlap(overlap, before, after, data):
    secret = "".join(f"part {n}. " for n in range(overlap + 1))
    text = "".join(before) + secret + "".join(after)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    out = node(lambda text: secret.strip() not in text, overlap=overlap).put(*tokens(*pieces), finish())
    assert "".join(before).startswith("".join(texts(out)))
    assert kinds(out) == ["retract"]


def test_a_secret_over_more_sentences_than_are_held_is_retracted_once_it_is_seen():
    def check(text):
        return "Foo. Bar" not in text

    out = node(check, overlap=0).put(*tokens("Foo. ", "Bar."), finish())
    assert (texts(out), kinds(out)) == (["Foo. "], ["retract"])
    out = node(check).put(*tokens("Foo. ", "Bar."), finish())
    assert (texts(out), kinds(out)) == ([], ["retract"])


def test_what_is_put_in_waits_for_no_sentence_behind_it():
    given_node = node()
    assert texts(given_node.put(value("One.").derive("One.", "chunk"))) == ["One."]
    assert given_node.behaviour.holds() == 0


def test_overlap_goes_with_sentences():
    with pytest.raises(ConfigError, match="overlap= has no effect") as raised:
        node(hold=3, overlap=1)
    assert raised.value.code == "AF204"


# -- by a count of tokens


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 4), st.integers(0, 12), st.integers(0, 12), st.data())
def test_no_part_leaves_of_what_spans_up_to_so_many_tokens(count, before, after, data):
    cuts = sorted(data.draw(st.sets(st.integers(1, len(SECRET) - 1), max_size=count - 1)))
    parts = [SECRET[a:b] for a, b in zip([0, *cuts], [*cuts, len(SECRET)], strict=True)]
    pieces = [*("." * before), *parts, *("." * after)]
    out = node(hold=count).put(*tokens(*pieces), finish())
    assert set("".join(texts(out))) <= {"."}
    assert len(texts(out)) <= before
    assert kinds(out) == ["retract"]


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(st.just("sentence"), st.integers(1, 5)),
    st.lists(st.tuples(st.integers(0, 2), st.text("ab. ", max_size=6)), max_size=40),
    st.integers(2, 12),
    st.integers(8, 64),
)
def test_what_is_never_refused_leaves_whole_and_in_order_within_the_bounds(hold, pieces, most, most_bytes):
    given_node = node(policy={"hold": most, "hold_bytes": most_bytes}, hold=hold)
    sent = {n: [] for n in range(3)}
    for answer, text in pieces:
        given_node.put(token(text, len(sent[answer]), f"{answer}/0.ask"))
        sent[answer].append(text)
    for answer in sent:
        given_node.put(finish(f"{answer}/0.ask"))
    for answer, said in sent.items():
        assert [e.payload for e in given_node.given if e.kind == "token" and e.lineage == f"{answer}/0.ask"] == said
    assert kinds(given_node.given) == ["commit", "finish"] * 3
    assert given_node.behaviour.holds() == 0


def test_tokens_leave_so_many_at_a_time_after_as_many_more():
    given_node = node(hold=2)
    assert [texts(given_node.put(each)) for each in tokens(*"abcdef")] == [[], [], [], ["a", "b"], [], ["c", "d"]]
    assert texts(given_node.put(finish())) == ["e", "f"]


def test_a_piece_longer_than_the_bound_is_checked_as_it_is():
    given_node = node(policy={"hold": 4})
    assert texts(given_node.put(*tokens(*"abcdefgh"))) == ["a", "b", "c", "d"]
    big = node(policy={"hold_bytes": 10})
    assert texts(big.put(*tokens("x" * 30, "y"))) == ["x" * 30]
    assert texts(node(policy={"hold_bytes": 10}).put(*tokens("secret" * 9, "y"), finish())) == []


# -- several answers, phases, other kinds


def test_what_one_answer_says_is_not_held_against_another():
    given_node = node()
    out = given_node.put(*tokens("sec", lineage="0/0.ask"), *tokens("ret.", lineage="1/0.ask"))
    out += given_node.put(finish("0/0.ask"), finish("1/0.ask"))
    assert (texts(out), kinds(out)) == (["sec", "ret."], ["commit", "finish"] * 2)


def test_reasoning_and_answer_are_looked_at_apart():
    seen = []
    given_node = node(lambda text: seen.append(text) or True)
    out = given_node.put(token("hm sec", phase="reasoning"), token("ret", 1), finish())
    assert seen == ["hm sec", "ret"]
    assert texts(out) == ["hm sec", "ret"]


def test_what_is_no_text_keeps_its_place():
    call = Event(
        "tool_fragment", ToolFragment(0, "a", "f", "{}"), sequence=1, lineage="0/0.ask", meta={"phase": "answer"}
    )
    out = node().put(token("One. "), call, token("Two.", 2), finish())
    assert [event.sequence for event in out if event.kind != "commit"][:3] == [0, 1, 2]
    out = node().put(token("a secret"), call, finish())
    assert [event.kind for event in out] == ["retract"]


# -- control events


@pytest.mark.parametrize(
    ("event", "left", "then"),
    [
        (error(), [("se", False)], ["error"]),
        (told("flush"), [("se", True)], ["flush"]),
        (told("flush", ""), [("se", True), ("v", True)], ["flush"]),
        (told("retract"), [], ["retract"]),
        (told("retract", "0"), [], ["retract"]),
        (told("restart"), [], ["restart"]),
        (told("commit"), [], []),
        (told("skip"), [], ["skip"]),
        (END, [("se", False), ("v", True)], ["commit"]),
        (error("7/0.ask"), [], ["error"]),
    ],
)
def test_control_events_let_go_what_they_are_about(event, left, then):
    given_node = node()
    given_node.put(token("se"), Event("token", "v", lineage="4"))
    out = given_node.put(event)
    assert [(e.payload, e.complete) for e in out if e.kind in ("token", "chunk")] == left
    assert kinds(out) == then


def test_a_part_is_checked_too():
    out = node().put(token("secret"), error())
    assert (texts(out), kinds(out)) == ([], ["retract", "error"])
    out = node().put(token("secret"), END)
    assert (texts(out), kinds(out)) == ([], ["retract"])


def test_answer_that_begins_anew_is_judged_anew():
    given_node = node(overlap=0)
    out = given_node.put(token("secret. "), token("x", 1), told("restart"), token("fine"), finish())
    assert (texts(out), kinds(out)) == (["fine"], ["retract", "restart", "commit", "finish"])


def test_a_check_has_to_be_a_function_of_one_text():
    def two(text, other):
        return True

    def yields(text):
        yield True

    for check in (two, yields):
        with pytest.raises(ConfigError) as raised:
            node(check)
        assert raised.value.code == "AF303"
    with pytest.raises(ConfigError) as raised:
        Node("guard", check="missing")
    assert raised.value.code == "AF205"


# -- in runs

GUARDED = """
ask  = generate()
safe = guard(check{hold}) {policy}
out  = sink(var="x")
ask -> safe -> out
"""


@pytest.mark.parametrize("hold", ["", ", hold=2"])
def test_a_retracted_answer_is_taken_back_where_it_was_shown(hold):
    async def check(text: str) -> bool:
        await asyncio.sleep(1)
        return clean(text)

    pieces = re.findall(r"\S+\s*", "Fine so far. And still fine here. But the secret is 7. Sorry about it.")
    run, result = tell(GUARDED.format(hold=hold, policy=""), Scripted(*pieces), check=check)
    assert result.variables["x"] == []
    assert run.guardians["safe"].dropped > 0
    _, result = tell(GUARDED.format(hold=hold, policy=""), Scripted(*pieces[:7]), check=check)
    assert result["x"] == "".join(pieces[:7])


def test_a_check_that_raises_vouches_for_nothing():
    async def check(text: str) -> bool:
        raise OSError("no judge")

    with pytest.raises(RunError) as raised:
        tell(GUARDED.format(hold="", policy=""), Scripted("One. ", "Two."), check=check)
    assert (raised.value.node, raised.value.code) == ("safe", "AF603")
    text = GUARDED.format(hold="", policy="") + 'failed = sink(var="failed")\nsafe.error -> failed'
    _, result = tell(text, Scripted("One. ", "Two. ", "Three."), check=check)
    assert result.variables["x"] == []
    assert len(result.variables["failed"]) == 1


def test_each_check_is_tried_by_itself():
    tries = []

    async def check(text: str) -> bool:
        tries.append(text)
        if len(tries) % 2:
            raise OSError("again")
        return True

    text = GUARDED.format(hold=", overlap=0", policy="[retry=2]")
    run, result = tell(text, Scripted("One. ", "Two. ", "x"), check=check)
    assert result["x"] == "One. Two. x"
    assert run.guardians["safe"].retries == 3
    assert len(tries) == 6


async def test_a_plain_check_runs_in_the_nodes_thread_or_on_the_loop():
    names = []

    def check(text: str) -> bool:
        names.append(threading.current_thread().name)
        return True

    real = asyncio.get_running_loop()
    for arguments in ("", ", inline=true"):
        run = build(real, GUARDED.format(hold=arguments, policy=""), Scripted("a", "b"), check=check)
        assert (await run.run("go"))["x"] == "ab"
    assert names == ["aiflow:safe", threading.current_thread().name]


SPECULATIVE = """
ask  = generate()
safe = guard(check)
act  = map(work) [effect=speculative, hold=9]
out  = sink(var="x")
done = sink(var="done")
ask -> safe -> out
ask -> act -> done
safe.verdict -> act
"""


@pytest.mark.parametrize(
    ("pieces", "done"), [(["One. ", "Two."], ["One. !", "Two.!"]), (["One. ", "secret. ", "x"], [])]
)
def test_what_works_ahead_is_let_go_or_discarded_by_the_verdict(pieces, done):
    async def check(text: str) -> bool:
        await asyncio.sleep(5)
        return clean(text)

    async def work(text: str) -> str:
        return f"{text}!"

    _, result = tell(SPECULATIVE, Scripted(*pieces), check=check, work=work)
    assert result.variables["done"] == done


def test_verdicts_carry_no_data_and_the_checks_know():
    def found(text):
        return examine(parse(text, "g", SIGNATURES).spec, SIGNATURES, {"check": clean, "work": str.upper})

    assert [p.code for p in found(SPECULATIVE).errors] == []
    assert "AF212" not in [p.code for p in found(SPECULATIVE).warnings]
    assert "AF212" not in [p.code for p in found(GUARDED.format(hold="", policy="")).warnings]
    wrong = SPECULATIVE.replace("safe.verdict", "safe.verdicts")
    with pytest.raises(GraphError) as raised:
        require(parse(wrong, "g", SIGNATURES).spec, SIGNATURES, {"check": clean, "work": str.upper})
    assert "AF203" in [problem.code for problem in raised.value.problems]
    several = GUARDED.format(hold="", policy="[workers=2]")
    assert [p.code for p in found(several).errors] == ["AF402"]


def test_reduce_behind_a_guard_gives_the_whole_or_nothing():
    text = GUARDED.format(hold="", policy="").replace("-> out", '-> all -> out\nall = reduce("join")')

    async def check(text: str) -> bool:
        return clean(text)

    assert tell(text, Scripted("One. ", "Two."), check=check)[1].variables["x"] == ["One. Two."]
    assert tell(text, Scripted("One. ", "secret"), check=check)[1].variables["x"] == []
    cut = text + '\nfailed = sink(var="failed")\nask.error -> failed'

    def reply(_request):
        return ["One. ", "Tw", OSError("cut")]

    async def story(loop):
        run = build(
            loop, cut.replace('sink(var="x")', "sink(function=see, inline=true)"), Replies(reply), check=check, see=see
        )
        await run.run("go")

    seen = []

    def see(event: Event):
        seen.append((event.payload, event.complete))

    see.__annotations__["event"] = Event
    virtual.run(story)
    assert seen == [("One. Tw", False)]


def test_what_is_put_in_without_an_answer_is_vouched_for_at_the_end():
    given_node = node()
    assert given_node.put(Event("token", "abc", lineage="0"), Event("token", "d. ", sequence=1, lineage="1")) == []
    assert given_node.put(value(3, 0, "2")) == []
    out = given_node.put(END)
    assert [event.payload for event in out if event.kind in ("token", "value")] == ["abc", "d. ", 3]
    assert kinds([e for e in out if e.kind != "value"]) == ["commit"] * 3


def test_a_piece_that_was_cut_before_is_looked_at_when_it_comes_with_its_white_space():
    seen = []

    def check(text):
        seen.append(text)
        return True

    given_node = Node("guard", functions={"check": check}, check="check", overlap=0)
    out = []
    for number, piece in enumerate(["One.", "Two."]):
        gap = {"gap": " "} if number else {}
        out += given_node.put(Event("chunk", piece, sequence=number, lineage="0/0.ask", meta=gap))
    assert [event.payload for event in out] == ["One.", "Two."]
    assert seen == ["One.", "One. Two."]


def test_what_is_withheld_is_told():
    given_node = Node("guard", functions={"check": lambda text: "bad" not in text}, check="check")
    given_node.put(token("This is bad. "), token("And on."))
    given_node.put(finish())
    assert len(given_node.withheld) == 1
    assert "refused a part" in given_node.withheld[0]
