"""WordPiece as BERT's uncased vocabularies take it (Devlin et al., 2019), greedy and longest first, without a library.

A text of any kind gives identifiers: what the vocabulary does not hold becomes its unknown token.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

import regex

UNKNOWN: Final = "[UNK]"
LONGEST_WORD: Final = 100
_WORDS: Final = regex.compile(r"[\p{Han}\p{P}$+<=>^`|~]|[^\s\p{Han}\p{P}$+<=>^`|~]+")
_UNSEEN: Final = regex.compile(r"[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Cn}\ufffd&&[^\t\n\r]]", regex.V1)


class WordPiece:
    """Splits texts into the identifiers of a vocabulary.

    Args:
        vocabulary: the pieces in the order of their identifiers; one that goes on within a word begins with `##`.
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._ids = {piece: number for number, piece in enumerate(vocabulary)}
        self._unknown = self._ids[UNKNOWN]

    def encode(self, text: str) -> list[int]:
        """The identifiers of a text, without the ones that mark its beginning and end."""
        return [piece for word in _WORDS.findall(_plain(text)) for piece in self._pieces(word)]

    def _pieces(self, word: str) -> list[int]:
        if len(word) > LONGEST_WORD:
            return [self._unknown]
        found: list[int] = []
        start = 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = self._ids.get(("##" if start else "") + word[start:end])
                if piece is not None:
                    break
            else:
                return [self._unknown]
            found.append(piece)
            start = end
        return found


def _plain(text: str) -> str:
    """Lower case, without accents and without characters that nobody sees."""
    decomposed = unicodedata.normalize("NFD", _UNSEEN.sub("", text).lower())
    return "".join(letter for letter in decomposed if unicodedata.category(letter) != "Mn")
