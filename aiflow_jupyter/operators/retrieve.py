r"""`retrieve`: finds passages for a question.

    find  = retrieve(index=papers, k=4)                 # a retrieval for each passage, best first
    found = retrieve(index=papers, k=4, together=true)  # one value: the question with its passages

Answers from documents, whole:

    find = retrieve(index=papers, together=true)
    ask  = generate(system="Answer from the passages, and name their numbers.")
    out  = sink(display=true)
    find -> ask -> out

`generate` takes what `together` gives as it is; `prompt(template="{query}\n{passages}")` between them words it
otherwise.

The index is a variable of the caller's: a list of documents, a retriever as LangChain has them (`invoke`, or
`get_relevant_documents`), or a function of the question, or of the question and `k`. A document is a text, a mapping
with `text` (or `page_content`), or an object with `page_content` or `text`; `metadata` and `score` come along, and a
pair of a document and a score is one too. Over a list, BM25 ranks: the documents that share words with the question,
by the library bm25s (`pip install 'aiflow-jupyter[retrieve]'`). The index is made of it with the first question.

What is plain runs in the node's threads, `async def` on the loop. A question is a whole text: a stream is gathered
first.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from aiflow_jupyter.errors import ConfigError, RunError, words
from aiflow_jupyter.events import Event, Retrieval
from aiflow_jupyter.graph import hints
from aiflow_jupyter.graph.builder import OperatorCall, call
from aiflow_jupyter.graph.problems import indefinite
from aiflow_jupyter.graph.signatures import Args, OperatorSignature, Parameter
from aiflow_jupyter.operators.numbering import Numbers
from aiflow_jupyter.runtime.behaviour import Behaviour, Binding, Operator
from aiflow_jupyter.runtime.returned import value

DEFAULT_K: Final = 4

_MISSING: Final = ConfigError(
    "retrieve ranks a list of documents with bm25s, which is not installed",
    code="AF627",
    hint="pip install 'aiflow-jupyter[retrieve]'",
)


@dataclass(frozen=True, slots=True)
class Passages:
    """A question with the passages that were found for it, best first."""

    query: str
    passages: list[Retrieval]

    def prompt(self) -> str:
        """What a model is asked: the passages, numbered, and the question."""
        found = "\n\n".join(f"[{number}] {passage.text}" for number, passage in enumerate(self.passages, 1))
        return f"{found or '(no passage was found)'}\n\n{self.query}"


_PARAMETERS = (
    Parameter("index", "object", required=True),
    Parameter("k", "integer", least=1),
    Parameter("together", "boolean"),
)
_TAKES = frozenset({"value", "token", "chunk"})

_TOGETHER = OperatorSignature(
    "retrieve",
    _PARAMETERS,
    takes=_TAKES,
    gives=frozenset({"value"}),
    whole=True,
    payload=lambda _args, _given: Passages,
    accepts=(str,),
)
_EACH = replace(_TOGETHER, gives=frozenset({"retrieval"}), results="many", payload=None)
SIGNATURE = replace(_EACH, variant=lambda args: _TOGETHER if args.get("together") is True else _EACH)


def retrieve(index: Any, *, k: int | None = None, together: bool | None = None) -> OperatorCall:
    """Find passages for a question.

    Args:
        index: a list of documents, a retriever, or a function of the question (and `k`).
        k: how many passages; 4 if it is left out.
        together: give the question and its passages as one value, not a `retrieval` for each passage.
    """
    if isinstance(index, list | tuple):
        index = Documents(index)
    return call("retrieve", index=index, k=k, together=together)


class Documents(Sequence[Any]):
    """A list of documents that a Python `Flow` can name."""

    def __init__(self, documents: Sequence[Any]) -> None:
        self._documents = documents

    def __getitem__(self, place: Any) -> Any:
        return self._documents[place]

    def __len__(self) -> int:
        return len(self._documents)


Search = Callable[[str, int], Any]


class Bm25:
    """Ranks documents by the words that they share with a question; may be called from several threads.

    Args:
        documents: what is searched.
    """

    def __init__(self, documents: Sequence[Any]) -> None:
        self._documents = documents
        self._alone = threading.Lock()
        self._made: tuple[list[Retrieval], Any] | None = None

    def __call__(self, query: str, k: int) -> list[Retrieval]:
        """The best `k` documents that share a word with the query."""
        import bm25s  # noqa: PLC0415 - an extra, and numpy takes its time

        with self._alone:
            if self._made is None:
                passages = [_passage(each) for each in self._documents]
                words = bm25s.tokenize([each.text for each in passages], stopwords=None, show_progress=False)
                ranked = bm25s.BM25() if words.vocab else None
                if ranked is not None:
                    ranked.index(words, show_progress=False)
                self._made = passages, ranked
        passages, ranked = self._made
        words = bm25s.tokenize([query], stopwords=None, show_progress=False, return_ids=False)
        if ranked is None or not words[0]:
            return []
        places, scores = ranked.retrieve(words, k=min(k, len(passages)), show_progress=False)
        best = zip(places[0].tolist(), scores[0].tolist(), strict=True)
        return [replace(passages[place], score=score) for place, score in best if score > 0]


def search_of(index: Any, node: str) -> tuple[Search, bool]:
    """What searches an index, and whether that is a coroutine function.

    Raises:
        ConfigError: it is nothing that can be searched, or bm25s is missing.
    """
    method = _retriever(index, node)
    if method is not None:
        return lambda query, _k: method(query), False
    if isinstance(index, Sequence) and not isinstance(index, str | bytes):
        _require_bm25s()
        return Bm25(index), False
    if not callable(index):
        raise ConfigError(
            f"node {node!r}: retrieve can't search {indefinite(type(index).__name__)}",
            code="AF303",
            hint="index= takes a list of documents, a retriever, or a function of the question",
        )
    function: Callable[..., Any] = index
    awaits = hints.read(function).awaits
    if _takes_k(function):
        return function, awaits
    return lambda query, _k: function(query), awaits


def _retriever(index: Any, node: str) -> Callable[..., Any] | None:
    """The method by which a retriever is asked; None for what is no retriever."""
    try:
        methods = (getattr(index, name, None) for name in ("invoke", "get_relevant_documents"))
        return next((each for each in methods if callable(each)), None)
    except BaseException as error:  # an object of the user's may fail in any way
        raise ConfigError(
            f"node {node!r}: retrieve can't look at {indefinite(type(index).__name__)}: "
            f"{type(error).__name__}: {words(error)}",
            code="AF303",
            hint="index= takes a list of documents, a retriever, or a function of the question",
        ) from error


def _require_bm25s() -> None:
    from importlib.util import find_spec  # noqa: PLC0415

    if find_spec("bm25s") is None:
        raise _MISSING


def _takes_k(function: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except BaseException:  # noqa: BLE001 - builtins have none that can be read, an object may fail in any way
        return False
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(places) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters)


def _passage(found: Any) -> Retrieval:
    """A document, in whatever form it came.

    Raises:
        RunError: it has no text.
    """
    if isinstance(found, Retrieval):
        return found
    if isinstance(found, str):
        return Retrieval(found)
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], int | float):
        return replace(_passage(found[0]), score=float(found[1]))
    get: Callable[[str], Any] = found.get if isinstance(found, Mapping) else lambda name: getattr(found, name, None)
    text = next((each for name in ("text", "page_content") if isinstance(each := get(name), str)), None)
    if text is None:
        raise RunError(
            f"a document of type {type(found).__name__} has no text",
            code="AF309",
            hint="a document is a text, or has text (or page_content)",
        )
    score, meta = get("score"), get("metadata")
    return Retrieval(
        text,
        score=float(score) if isinstance(score, int | float) else None,
        meta=meta if isinstance(meta, Mapping) else {},
    )


class _Retrieve:
    """See the module."""

    def __init__(self, args: Args, binding: Binding) -> None:
        self._node = binding.node
        self._k = args.get("k", DEFAULT_K)
        self._search, self._awaits = search_of(_named(args["index"], binding), binding.node)
        self._submit = None if self._awaits else binding.threads()
        self._numbers = Numbers(binding.policy.workers)

    async def _found(self, event: Event) -> Passages:
        query = event.payload
        if not isinstance(query, str):
            raise RunError(f"retrieve takes a text, not {type(query).__name__}", code="AF301")
        if self._submit is not None:
            passages = await self._submit(self._passages, query)
        else:
            found = self._search(query, self._k)
            passages = self._ranked(query, await found)
        return Passages(query, passages)

    def _passages(self, query: str) -> list[Retrieval]:
        return self._ranked(query, self._search(query, self._k))

    def _ranked(self, query: str, found: Any) -> list[Retrieval]:
        if isinstance(found, Awaitable):
            value("the index", found)
        if isinstance(found, str | bytes | Mapping) or not hasattr(found, "__iter__"):
            raise RunError(
                f"the index gave {type(found).__name__}, and not several documents", code="AF309", hint="return a list"
            )
        best = islice(found, self._k)
        return [replace(_passage(each), query=query, rank=rank) for rank, each in enumerate(best)]

    async def together(self, event: Event) -> Event:
        """The question with its passages."""
        return event.derive(await self._found(event), "value")

    async def each(self, event: Event) -> AsyncGenerator[Event, None]:
        """A retrieval for each passage."""
        for passage in (await self._found(event)).passages:
            out = event.derive(passage, "retrieval")
            out.source = self._node
            out.sequence = self._numbers.take(event.lineage)
            yield out

    def control(self, event: Event) -> Iterator[Event]:
        """Number anew what begins anew."""
        self._numbers.heed(event)
        if event.kind != "end":
            yield event


def _named(name: str, binding: Binding) -> Any:
    if name not in binding.functions:
        raise ConfigError(
            f"node {binding.node!r}: nothing is called {name!r}", code="AF205", hint="define it in a cell before"
        )
    return binding.functions[name]


def bind(args: Args, binding: Binding) -> Behaviour:
    """The behaviour of `retrieve`.

    Raises:
        ConfigError: there is no such index, it can't be searched, or bm25s is missing.
    """
    made = _Retrieve(args, binding)
    if args.get("together"):
        return Behaviour("await", made.together)
    return Behaviour("stream", made.each, control=made.control)


RETRIEVE = Operator(SIGNATURE, bind)
