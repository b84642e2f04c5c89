"""A small transformer encoder (BERT's, with MiniLM's sizes) run by numpy, and a softmax over the mean of its output.

Everything is shaped (tokens, 384): one text at a time, so nothing is padded. A text is cut to `TOKENS`, its beginning
and its end, which bounds the time that any text takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aiflow_jupyter.tiers.judge.wordpiece import WordPiece

Floats = npt.NDArray[np.float32]

HEADS: Final = 12
HEAD: Final = 40
TAIL: Final = 22
"""How many tokens of a longer text's beginning and end are read."""

TOKENS: Final = HEAD + TAIL + 2

_DEEP: Final = 384
_WIDE: Final = 32
_ROWS: Final = 20
"""Products are taken in blocks: BLAS does so small ones in the calling thread, without rearranging the weights first.
In one piece they take twice the time, and many times that where other processes keep its threads waiting."""


class Encoder:
    """Says how likely each label is for a text.

    Args:
        arrays: `vocabulary` (UTF-8, a piece a line), `words` (int8) with `scale` (per row), `positions`, `norm`, for
            each layer `N.qkv`, `N.out`, `N.up`, `N.down` (weights, the bias as last row), `N.norm1`, `N.norm2`, and
            `head` likewise.
    """

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        vocabulary = arrays["vocabulary"].tobytes().decode().split("\n")
        self._pieces = WordPiece(vocabulary)
        self._begin, self._end = vocabulary.index("[CLS]"), vocabulary.index("[SEP]")
        self._words, self._scale = arrays["words"], arrays["scale"].astype(np.float32)
        wide = {name: array.astype(np.float32) for name, array in arrays.items() if array.dtype == np.float16}
        self._positions, self._norm, self._head = wide["positions"], wide["norm"], wide["head"]
        count = sum(name.endswith(".qkv") for name in wide)
        self._layers = [_Layer(wide, f"{number}.") for number in range(count)]

    def __call__(self, text: str) -> Floats:
        """The probabilities of the labels."""
        pieces = self._pieces.encode(text)
        if len(pieces) > HEAD + TAIL:
            pieces = pieces[:HEAD] + pieces[-TAIL:]
        ids = [self._begin, *pieces, self._end]
        x = _norm(self._words[ids] * self._scale[ids] + self._positions[: len(ids)], self._norm)
        for layer in self._layers:
            x = layer(x)
        scores = x.mean(0) @ self._head[:-1] + self._head[-1]
        raised = np.exp(scores - scores.max())
        return np.asarray(raised / raised.sum())


class _Layer:
    def __init__(self, arrays: Mapping[str, Floats], prefix: str) -> None:
        self._qkv, self._out, self._up, self._down = (
            _Linear(arrays[prefix + name]) for name in ("qkv", "out", "up", "down")
        )
        self._norm1, self._norm2 = arrays[prefix + "norm1"], arrays[prefix + "norm2"]

    def __call__(self, x: Floats) -> Floats:
        tokens, width = x.shape
        queries, keys, values = self._qkv(x).reshape(tokens, 3, HEADS, -1).transpose(1, 2, 0, 3)
        scores = queries @ keys.transpose(0, 2, 1) * np.float32((width // HEADS) ** -0.5)
        attention = np.exp(scores - scores.max(-1, keepdims=True))
        attention /= attention.sum(-1, keepdims=True)
        mixed = (attention @ values).transpose(1, 0, 2).reshape(tokens, width)
        x = _norm(x + self._out(mixed), self._norm1)
        return _norm(x + self._down(_gelu(self._up(x))), self._norm2)


class _Linear:
    """A product with weights, whose last row is the bias, and which are kept in blocks of `_DEEP` x `_WIDE`."""

    def __init__(self, weights: Floats) -> None:
        self._bias: Floats = weights[-1]
        deep, wide = weights.shape[0] - 1, weights.shape[1]
        blocks = weights[:-1].reshape(deep // _DEEP, _DEEP, wide // _WIDE, _WIDE)
        self._blocks = np.ascontiguousarray(blocks.transpose(0, 2, 1, 3))

    def __call__(self, x: Floats) -> Floats:
        parts = [self._product(x[first : first + _ROWS]) for first in range(0, len(x), _ROWS)]
        product: Floats = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return product + self._bias

    def _product(self, x: Floats) -> Floats:
        deep, wide = self._blocks.shape[:2]
        split = np.ascontiguousarray(x.reshape(len(x), deep, 1, _DEEP).transpose(1, 2, 0, 3))
        summed: Floats = (split @ self._blocks).sum(0) if deep > 1 else (split @ self._blocks)[0]
        return summed.transpose(1, 0, 2).reshape(len(x), wide * _WIDE)


def _norm(x: Floats, weights: Floats) -> Floats:
    """Layer normalisation; `weights` are the gain and the bias."""
    x = x - x.mean(-1, keepdims=True)
    made: Floats = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-12)) * weights[0] + weights[1]
    return made


def _gelu(x: Floats) -> Floats:
    """The smooth rectifier, by its usual approximation with tanh."""
    made: Floats = (
        np.float32(0.5) * x * (1 + np.tanh(np.float32(0.7978845608) * (x + np.float32(0.044715) * x * x * x)))
    )
    return made
