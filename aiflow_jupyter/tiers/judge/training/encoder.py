"""Teaches the encoder's last layers, in torch; what comes out are the arrays that `judge.encoder` takes."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aiflow_jupyter.tiers.judge.encoder import HEAD, HEADS, TAIL, TOKENS
from aiflow_jupyter.tiers.judge.wordpiece import WordPiece

torch: Any = import_module("torch")
functional: Any = torch.nn.functional
Array = npt.NDArray[Any]

LAYERS: Final = 3
TAUGHT: Final = 2
"""How many layers, from the top, are taught; what is below is computed once."""

EPOCHS: Final = 3
BATCH: Final = 32
RATE: Final = 2e-4
HEAD_RATE: Final = 3e-3
DROPOUT: Final = 0.1
SMOOTHING: Final = 0.1
_PARTS: Final = {
    "out": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm1": "attention.output.LayerNorm",
    "norm2": "output.LayerNorm",
}


def start(folder: Path) -> dict[str, Array]:
    """MiniLM's lower half, as `judge.encoder` names it, from its `model.safetensors` and `tokenizer.json`."""
    found = _safetensors(folder / "model.safetensors")
    pieces: dict[str, int] = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    words = found["embeddings.word_embeddings.weight"]
    scale = np.abs(words).max(1, keepdims=True) / 127
    arrays: dict[str, Array] = {
        "vocabulary": np.frombuffer("\n".join(sorted(pieces, key=lambda piece: pieces[piece])).encode(), np.uint8),
        "words": np.round(words / scale).astype(np.int8),
        "scale": scale.astype(np.float16),
        "positions": found["embeddings.position_embeddings.weight"][:TOKENS]
        + found["embeddings.token_type_embeddings.weight"][0],
        "norm": np.stack([found[f"embeddings.LayerNorm.{kind}"] for kind in ("weight", "bias")]),
    }
    for number in range(LAYERS):
        place = f"encoder.layer.{number}."
        parts = [_with_bias(found, f"{place}attention.self.{name}") for name in ("query", "key", "value")]
        arrays[f"{number}.qkv"] = np.concatenate(parts, 1)
        for name, part in _PARTS.items():
            if "norm" in name:
                arrays[f"{number}.{name}"] = np.stack([found[f"{place}{part}.{kind}"] for kind in ("weight", "bias")])
            else:
                arrays[f"{number}.{name}"] = _with_bias(found, place + part)
    return arrays


class Lower:
    """The part that is not taught: what it makes of each text.

    Args:
        arrays: what `start` gives.
        texts: the texts.
    """

    def __init__(self, arrays: Mapping[str, Array], texts: Sequence[str]) -> None:
        self.arrays = arrays
        vocabulary = arrays["vocabulary"].tobytes().decode().split("\n")
        pieces = WordPiece(vocabulary)
        words = torch.tensor(arrays["words"].astype(np.float32) * arrays["scale"].astype(np.float32))
        positions = torch.tensor(arrays["positions"].astype(np.float32))
        layers = [_tensors(arrays, number) for number in range(LAYERS - TAUGHT)]
        norm = torch.tensor(arrays["norm"])
        self.texts: list[Any] = []
        with torch.no_grad():
            for text in texts:
                ids = pieces.encode(text)
                ids = ids if len(ids) <= HEAD + TAIL else ids[:HEAD] + ids[-TAIL:]
                ids = [vocabulary.index("[CLS]"), *ids, vocabulary.index("[SEP]")]
                x = _norm(words[ids] + positions[: len(ids)], norm)[None]
                for layer in layers:
                    x = _layer(x, layer, torch.zeros(1, 1, 1, 1), 0.0)
                self.texts.append(x[0].half())

    def teach(self, rows: Array, labels: Array, weights: Array, seed: int) -> Upper:
        """The upper part, taught on these rows."""
        torch.manual_seed(seed)
        chance = np.random.default_rng(seed)
        upper = Upper(self)
        optimiser = torch.optim.AdamW(
            [{"params": upper.parameters(), "lr": RATE}, {"params": [upper.head], "lr": HEAD_RATE}], weight_decay=0.02
        )
        steps = EPOCHS * math.ceil(len(rows) / BATCH)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: min((step + 1) / (0.1 * steps), max(0.0, (steps - step) / (0.9 * steps)))
        )
        for _ in range(EPOCHS):
            for batch in _batches(rows, self.texts, chance):
                scores = upper.scores(batch, DROPOUT)
                losses = functional.cross_entropy(
                    scores, torch.tensor(labels[batch]), label_smoothing=SMOOTHING, reduction="none"
                )
                weight = torch.tensor(weights[batch], dtype=torch.float32)
                optimiser.zero_grad()
                ((losses * weight).sum() / weight.sum()).backward()
                optimiser.step()
                schedule.step()
        return upper


class Upper:
    """The layers that are taught, and the head."""

    def __init__(self, lower: Lower) -> None:
        self._texts = lower.texts
        self.layers = {number: _tensors(lower.arrays, number) for number in range(LAYERS - TAUGHT, LAYERS)}
        width = lower.arrays["norm"].shape[1]
        self.head = torch.cat([torch.randn(width, 3) * 0.02, torch.zeros(1, 3)])
        for tensor in (self.head, *self.parameters()):
            tensor.requires_grad_()

    def parameters(self) -> list[Any]:
        """The tensors of the layers."""
        return [tensor for layer in self.layers.values() for tensor in layer.values()]

    def scores(self, rows: Array, dropout: float = 0.0) -> Any:
        """What the head says of each of these texts, before the softmax."""
        texts = [self._texts[row].float() for row in rows]
        x = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
        there = torch.zeros(x.shape[:2])
        for number, text in enumerate(texts):
            there[number, : len(text)] = 1
        x = _dropped(x, dropout)
        for layer in self.layers.values():
            x = _layer(x, layer, (1 - there)[:, None, None] * -1e4, dropout)
        mean = (x * there[..., None]).sum(1) / there.sum(1, keepdim=True)
        return _linear(_dropped(mean, dropout), self.head)

    def probabilities(self, rows: Array) -> Array:
        """The probabilities of the labels for these texts."""
        with torch.no_grad():
            parts = [self.scores(rows[begin : begin + 64]).softmax(-1).numpy() for begin in range(0, len(rows), 64)]
        return np.concatenate(parts)

    def arrays(self) -> dict[str, Array]:
        """The taught arrays, as `judge.encoder` names them."""
        taught = {f"{n}.{name}": w.detach().numpy() for n, layer in self.layers.items() for name, w in layer.items()}
        return {**taught, "head": self.head.detach().numpy()}


def _batches(rows: Array, texts: Sequence[Any], chance: np.random.Generator) -> Iterator[Array]:
    """The rows in a new order, texts of like length together, so that little is padded."""
    order = chance.permutation(rows)
    batches: list[Array] = []
    for begin in range(0, len(order), BATCH * 16):
        near = np.array(sorted(order[begin : begin + BATCH * 16], key=lambda row: len(texts[row])))
        batches += [near[first : first + BATCH] for first in range(0, len(near), BATCH)]
    yield from (batches[number] for number in chance.permutation(len(batches)))


def _layer(x: Any, weights: Mapping[str, Any], mask: Any, dropout: float) -> Any:
    many, tokens, width = x.shape
    parts = _linear(x, weights["qkv"]).view(many, tokens, 3, HEADS, width // HEADS)
    queries, keys, values = parts.permute(2, 0, 3, 1, 4)
    attention = (queries @ keys.transpose(2, 3) / math.sqrt(width // HEADS) + mask).softmax(-1)
    mixed = (_dropped(attention, dropout) @ values).transpose(1, 2).reshape(many, tokens, width)
    x = _norm(x + _dropped(_linear(mixed, weights["out"]), dropout), weights["norm1"])
    inner = functional.gelu(_linear(x, weights["up"]), approximate="tanh")
    return _norm(x + _dropped(_linear(inner, weights["down"]), dropout), weights["norm2"])


def _linear(x: Any, weights: Any) -> Any:
    return x @ weights[:-1] + weights[-1]


def _norm(x: Any, weights: Any) -> Any:
    return functional.layer_norm(x, x.shape[-1:], weights[0], weights[1], 1e-12)


def _dropped(x: Any, dropout: float) -> Any:
    return functional.dropout(x, dropout) if dropout else x


def _tensors(arrays: Mapping[str, Array], number: int) -> dict[str, Any]:
    prefix = f"{number}."
    return {n.removeprefix(prefix): torch.tensor(array) for n, array in arrays.items() if n.startswith(prefix)}


def _with_bias(found: Mapping[str, Array], name: str) -> Array:
    return np.concatenate([found[f"{name}.weight"].T, found[f"{name}.bias"][None]])


def _safetensors(path: Path) -> dict[str, Array]:
    """The 32-bit tensors of a safetensors file: a length, a JSON header, then the bytes."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header: dict[str, Any] = json.loads(raw[8 : 8 + size])
    body = memoryview(raw)[8 + size :]
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], np.float32).reshape(entry["shape"]).copy()
        for name, entry in header.items()
        if name != "__metadata__" and entry["dtype"] == "F32"
    }
