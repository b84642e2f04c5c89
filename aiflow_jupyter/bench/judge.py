"""How well a judge rates queries that somebody else labelled: `aiflow bench judge --data FILE.jsonl`.

A line of the file is `{"text": ..., "ground_truth": "LOW"}`, or MEDIUM or HIGH, in capitals or not; other keys are left
alone.
Retention is the share of the queries that are not HIGH which the judge keeps off the cloud (does not call HIGH), so
it says little without HIGH recall beside it: always MEDIUM retains everything.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aiflow_jupyter.errors import CommandError
from aiflow_jupyter.runtime.source import Message
from aiflow_jupyter.tiers.judge import EmbeddedJudge, judge_named
from aiflow_jupyter.tiers.terms import LABELS, Label, Verdict

if TYPE_CHECKING:
    from aiflow_jupyter.tiers.judge.llm import LlmJudge

THRESHOLDS: Final = tuple(step / 20 for step in range(21))
LONGEST_LINE: Final = 16 << 20
LLM_DEADLINE: Final = 60.0
"""Seconds: what is measured is the model's word, and the local tier may have to start its engine first."""
TELL_EVERY: Final = 2.0
"""Seconds between two words of how far it is."""
SHOWN: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
"""The thresholds whose figures a table shows."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query and the label that its rater gave it."""

    text: str
    truth: Label


def read(path: Path) -> list[Query]:
    """The queries of a file.

    Raises:
        CommandError: it can't be read, a line of it is none, or it has none.
    """
    found: list[Query] = []
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise _wrong(path, number, f"is longer than {LONGEST_LINE >> 20} MB")
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if line.strip():
                    found.append(_query(line, path, number))
    except OSError as error:
        raise CommandError(
            f"{path} can't be read: {error.strerror or error}",
            code="AF830",
            hint='Name a file of lines such as {"text": "What is a p-value?", "ground_truth": "LOW"}.',
        ) from None
    if not found:
        raise CommandError(f"{path} has no query", code="AF830")
    return found


def _query(line: bytes, path: Path, number: int) -> Query:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _wrong(path, number, f"is no JSON: {error}") from None
    if not isinstance(row, dict):
        raise _wrong(path, number, "is no JSON object")
    text, truth = row.get("text"), row.get("ground_truth")
    if not isinstance(text, str):
        raise _wrong(path, number, "has no text in `text`")
    if not isinstance(truth, str) or truth.strip().upper() not in LABELS:
        raise _wrong(path, number, f"has {str(truth)[:40]!r} as `ground_truth`, not LOW, MEDIUM or HIGH")
    return Query(text, next(label for label in LABELS if label == truth.strip().upper()))


def _wrong(path: Path, number: int, what: str) -> CommandError:
    return CommandError(
        f"{path}, line {number}: it {what}",
        code="AF831",
        hint='Each line is an object such as {"text": "What is a p-value?", "ground_truth": "LOW"}.',
    )


def measure(path: Path, name: str = "classifier", tell: Callable[[str], None] = lambda _text: None) -> dict[str, Any]:
    """The figures of one judge on one file.

    Args:
        path: the file.
        name: the judge, as the settings name it.
        tell: is told how far it is, where that takes its time.

    Raises:
        CommandError: the file is not as it has to be.
        ConfigError: there is no such judge.
    """
    queries = read(path)
    verdicts = asyncio.run(_verdicts(queries, name, tell))
    return {"judge": name, "data": path.name, **figures([query.truth for query in queries], verdicts)}


async def _verdicts(queries: Sequence[Query], name: str, tell: Callable[[str], None]) -> list[Verdict]:
    if name.partition(":")[0] != "llm":
        return await _judged(judge_named(name), queries, tell)
    from aiflow_jupyter.tiers.configured import ConfiguredRouter  # noqa: PLC0415 - providers are loaded when asked

    router = ConfiguredRouter()
    try:
        judge = judge_named(name, source=router, deadline=LLM_DEADLINE)
        tell(f"{name} is asked once before it is measured, as its model may have to be loaded")
        return await _judged(judge, queries, tell)
    finally:
        await router.aclose()


async def _judged(
    judge: EmbeddedJudge | LlmJudge, queries: Sequence[Query], tell: Callable[[str], None]
) -> list[Verdict]:
    await judge.ajudge([Message(role="user", content="Is it ready?")])  # reading the model is no query's time
    verdicts: list[Verdict] = []
    told = time.monotonic()
    for query in queries:
        if time.monotonic() - told >= TELL_EVERY:
            told = time.monotonic()
            tell(f"{len(verdicts):,} of {len(queries):,} queries are judged")
        verdicts.append(await judge.ajudge([Message(role="user", content=query.text)]))
    return verdicts


def figures(truths: Sequence[Label], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """What comes of verdicts beside the labels of a rater, both of at least one query; None where nothing is counted.

    `accuracy_interval` is Wilson's, 95 %. `even_accuracy` is the mean of the recalls: the accuracy if the labels were
    equally frequent. `curve` has HIGH recall and retention for thresholds on P(HIGH).
    """
    confusion = {truth: dict.fromkeys(LABELS, 0) for truth in LABELS}
    for truth, verdict in zip(truths, verdicts, strict=True):
        confusion[truth][verdict.label] += 1
    total = len(truths)
    right = sum(confusion[label][label] for label in LABELS)
    recalls = {label: _share(confusion[label][label], sum(confusion[label].values())) for label in LABELS}
    easier = [row for truth, row in confusion.items() if truth != "HIGH"]
    seconds = sorted(verdict.seconds for verdict in verdicts)
    counted = [recall for recall in recalls.values() if recall is not None]
    return {
        "queries": total,
        "accuracy": right / total,
        "accuracy_interval": interval(right, total),
        "even_accuracy": sum(counted) / len(counted),
        "macro_f1": sum(_f1(confusion, label) for label in LABELS) / len(LABELS),
        "retention": _share(
            sum(row["LOW"] + row["MEDIUM"] for row in easier), sum(sum(row.values()) for row in easier)
        ),
        "high_recall": recalls["HIGH"],
        "confusion": confusion,
        "p50_ms": _quantile(seconds, 0.5) * 1e3,
        "p95_ms": _quantile(seconds, 0.95) * 1e3,
        "curve": [_at(threshold, truths, verdicts) for threshold in THRESHOLDS],
    }


def interval(right: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z = 1.96
    share, weight = right / total, z * z / total
    middle = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / total + weight / (4 * total)) / (1 + weight)
    return middle - half, middle + half


def table(report: dict[str, Any]) -> list[str]:
    """The figures as lines of text."""
    low, high = report["accuracy_interval"]
    queries = "1 query" if report["queries"] == 1 else f"{report['queries']:,} queries"
    rows = [
        f"{report['judge']} on {report['data']}: {queries}",
        f"accuracy     {report['accuracy']:.1%} ({low:.1%} to {high:.1%})",
        f"             {report['even_accuracy']:.1%} where the labels are equally frequent",
        f"macro F1     {report['macro_f1']:.3f}",
        f"HIGH recall  {_percent(report['high_recall'])} of the HIGH queries are called HIGH",
        f"retention    {_percent(report['retention'])} of the others are not, so that they need no cloud",
        f"time         p50 {report['p50_ms']:.2f} ms, p95 {report['p95_ms']:.2f} ms",
        "",
        f"{'rated':>8}  " + "".join(f"{label:>8}" for label in LABELS) + "   as judged",
    ]
    for truth, row in report["confusion"].items():
        rows.append(f"{truth:>8}  " + "".join(f"{row[label]:>8}" for label in LABELS))
    rows += ["", "The same two shares if a query were called HIGH from this P(HIGH) on, the setting `threshold`:"]
    rows.append(f"{'P(HIGH)':>8}  {'HIGH recall':>12}{'retention':>12}")
    for point in report["curve"]:
        if point["threshold"] in SHOWN:
            shares = f"{_percent(point['high_recall']):>12}{_percent(point['retention']):>12}"
            rows.append(f"{point['threshold']:>8.2f}  {shares}")
    return rows


def _f1(confusion: dict[Label, dict[Label, int]], label: Label) -> float:
    hits = confusion[label][label]
    said = sum(row[label] for row in confusion.values())
    meant = sum(confusion[label].values())
    return 2 * hits / (said + meant) if said + meant else 0.0


def _at(threshold: float, truths: Sequence[Label], verdicts: Sequence[Verdict]) -> dict[str, float | None]:
    called = [verdict.probabilities["HIGH"] >= threshold for verdict in verdicts]
    high = [call for call, truth in zip(called, truths, strict=True) if truth == "HIGH"]
    easier = [call for call, truth in zip(called, truths, strict=True) if truth != "HIGH"]
    return {
        "threshold": threshold,
        "high_recall": _share(sum(high), len(high)),
        "retention": _share(len(easier) - sum(easier), len(easier)),
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.1%}"
