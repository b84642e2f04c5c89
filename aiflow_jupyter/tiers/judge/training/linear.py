"""Teaches the linear half, with scikit-learn; what comes out are the arrays that `judge.classifier.Linear` takes."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aiflow_jupyter.tiers.judge import features

Array = npt.NDArray[Any]
_COUNTS_WEIGH: Final = 0.3
"""A count's weight beside the n-grams, whose vector has length 1."""


def teach(texts: Sequence[str], labels: Array, weights: Array) -> dict[str, Array]:
    """The arrays of a model taught on these texts."""
    sparse: Any = import_module("scipy.sparse")
    models: Any = import_module("sklearn.linear_model")
    found = [features.ngrams(text) for text in texts]
    ends = np.cumsum([0, *(len(buckets) for buckets, _ in found)])
    columns, values = (np.concatenate(parts) for parts in zip(*found, strict=True))
    matrix = sparse.csr_matrix((values, columns, ends), shape=(len(texts), features.BUCKETS))
    frequency = np.asarray((matrix > 0).sum(0)).ravel()
    rarity = np.log((1 + len(texts)) / (1 + frequency)) + 1
    matrix = matrix @ sparse.diags(rarity)
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(1)).ravel())
    matrix = sparse.diags(1 / np.maximum(lengths, 1e-9)) @ matrix
    counted = np.array([features.counts(text) for text in texts])
    mean, spread = counted.mean(0), counted.std(0) + 1e-6
    both = sparse.hstack([matrix, (counted - mean) / spread * _COUNTS_WEIGH]).tocsr()
    model = models.LogisticRegression(C=1.0, max_iter=500).fit(both, labels, sample_weight=weights)
    taught = model.coef_.T
    return {
        "ngrams": taught[: features.BUCKETS].astype(np.float16),
        "rarity": rarity.astype(np.float16),
        "counts": (taught[features.BUCKETS :] * _COUNTS_WEIGH).astype(np.float32),
        "mean": mean.astype(np.float32),
        "spread": spread.astype(np.float32),
        "bias": model.intercept_.astype(np.float32),
    }
