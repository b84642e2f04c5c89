"""`retrieve`: passages from lists, retrievers and functions; driven by hand, and answers from documents in runs."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field

import pytest
from driven import Node, Replies, build, finish, tell, token, value
from hypothesis import given, settings
from hypothesis import strategies as st

from aiflow_jupyter.errors import ConfigError, GraphError, RunError
from aiflow_jupyter.events import Retrieval
from aiflow_jupyter.graph.builder import Flow
from aiflow_jupyter.graph.checks.checking import examine, require
from aiflow_jupyter.graph.forms.language import parse
from aiflow_jupyter.operators import OPERATORS, SIGNATURES, generate, retrieve, sink
from aiflow_jupyter.operators.retrieve import Passages
from aiflow_jupyter.runtime.run import Run
from aiflow_jupyter.runtime.scheduler import Scheduler

ANIMALS = [
    "Owls hoot at night and hunt mice.",
    "Cats purr when they are content.",
    "Whales sing songs that travel far.",
    "Mice eat grain, and owls eat mice.",
]


@dataclass
class Document:
    """As LangChain has them."""

    page_content: str
    metadata: dict = field(default_factory=dict)


def node(index, **args):
    return Node("retrieve", None, {"index": index}, index="index", **args)


def found(index, question="What do owls eat?", **args):
    return [event.payload for event in node(index, **args).put(value(question))]


# -- a list of documents


def test_documents_that_share_words_with_the_question_come_best_first():
    passages = found(ANIMALS, k=3)
    assert passages[0].text == ANIMALS[3]
    assert {passage.text for passage in passages[1:]} <= {ANIMALS[0]}
    assert [passage.rank for passage in passages] == list(range(len(passages)))
    assert [passage.score for passage in passages] == sorted((p.score for p in passages), reverse=True)
    assert {passage.query for passage in passages} == {"What do owls eat?"}


def test_a_document_may_be_a_text_a_mapping_or_an_object():
    documents = ["red apple", {"text": "green pear", "metadata": {"page": 3}}, Document("blue plum", {"page": 4})]
    assert [(p.text, p.meta) for word in ("apple", "pear", "plum") for p in found(documents, word)] == [
        ("red apple", {}),
        ("green pear", {"page": 3}),
        ("blue plum", {"page": 4}),
    ]


@pytest.mark.parametrize("documents", [[], [""], ["?!", " "], ["a b c"]])
@pytest.mark.parametrize("question", ["zebra", "", "?", "a"])
def test_where_nothing_fits_nothing_is_found(documents, question):
    assert found(documents, question) == []
    (together,) = found(documents, question, together=True)
    assert together == Passages(question, [])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("abcd ", max_size=12), max_size=8), st.text("abcd ", max_size=8), st.integers(1, 9))
def test_what_is_found_shares_a_word_and_is_no_more_than_asked_for(documents, question, k):
    words = {word for word in question.split() if len(word) > 1}
    passages = found(documents, question, k=k)
    assert len(passages) <= k
    assert all(words & set(passage.text.split()) for passage in passages)


def test_a_list_needs_the_extra_and_says_which(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigError) as raised:
        node(ANIMALS)
    assert raised.value.code == "AF627"
    assert "pip install 'aiflow-jupyter[retrieve]'" in raised.value.hint


# -- retrievers and functions


class Retriever:
    def __init__(self, documents):
        self.documents = documents
        self.asked = []


class Invoked(Retriever):
    def invoke(self, query):
        self.asked.append(query)
        return self.documents


class Older(Retriever):
    def get_relevant_documents(self, query):
        self.asked.append(query)
        return self.documents


@pytest.mark.parametrize("kind", [Invoked, Older])
def test_a_retriever_of_langchains_kind(kind):
    retriever = kind([Document(text) for text in ANIMALS])
    assert [p.text for p in found(retriever, k=2)] == ANIMALS[:2]
    assert retriever.asked == ["What do owls eat?"]


def test_a_function_of_the_question_and_one_of_the_number_too():
    async def later(query, k):
        return [f"{query} {n}" for n in range(k)]

    def scored(query):
        return ((Document(query), 0.25), {"text": "b", "score": 3}, Retrieval("c", score=1.0))

    assert [p.text for p in found(later, "q", k=2)] == ["q 0", "q 1"]
    assert [p.text for p in found(lambda query, k=9: [query] * k, "q", k=2)] == ["q", "q"]
    assert [(p.text, p.score, p.rank) for p in found(scored, "q")] == [("q", 0.25, 0), ("b", 3.0, 1), ("c", 1.0, 2)]


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (lambda _q: "one text", "gave str"),
        (lambda _q: None, "gave NoneType"),
        (lambda _q: [3], "type int has no text"),
        (lambda _q: [{"texts": "x"}], "type dict has no text"),
    ],
)
def test_what_is_no_list_of_documents_is_said(index, said):
    with pytest.raises(RunError) as raised:
        found(index)
    assert raised.value.code == "AF309"
    assert said in raised.value.message


def test_what_can_not_be_searched_is_refused_at_once():
    for index in (3, "a text", None):
        with pytest.raises(ConfigError) as raised:
            node(index)
        assert raised.value.code == "AF303"
    with pytest.raises(ConfigError) as raised:
        Node("retrieve", index="missing")
    assert raised.value.code == "AF205"


def test_a_question_is_a_text():
    with pytest.raises(RunError) as raised:
        node(lambda q: [q]).put(value({"q": 1}))
    assert raised.value.code == "AF301"


# -- events


def test_each_retrieval_has_an_identity_of_its_own():
    given_node = node(lambda q: [q, q])
    questions = [value("a"), value("b", 1), token("c", 5, part="x")]
    out = given_node.put(*questions)
    assert [event.kind for event in out] == ["retrieval"] * 6
    assert [event.identity for event in out[:4]] == [("0", 0), ("0", 1), ("0", 2), ("0", 3)]
    assert [event.identity for event in out[4:]] == [("0/0.ask", 0), ("0/0.ask", 1)]
    assert out[4].meta["part"] == "x"
    assert [event.kind for event in given_node.put(finish())] == ["finish"]
    assert given_node.put(token("again"))[0].sequence == 0


def test_together_keeps_the_questions_identity():
    asked = token("c", 5, part="x")
    (out,) = node(lambda q: [q, q], together=True).put(asked)
    assert (out.kind, out.identity, out.meta) == ("value", asked.identity, asked.meta)
    assert out.payload == Passages("c", [Retrieval("c", "c", None, n) for n in range(2)])


# -- in graphs

RAG = """
find = retrieve(index=animals, together=true)
ask  = generate(system="Answer from the passages.")
out  = sink(var="x")
find -> ask -> out
"""


async def test_an_answer_from_documents():
    threads = set()

    def animals(question):
        threads.add(threading.current_thread().name)
        return ANIMALS[:2]

    source = Replies(lambda _request: ["They eat mice [1]."])
    run = build(asyncio.get_running_loop(), RAG, source, animals=animals)
    result = await run.run("What do owls eat?")
    assert result["x"] == "They eat mice [1]."
    assert source.requests[0].messages[-1]["content"] == f"[1] {ANIMALS[0]}\n\n[2] {ANIMALS[1]}\n\nWhat do owls eat?"
    assert threads == {"aiflow:find"}


def test_prompt_words_what_was_found():
    text = RAG.replace("find -> ask", "find -> say -> ask") + r'say = prompt(template="{query}\nUse:\n{passages}")'

    async def animals(question):
        return ANIMALS[:2] if question else []

    source = Replies(lambda _request: ["ok"])
    tell(text, source, "What?", animals=animals)
    assert source.requests[0].messages[-1]["content"] == f"What?\nUse:\n[1] {ANIMALS[0]}\n\n[2] {ANIMALS[1]}"
    tell(text, source, "", animals=animals)
    assert source.requests[1].messages[-1]["content"] == "\nUse:\n"


def test_passages_that_were_gathered_make_a_prompt_and_a_question():
    async def animals(question, k):
        return ANIMALS[:k]

    text = """
    find = retrieve(index=animals, k=2)
    all  = window(count=2)
    {say}
    ask  = generate()
    out  = sink(var="x")
    find -> all -> {way} ask -> out
    """
    source = Replies(lambda _request: ["ok"])
    tell(text.format(say="", way=""), source, "What?", animals=animals)
    tell(text.format(say='say = prompt(template="{query} {passages}")', way="say ->"), source, "What?", animals=animals)
    asked = [request.messages[-1]["content"] for request in source.requests]
    passages = f"[1] {ANIMALS[0]}\n\n[2] {ANIMALS[1]}"
    assert asked == [f"{passages}\n\nWhat?", f"What? {passages}"]


async def test_a_python_flow_takes_a_plain_list():
    flow = Flow("rag")
    find = flow.add("find", retrieve(ANIMALS, k=1, together=True))
    find >> flow.add("ask", generate()) >> flow.add("out", sink(var="x"))
    require(flow.spec, SIGNATURES, flow.functions)
    source = Replies(lambda _request: ["ok"])
    run = Run(flow.spec, OPERATORS, Scheduler(asyncio.get_running_loop()), functions=flow.functions, source=source)
    await run.run("whales")
    assert ANIMALS[2] in source.requests[0].messages[0]["content"]


def test_checks_know_what_leaves():
    def found_by(text, **functions):
        return examine(parse(text, "g", SIGNATURES).spec, SIGNATURES, functions)

    each = RAG.replace(", together=true", "")
    assert [problem.code for problem in found_by(RAG, animals=ANIMALS).errors] == []
    assert [problem.code for problem in found_by(each, animals=ANIMALS).errors] == ["AF301"]
    stream = 'ask = generate()\nfind = retrieve(index=animals)\nout = sink(var="x")\nask -> find -> out'
    assert [problem.code for problem in found_by(stream, animals=ANIMALS).errors] == ["AF304"]

    def whole(found: Passages) -> str:
        return found.query

    typed = 'find = retrieve(index=animals, together=true)\nm = map(whole)\nout = sink(var="x")\nfind -> m -> out'
    assert found_by(typed, animals=ANIMALS, whole=whole).errors == []
    with pytest.raises(GraphError):
        require(
            parse(typed.replace(", together=true", ""), "g", SIGNATURES).spec,
            SIGNATURES,
            {"animals": [], "whole": whole},
        )


def test_a_failing_index_fails_its_question():
    async def animals(question):
        raise OSError("the index is gone")

    text = RAG + 'failed = sink(var="failed")\nfind.error -> failed'
    _, result = tell(text, Replies(lambda _r: ["x"]), animals=animals)
    (failure,) = result.variables["failed"]
    assert (failure.node, str(failure.error)) == ("find", "the index is gone")
    assert not result.complete
