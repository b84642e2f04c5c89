"""`segment`: where pieces end, and what waits; in runs in virtual time and driven by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from driven import END, Node, Scripted, error, finish, tell, token, told, value
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import ConfigError, RunError
from aiflow_jupyter.events import Event, Failure
from aiflow_jupyter.operators.segment import MOST_HELD, ByEnd, clause_end, line_end, sentence_end


def pieces(*script, by="sentence", cut=False):
    text = f'ask = generate()\nparts = segment(by="{by}")\nout = sink(var="x")\nask -> parts -> out'
    if cut:
        text += '\nfailed = sink(var="failed")\nask.error -> failed'
    return tell(text, Scripted(*script, cut=cut))[1].variables["x"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Pi is 3.14 here. Next one!", ["Pi is 3.14 here.", "Next one!"]),
        ("Use a list, e.g. this one. Dr. Who came.", ["Use a list, e.g. this one.", "Dr. Who came."]),
        ("1. First item.\n2. Second item.", ["1. First item.", "2. Second item."]),
        ("J. Smith said (really) no... Yes.", ["J. Smith said (really) no...", "Yes."]),
        ('He said "Stop." Then left.', ['He said "Stop."', "Then left."]),
        ("你好。「好！」再见？ok", ["你好。", "「好！」", "再见？", "ok"]),
        ("Title\n \nBody", ["Title", "Body"]),
        ("no end", ["no end"]),
        (" \n ", []),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text, expected):
    assert pieces(text) == expected
    assert pieces(*text) == expected


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="aA1 .!?…\"')。」\n", max_size=60), st.lists(st.integers(0, 60), max_size=8))
def test_pieces_do_not_depend_on_how_the_text_was_cut_into_tokens(text, cuts):
    at = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    tokens = [text[a:b] for a, b in pairwise(at)]
    whole = pieces(text)
    assert pieces(*tokens) == whole == pieces(*text)
    assert "".join("".join(whole).split()) == "".join(text.split())


def test_lines_end_at_their_newline():
    assert pieces("one. two\nthr", "ee\n\nfour", by="line") == ["one. two", "three", "four"]


@pytest.mark.parametrize("char", ["a", ".", "\n", '"', "。", "1.", " .", '."', "\n "])
def test_a_million_characters_without_an_end_go_out_in_bounded_pieces(char):
    text = char * (1_000_000 // len(char))
    found = pieces(text)
    assert all(len(piece) <= MOST_HELD for piece in found)
    assert "".join("".join(found).split()) == "".join(text.split())


def test_last_piece_of_a_broken_answer_is_marked_incomplete_and_keeps_its_phase():
    seen = []
    text = "ask = generate()\nparts = segment()\nout = sink(function=see, inline=true)\nask -> parts -> out"
    text += '\nfailed = sink(var="failed")\nask.error -> failed'

    def see(event: Event):
        seen.append((event.payload, event.complete, event.phase, event.lineage))

    see.__annotations__["event"] = Event
    _, result = tell(text, Scripted("One. ", "Two", cut=True), see=see)
    assert seen == [("One.", True, "answer", "0/0.ask"), ("Two", False, "answer", "0/0.ask")]
    assert isinstance(result.variables["failed"][0], Failure)
    assert not result.complete


def test_reasoning_and_answer_are_never_in_one_piece():
    assert pieces(("so I say hi", "reasoning"), "Hello.") == ["so I say hi", "Hello."]


# -- where pieces end


def cut(text, find=sentence_end, *, size=None, indented=False):
    """The pieces of a text with the white space before each, fed in portions of a size."""
    cutter = ByEnd(find, indented=indented)
    size = size or max(1, len(text))
    found = [piece for at in range(0, len(text), size) for piece in cutter.feed(text[at : at + size])]
    return found + list(cutter.rest())


WHOLE = [
    "Pi is 3.14 or 3,14 here.",
    "Ask Dr. No, Prof. Ada and Mr. J. R. R. Smith.",
    "It costs approx. 5 dollars, e.g. in the U.S. and at Inc. Ltd. Co. there.",
    "Version v1.2.3 is at https://a.b/c?d=e.f and www.x.org now.",
    "See Fig. 3 and Eq. 4, cf. vol. 2, pp. 3.",
    "Well... maybe… not.",
    '"Really?" she asked.',
    "(So what?) he said.",
    "At 5 p.m. they left, and etc. was all.",
    "Take No. 5 of them.",
    "Das ist z.B. so, d.h. anders.",
    "file.txt, a.out and .gitignore are files.",
    "Wait?!",
]


@pytest.mark.parametrize("text", WHOLE)
@pytest.mark.parametrize("size", [None, 1, 3])
def test_what_only_looks_like_an_end_is_none(text, size):
    assert cut(f"{text} Next one.", size=size) == [("", text), (" ", "Next one.")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("No. It is not.", ["No.", "It is not."]),
        ("He left at 5 p.m. Then came night.", ["He left at 5 p.m.", "Then came night."]),
        ("Well... Next.", ["Well...", "Next."]),
        ("**Done.** Next: ok.", ["**Done.**", "Next: ok."]),
        ("One!\nTwo?\r\n\r\nThree", ["One!", "Two?", "Three"]),
        ("hello there. how are you?", ["hello there.", "how are you?"]),
        ("Things:\n- one\n- two\n* three", ["Things:", "- one", "- two", "* three"]),
        ("1. First.\n2. Second\n10) Tenth", ["1. First.", "2. Second", "10) Tenth"]),
        ("Title\n\nBody", ["Title", "Body"]),
        (
            "今天3．14天気がいい。明日は？「はい！」終わり",
            ["今天3．14天気がいい。", "明日は？", "「はい！」", "終わり"],
        ),
        ("ما اسمك؟ أنا هنا.", ["ما اسمك؟", "أنا هنا."]),
        ("यह सच है। वह नहीं।", ["यह सच है।", "वह नहीं।"]),
    ],
)
def test_sentences_of_other_texts(text, expected):
    for size in (None, 1, 2, 5):
        assert [piece for _, piece in cut(text, size=size)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "First, 3,14 of it; then: 10:30 — or later. End",
            ["First,", "3,14 of it;", "then:", "10:30 —", "or later.", "End"],
        ),
        ("well, e.g. this, that", ["well,", "e.g. this,", "that"]),
        ("東京、大阪，3，5。終", ["東京、", "大阪，", "3，5。", "終"]),
    ],
)
def test_clauses_end_at_commas_and_the_like(text, expected):
    for size in (None, 1, 2):
        assert [piece for _, piece in cut(text, clause_end, size=size)] == expected


def test_lines_keep_their_indentation():
    assert cut("def f():\n    return 1\n\n\nx", line_end, indented=True) == [
        ("", "def f():"),
        ("\n", "    return 1"),
        ("\n\n\n", "x"),
    ]


ALPHABET = "aA1 .!?…,;:\"')。，」\n\t-*"


@settings(max_examples=400, deadline=None)
@given(
    st.text(alphabet=ALPHABET, max_size=80),
    st.lists(st.integers(0, 80), max_size=10),
    st.sampled_from([(sentence_end, False), (clause_end, False), (line_end, True)]),
    st.integers(2, 40),
)
def test_any_cutting_into_tokens_gives_the_same_pieces_and_loses_nothing(text, cuts, by, most):
    find, indented = by

    def fed(tokens):
        cutter = ByEnd(find, most, indented=indented)
        return [piece for each in tokens for piece in cutter.feed(each)] + list(cutter.rest())

    at = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    whole = fed([text])
    assert fed(text) == whole == fed(text[a:b] for a, b in pairwise(at))
    assert all(len(piece) <= most and piece.strip() for _, piece in whole)
    assert "".join(gap + piece for gap, piece in whole) == text.rstrip()


@pytest.mark.parametrize("char", ["a", ".", "\n", '"', "。", " .", '."', "... ", "- "])
def test_time_grows_with_the_text_alone_however_it_comes(char):
    """Counts the characters that are looked at, which no machine's speed changes."""
    looked = 0

    def find(text, start):
        nonlocal looked
        looked += len(text) - start
        return sentence_end(text, start)

    cutter = ByEnd(find)
    text = char * (40_000 // len(char))
    for each in text:
        for _ in cutter.feed(each):
            pass
    assert looked <= 400 * len(text)


def test_long_text_is_let_go_at_a_space():
    pieces_ = [piece for _, piece in cut("word " * 2_000)]
    assert all(piece.startswith("word") and piece.endswith("word") for piece in pieces_)
    assert MOST_HELD - 10 < len(pieces_[0]) <= MOST_HELD


# -- the operator


def said(events):
    return [e.payload for e in events]


def test_tokens_are_counted_and_left_as_they_are():
    node = Node("segment", by="tokens", count=3)
    out = node.put(*(token(text) for text in ("a ", " ", "b", "\n", "c")), finish())
    assert said(out[:-1]) == ["a  b", "\nc"]
    assert [e.identity for e in out[:-1]] == [("0/0.ask", 0), ("0/0.ask", 1)]


def test_count_is_for_tokens():
    with pytest.raises(ConfigError) as raised:
        Node("segment", by="line", count=3)
    assert raised.value.code == "AF204"


def test_only_text_is_taken():
    with pytest.raises(RunError) as raised:
        Node("segment").put(value({"a": 1}))
    assert raised.value.code == "AF301"


def test_a_piece_says_what_white_space_stood_before_it():
    out = Node("segment").put(token("One.\n\nTwo. Three."), finish())
    assert [(e.payload, e.meta.get("gap", "")) for e in out[:-1]] == [("One.", ""), ("Two.", "\n\n"), ("Three.", " ")]


@pytest.mark.parametrize(
    ("event", "left"),
    [
        (finish(), [("Two", True)]),
        (told("flush"), [("Two", True)]),
        (told("flush", lineage=""), [("Two", True), ("other", True)]),
        (error(), [("Two", False)]),
        (END, [("Two", False), ("other", False)]),
        (told("restart"), []),
        (told("retract"), []),
        (told("retract", lineage="0"), []),
        (told("commit"), []),
        (told("skip"), []),
        (told("skip", lineage="5"), []),
        (finish("2/0.ask"), []),
    ],
)
def test_control_events_let_go_discard_or_pass(event, left):
    node = Node("segment")
    node.put(token("One. Two"), token("other", lineage="1/0.ask"))
    out = node.put(event)
    passes = event.kind != "end" and not (event.kind == "skip" and event.lineage == "0/0.ask")
    assert [e.kind for e in out[len(left) :]] == [event.kind] * passes
    assert [(e.payload, e.complete) for e in out[: len(left)]] == left
    void = {"Two"} if event.kind in ("restart", "retract") else set()
    rest = node.put(finish(), finish("1/0.ask"), finish("2/0.ask"))
    assert {e.payload for e in rest if e.kind == "chunk"} == {"Two", "other"} - {text for text, _ in left} - void
    assert node.behaviour.holds() == 0


def test_text_of_an_input_that_has_no_finish_is_whole_at_the_end():
    node = Node("segment")
    (out,) = node.put(Event("chunk", "all of it", lineage="0"), END)
    assert out.complete


def test_a_piece_that_holds_a_part_is_a_part():
    out = Node("segment").put(token("Half", complete=False), token(" done. Next"), finish())
    assert [(e.payload, e.complete) for e in out[:-1]] == [("Half done.", False), ("Next", True)]


def test_too_many_open_lineages_let_the_one_go_that_waited_longest():
    node = Node("segment", policy={"hold": 2})
    out = node.put(*(token(f"{n} a", lineage=f"{n}/0.ask") for n in range(4)), token(" b", lineage="2/0.ask"))
    assert said(out) == ["0 a", "1 a"]
    assert said(node.put(token("4 a", lineage="4/0.ask"))) == ["3 a"]
    assert node.put(token(" b", lineage="3/0.ask"))[0].sequence == 0
    assert node.put(finish("3/0.ask"))[0].sequence == 1


@pytest.mark.parametrize("text", ["word ", "é", "語"])
def test_the_bytes_of_all_that_waits_are_bounded(text):
    node = Node("segment", policy={"hold_bytes": 100})
    kept = {}
    for n in range(200):
        lineage = f"{n % 5}/0.ask"
        kept[lineage] = kept.get(lineage, "") + text
        node.put(token(text, lineage=lineage))
        waiting = sum(len(o.cutter.text.encode()) for o in node.behaviour.call.__self__._open.values())
        assert waiting <= 100
    node.put(END)
    for lineage, all_ in kept.items():
        got = "".join(e.meta.get("gap", "") + e.payload for e in node.given if e.lineage == lineage)
        assert got == all_.rstrip()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["One. ", "two ", "e.g. ", "\n\n", "!", "語。", " "]),
            st.integers(0, 3),
            st.sampled_from(["answer", "reasoning"]),
        ),
        max_size=40,
    ),
    st.integers(1, 4),
    st.sampled_from(["sentence", "clause", "line", "tokens"]),
)
def test_nothing_is_lost_or_given_twice_and_identities_are_unique(script, hold, by):
    node = Node("segment", policy={"hold": hold, "hold_bytes": 40}, by=by)
    sent = {}
    for text, lineage, phase in script:
        sent[lineage, phase] = sent.get((lineage, phase), "") + text
        node.put(token(text, lineage=f"{lineage}/0.ask", phase=phase))
    node.put(END)
    assert len({e.identity for e in node.given}) == len(node.given)
    for (lineage, phase), text in sent.items():
        got = "".join(e.payload for e in node.given if e.lineage == f"{lineage}/0.ask" and e.phase == phase)
        assert "".join(got.split()) == "".join(text.split())


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([*ALPHABET, "ok. ", '."', ". ", "12", "U.S"]), st.integers(1, 200)), max_size=5),
    st.integers(1, 90),
    st.sampled_from([sentence_end, clause_end]),
)
def test_long_runs_of_what_an_end_is_made_of_are_cut_the_same_however_they_come(runs, size, find):
    text = "".join(part * times for part, times in runs)
    whole = [piece for _, piece in cut(text, find)]
    assert [piece for _, piece in cut(text, find, size=1)] == whole
    assert [piece for _, piece in cut(text, find, size=size)] == whole
    assert "".join("".join(whole).split()) == "".join(text.split())
