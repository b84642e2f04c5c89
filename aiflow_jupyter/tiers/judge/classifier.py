"""The default judge: a small encoder and a linear model side by side, in numpy alone.

The encoder is the lower half of a sentence encoder (three layers of MiniLM, the third taught for this), the linear
model reads hashed n-grams and a few counts; the verdict is the mean of what both say, calibrated. `training/` makes
the model file, and its report says how well it does on what it was not taught.

The file holds numbers and nothing else: it is read with `allow_pickle=False`, so loading it runs no code.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from aiflow_jupyter.errors import ConfigError, words
from aiflow_jupyter.tiers.judge import features
from aiflow_jupyter.tiers.judge.conversation import Gist
from aiflow_jupyter.tiers.judge.encoder import Encoder
from aiflow_jupyter.tiers.judge.verdict import EmbeddedJudge, Rule
from aiflow_jupyter.tiers.terms import LABELS, Label

MODEL: Final = Path(__file__).with_name("model.npz")
Floats = npt.NDArray[np.floating[Any]]


class Linear:
    """A softmax over hashed n-grams and counts.

    Args:
        arrays: `ngrams` (buckets x 3, weighted by rarity), `rarity` (buckets), `counts` (columns x 3), `mean` and
            `spread` of the counts, and `bias`.
    """

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self._ngrams, self._rarity, self.counts, self._mean, self._spread, self._bias = (
            arrays[name].astype(np.float32) for name in ("ngrams", "rarity", "counts", "mean", "spread", "bias")
        )

    def __call__(self, text: str) -> tuple[Floats, Floats]:
        """The probabilities for a text, and how far each count is from the mean, in standard deviations."""
        buckets, weights = features.ngrams(text)
        weights = weights * self._rarity[buckets]
        norm = float(np.sqrt((weights**2).sum())) or 1.0
        z = (features.counts(text) - self._mean) / self._spread
        return softmax(weights / norm @ self._ngrams[buckets] + z @ self.counts + self._bias), z


class ClassifierJudge(EmbeddedJudge):
    """The trained judge; its model file is read at the first verdict, once.

    Args:
        rule: how probabilities become a label.
        model: the model file.
    """

    name = "classifier"

    def __init__(self, rule: Rule | None = None, *, model: Path = MODEL) -> None:
        super().__init__(rule)
        self._path = model
        self._lock = threading.Lock()
        self._model: _Model | None = None

    def weigh(self, question: Gist) -> tuple[Mapping[Label, float], str]:
        """See `EmbeddedJudge`.

        Raises:
            ConfigError: the model file is missing or damaged.
        """
        if not question.text or question.courtesy:
            return {"LOW": 1.0, "MEDIUM": 0.0, "HIGH": 0.0}, "it asks for nothing"
        return self.load().weigh(question.text)

    def load(self) -> _Model:
        """Read the model file now, if it was not read before."""
        with self._lock:
            if self._model is None:
                self._model = _read(self._path)
            return self._model


class _Model:
    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self._linear = Linear(_part(arrays, "linear."))
        self._encoder = Encoder(_part(arrays, "encoder."))
        self._share, self._sharpness = (float(number) for number in arrays["mix"])

    def weigh(self, text: str) -> tuple[Mapping[Label, float], str]:
        linear, z = self._linear(text)
        mixed = self._share * self._encoder(text) + (1 - self._share) * linear
        probabilities = softmax(self._sharpness * np.log(np.maximum(mixed, 1e-9)))
        label = int(probabilities.argmax())
        pull = np.where(z > 0, z * (self._linear.counts[:, label] - self._linear.counts.mean(1)), 0)
        names = [*features.COUNTS, "is long", "has long words"]
        cues = [names[column] for column in np.argsort(-pull)[:2] if pull[column] > 0.05]
        why = f"it {' and '.join(cues)}" if cues else "by its wording as a whole"
        return dict(zip(LABELS, probabilities.tolist(), strict=True)), why


def softmax(values: Floats) -> Floats:
    """Numbers that sum to 1, in the order and the ratio of exponentials."""
    raised = np.exp((values - values.max()).astype(np.float64))
    return np.asarray(raised / raised.sum())


def _read(path: Path) -> _Model:
    """The model of a file.

    Raises:
        ConfigError: it is missing or is none.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return _Model({name: file[name] for name in file.files})
    except (OSError, ValueError, TypeError, AttributeError, LookupError, EOFError, BadZipFile, zlib.error) as error:
        raise ConfigError(
            f"the judge's model file {path} can't be read: {words(error)}",
            code="AF726",
            hint="Install the package again, or choose another judge: rules, fixed, llm.",
        ) from error


def _part(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
