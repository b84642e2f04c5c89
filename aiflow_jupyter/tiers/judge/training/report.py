"""What the cross-validation found, as figures and as a page to read."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aiflow_jupyter.tiers.judge.training.data import Queries
from aiflow_jupyter.tiers.terms import LABELS

Array = npt.NDArray[Any]
DRAWS: Final = 1_000


def figures(queries: Queries, probabilities: Array) -> dict[str, Any]:
    """Every figure of out-of-fold probabilities; `written` is the same of the sources whose style tells no label."""
    return {
        "all": _figures(queries.labels, probabilities),
        "written": _figures(queries.labels[queries.written], probabilities[queries.written]),
    }


def _figures(labels: Array, probabilities: Array) -> dict[str, Any]:
    said = probabilities.argmax(1)
    confusion = np.array(
        [[int(((labels == truth) & (said == label)).sum()) for label in range(3)] for truth in range(3)]
    )
    hits = confusion.diagonal()
    chance = np.random.default_rng(0)
    drawn = [chance.multinomial(row.sum(), row / row.sum(), DRAWS)[:, place] for place, row in enumerate(confusion)]
    even = np.mean([hit / row.sum() for hit, row in zip(drawn, confusion, strict=True)], 0)
    return {
        "queries": len(labels),
        "accuracy": float(hits.sum() / len(labels)),
        "even_accuracy": float(np.mean(hits / confusion.sum(1))),
        "even_interval": [float(edge) for edge in np.quantile(even, (0.025, 0.975))],
        "macro_f1": float(np.mean(2 * hits / (confusion.sum(0) + confusion.sum(1)))),
        "confusion": confusion.tolist(),
        "calibration": _calibration(labels, probabilities),
        "calibration_error": _expected_error(labels, probabilities),
        "curve": [_at(threshold / 20, labels, probabilities[:, 2]) for threshold in range(1, 20)],
    }


def _bins(probabilities: Array) -> Array:
    return np.asarray(np.minimum((probabilities.max(1) * 10).astype(int), 9))


def _even(labels: Array) -> Array:
    """Weights that make the labels equally frequent, which is what the probabilities are meant for."""
    return np.asarray(1 / np.bincount(labels, minlength=3)[labels])


def _calibration(labels: Array, probabilities: Array) -> list[dict[str, float]]:
    place, right, weight = _bins(probabilities), probabilities.argmax(1) == labels, _even(labels)
    return [
        {
            "said": float(np.average(probabilities.max(1)[place == number], weights=weight[place == number])),
            "right": float(np.average(right[place == number], weights=weight[place == number])),
            "queries": int((place == number).sum()),
        }
        for number in range(10)
        if (place == number).any()
    ]


def _expected_error(labels: Array, probabilities: Array) -> float:
    place, weight = _bins(probabilities), _even(labels)
    gap = (probabilities.argmax(1) == labels) - probabilities.max(1)
    return float(sum(abs((gap * weight)[place == number].sum()) for number in range(10)) / weight.sum())


def _at(threshold: float, labels: Array, high: Array) -> dict[str, float]:
    return {
        "threshold": threshold,
        "high_recall": float((high[labels == 2] >= threshold).mean()),
        "retention": float((high[labels != 2] < threshold).mean()),
    }


def words(checked: dict[str, Any]) -> str:
    """The page."""
    share, sharpness = checked["mix"]
    rows = [
        "# The classifier's report",
        "",
        f"{checked['queries']} queries, {checked['folds']} folds, near-duplicates in one fold; the mix is sharpened as",
        "the other folds say. *Even* is the mean of the three recalls: the accuracy where the labels are",
        "equally frequent; its interval is the bootstrap's, 95 %. *Written* leaves out stems of examinations and",
        "study titles, whose style gives their label away. Another rater's labels agree less with these than these do",
        "with one another: nothing here says how well the judge does on those.",
        "",
        "| judge | queries | accuracy | even | interval | macro F1 | calibration error |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, parts in checked["judges"].items():
        for part, found in parts.items():
            low, high = found["even_interval"]
            rows.append(
                f"| {name} | {part} | {found['accuracy']:.1%} | {found['even_accuracy']:.1%} | {low:.1%} to {high:.1%} "
                f"| {found['macro_f1']:.3f} | {found['calibration_error']:.3f} |"
            )
    rows += ["", f"The mix takes {share:.0%} of the encoder and is raised to {sharpness:g}.", ""]
    for part, found in checked["judges"]["mix"].items():
        rows += [f"## The mix, {part}", "", "| rated | " + " | ".join(LABELS) + " |", "|---|---|---|---|"]
        for label, counted in zip(LABELS, found["confusion"], strict=True):
            rows.append(f"| {label} | " + " | ".join(map(str, counted)) + " |")
        rows += ["", "| says | is right | queries |", "|---|---|---|"]
        rows += [f"| {row['said']:.0%} | {row['right']:.0%} | {row['queries']} |" for row in found["calibration"]]
        rows += ["", "| P(HIGH) from | HIGH recall | retention |", "|---|---|---|"]
        rows += [f"| {r['threshold']:.2f} | {r['high_recall']:.1%} | {r['retention']:.1%} |" for r in found["curve"]]
        rows.append("")
    return "\n".join(rows)
