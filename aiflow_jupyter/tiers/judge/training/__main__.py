"""Cross-validates, teaches on all queries, and writes the model file and its report."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aiflow_jupyter.tiers.judge.classifier import MODEL, Linear
from aiflow_jupyter.tiers.judge.training import linear, report
from aiflow_jupyter.tiers.judge.training.data import Queries, folds

Array = npt.NDArray[Any]
FOLDS: Final = 4
SHARE: Final = 0.8
"""The encoder's share of the mix. On these queries anything from 0.5 to 1 does the same within the interval; the linear
half stays for texts unlike these, where it errs in other places."""
SHARPNESSES: Final = (0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m aiflow_jupyter.tiers.judge.training", description=__doc__)
    parser.add_argument("--weights", type=Path, required=True, help="folder with MiniLM's safetensors and tokenizer")
    parser.add_argument("--out", type=Path, default=MODEL, help="the model file")
    parser.add_argument("--only", choices=["check", "model"], help="only cross-validate, or only teach on all queries")
    options = parser.parse_args()
    from aiflow_jupyter.tiers.judge.training.encoder import Lower, start  # noqa: PLC0415 - torch

    queries = Queries()
    lower = Lower(start(options.weights), queries.texts)
    place = Path(__file__).with_name("report.json")
    if options.only != "model":
        checked = _check(queries, lower)
        place.write_text(json.dumps(checked, indent=1) + "\n", "utf-8")
        place.with_name("REPORT.md").write_text(report.words(checked), "utf-8")
    if options.only != "check":
        mix = json.loads(place.read_text("utf-8"))["mix"]
        rows = np.arange(len(queries.texts))
        encoder = {**lower.arrays, **lower.teach(rows, queries.labels, queries.weights, seed=0).arrays()}
        write(options.out, linear.teach(queries.texts, queries.labels, queries.weights), encoder, mix)


def _check(queries: Queries, lower: Any) -> dict[str, Any]:
    """The figures of out-of-fold probabilities: of both halves, and of their mix, sharpened as the other folds say."""
    fold = folds(queries.texts, FOLDS)
    encoder, flat, mixed = (np.zeros((len(fold), 3)) for _ in range(3))
    for number in range(FOLDS):
        rest, held = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        encoder[held] = lower.teach(rest, queries.labels, queries.weights, seed=number).probabilities(held)
        arrays = linear.teach([queries.texts[row] for row in rest], queries.labels[rest], queries.weights[rest])
        flat[held] = [Linear(arrays)(queries.texts[row])[0] for row in held]
        print(f"fold {number + 1} of {FOLDS}", flush=True)  # noqa: T201
    for number in range(FOLDS):
        rest, held = fold != number, fold == number
        mixed[held] = blend(encoder[held], flat[held], sharpness(encoder[rest], flat[rest], queries, rest))
    mix = SHARE, sharpness(encoder, flat, queries, np.ones(len(fold), bool))
    figures = {
        name: report.figures(queries, probabilities)
        for name, probabilities in (("linear", flat), ("encoder", encoder), ("mix", mixed))
    }
    return {"folds": FOLDS, "queries": len(fold), "mix": mix, "judges": figures}


def sharpness(encoder: Array, flat: Array, queries: Queries, rows: Array) -> float:
    """The power that makes the mix's weighted likelihood on these rows highest."""
    labels, weights = queries.labels[rows], queries.weights[rows]

    def loss(power: float) -> float:
        said = blend(encoder, flat, power)[np.arange(len(labels)), labels]
        return float(-(weights * np.log(np.maximum(said, 1e-9))).sum() / weights.sum())

    return min(SHARPNESSES, key=loss)


def blend(encoder: Array, flat: Array, power: float) -> Array:
    """What the classifier makes of both halves' probabilities."""
    raised = (SHARE * encoder + (1 - SHARE) * flat) ** power
    return np.asarray(raised / raised.sum(1, keepdims=True))


def write(path: Path, flat: Mapping[str, Array], encoder: Mapping[str, Array], mix: tuple[float, float]) -> None:
    """The model file: what is in 32 bits is kept in 16, but for the linear half's few."""
    arrays: dict[str, Any] = {f"linear.{name}": array for name, array in flat.items()}
    for name, array in encoder.items():
        arrays[f"encoder.{name}"] = array.astype(np.float16) if array.dtype == np.float32 else array
    np.savez_compressed(path, mix=np.array(mix, np.float32), **arrays)


if __name__ == "__main__":
    main()
