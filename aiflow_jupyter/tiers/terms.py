"""What the parts of this room tell each other: a tier that can answer, what it costs, what a request may not do."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol

from aiflow_jupyter.errors import ConfigError
from aiflow_jupyter.events import Usage
from aiflow_jupyter.runtime.source import Message, Provider

TierName = Literal["local", "hpc", "cloud"]
NAMES: Final[tuple[TierName, ...]] = ("local", "hpc", "cloud")

Floor = Literal["local", "institution", "anywhere"]
"""How far a request may go: a privacy floor that nothing overrides."""
PLACES: Final[dict[TierName, Floor]] = {"local": "local", "hpc": "institution", "cloud": "anywhere"}
REACH: Final[dict[Floor, int]] = {"local": 0, "institution": 1, "anywhere": 2}


def strictest(*floors: Floor) -> Floor:
    """The floor that goes least far, of all that hold."""
    return min(floors, key=REACH.__getitem__, default="anywhere")


def within(place: Floor, floor: Floor) -> bool:
    """Whether what has that floor may go to a place, one of `PLACES`."""
    return REACH[place] <= REACH[floor]


Label = Literal["LOW", "MEDIUM", "HIGH"]
LABELS: Final[tuple[Label, ...]] = ("LOW", "MEDIUM", "HIGH")
"""How hard a request is, as the judge says it."""
JUDGES: Final = ("classifier", "rules", *(f"fixed:{label}" for label in LABELS), *(f"llm:{name}" for name in NAMES))
"""Who can say it, as the settings name them."""
FIRST_VERDICT_S: Final = 10.0
"""Seconds that a judge's model has for its first word, as its server may have to load it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How hard a request is to answer well, as a judge says it.

    Attributes:
        label: the word that a router goes by.
        probabilities: of each label; they sum to 1.
        seconds: what judging took.
        why: the reasons, in words.
        judge: the name of the judge that said it; of the one that stepped in, where it had to.
    """

    label: Label
    probabilities: Mapping[Label, float]
    seconds: float
    why: str
    judge: str


class Judge(Protocol):
    """Says how hard a request is; one that asks a model is awaited, and asks none beyond the floor."""

    def __call__(self, messages: Sequence[Message], floor: Floor, /) -> Verdict | Awaitable[Verdict]:
        """Judge a chat, the last turn of which is the request."""
        ...


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs, in `currency` for a million tokens.

    Attributes:
        known: whether it is this model's; else it is that of another model of its tier, which is all that there is.
    """

    input: float = 0.0
    output: float = 0.0
    currency: str = "USD"
    known: bool = True

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The price of an answer."""
        return (prompt_tokens * self.input + completion_tokens * self.output) / 1e6


def amount(value: float, currency: str) -> str:
    """An amount of money, as exact as it is small: `12.35 USD`, `0.0042 USD`, `0.00002 USD`."""
    digits = 2 if value >= 1 or not value else max(4, -math.floor(math.log10(value)))
    return f"{value:.{digits}f} {currency}"


Group = Literal["tier", "model", "conversation", "notebook", "day"]
GROUPS: Final[tuple[Group, ...]] = ("tier", "model", "conversation", "notebook", "day")
"""What costs are added up by."""


@dataclass(frozen=True, slots=True)
class Described:
    """What is said of one model; None where it is as for its tier's own.

    Attributes:
        window, max_output, takes: see `Tier`.
        price: what its tokens cost, None where nobody says it.
    """

    window: int | None = None
    max_output: int | None = None
    price: Price | None = None
    takes: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Tier:
    """A named place that answers.

    Attributes:
        name: `local`, `hpc` or `cloud`.
        provider: answers its requests.
        kind: which provider that is: `embedded`, `ollama`, `openai`, `hpc`.
        model: the model that it asks for where a request names none; empty for the server's own.
        window: tokens of the model's context, None where it is not known.
        max_output: the most tokens of one answer, where a request does not say.
        price: what its tokens cost.
        takes: beyond text: `images`, `tools`.
        first_token_s: seconds without a first token, and without a word of progress, after which it has failed.
        silence_s: seconds of silence within an answer after which it has failed.
        models: what is said of other models that it has, which a request may name.
        demo: whether its model is the small one for a first look, which is trusted with no summary.
    """

    name: TierName
    provider: Provider
    kind: str
    model: str = ""
    window: int | None = None
    max_output: int = 1_024
    price: Price = Price()
    takes: frozenset[str] = frozenset()
    first_token_s: float = 60.0
    silence_s: float = 60.0
    models: Mapping[str, Described] = field(default_factory=dict)
    demo: bool = False

    @property
    def place(self) -> Floor:
        """How far a request goes that it is sent."""
        return PLACES[self.name]

    def serving(self, model: str | None) -> Tier:
        """The tier as it is where it is asked for another of its models, with that one's window, price and abilities.

        Args:
            model: None or empty for its own.
        """
        if not model or model == self.model:
            return self
        said = self.models.get(model, Described())
        price = said.price
        if price is None:
            price = replace(self.price, known=not (self.price.input or self.price.output))
        return replace(
            self,
            model=model,
            window=said.window or self.window,
            max_output=said.max_output or self.max_output,
            price=price,
            takes=self.takes if said.takes is None else said.takes,
        )


@dataclass(frozen=True, slots=True)
class Intent:
    """What an answer may cost at most, written down before it is asked for.

    Attributes:
        tier, model: who is asked.
        most: the worst case, in `currency`.
        currency: of all amounts.
        known: whether the model's price is known; where it is not, `most` holds no budget.
        conversation, notebook: what it is booked to; empty for none.
    """

    tier: TierName
    model: str
    most: float
    currency: str = "USD"
    conversation: str = ""
    notebook: str = ""
    known: bool = True


class OverBudgetError(ConfigError):
    """An answer that could go over a budget; it was not asked for."""

    code = "AF760"


class Ledger(Protocol):
    """Counts money; holds across kernels."""

    def allows(self, intent: Intent) -> None:
        """Look whether `intend` would go through, and write nothing.

        Raises:
            OverBudgetError: a budget does not allow it.
        """
        ...

    def intend(self, intent: Intent) -> str:
        """Book the worst case as spent, and give the entry's identifier.

        Raises:
            OverBudgetError: a budget does not allow it; nothing is booked.
        """
        ...

    def settle(self, entry: str, usage: Usage | None, cost: float | None, model: str = "") -> None:
        """Put what was used and what it cost (None where nobody said: then the worst case stays) in its place.

        Args:
            entry: what `intend` gave.
            usage: None where nobody said it.
            cost: in the intent's currency.
            model: who answered, where the intent could not name it.
        """
        ...

    def release(self, entry: str) -> None:
        """Nothing was used: the server was not reached or refused."""
        ...


class Counter(Protocol):
    """Counts the tokens of a chat for a tier; errs high where it estimates."""

    def tokens(self, messages: Sequence[Message], tier: Tier) -> int:
        """The tokens that these messages take in the tier's window."""
        ...


@dataclass(frozen=True, slots=True)
class Fitted:
    """A chat as it is sent to one tier.

    Attributes:
        messages: what is sent.
        tokens: how many tokens that is.
        folded: how many messages a summary stands for, 0 for none.
        note: what there is to say of that; mostly empty.
    """

    messages: tuple[Message, ...]
    tokens: int
    folded: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Misfit:
    """A chat that can't be made to fit.

    Attributes:
        tokens: the least that would have to be sent.
        why: how much too long it is, in words.
    """

    tokens: int
    why: str


class Fitter(Protocol):
    """Makes a chat fit into a tier's window."""

    def misfit(self, messages: Sequence[Message], tier: Tier, output: int) -> Misfit | None:
        """Whether a chat can't be made to fit, told without folding anything; the arguments are those of `fit`."""
        ...

    async def fit(
        self, messages: Sequence[Message], tier: Tier, output: int, floor: Floor, conversation: str = ""
    ) -> Fitted | Misfit:
        """The chat with what has to be folded folded, where it can be made to fit.

        Args:
            messages: the whole chat.
            tier: where it is to be sent.
            output: tokens that have to stay free for the answer.
            floor: how far the text may go, for a summary too.
            conversation: the stored conversation that the chat is, with which summaries are kept; empty for none.
        """
        ...
