"""What a setting may be: the kinds of values in `aiflow.toml`, and what may be said of any model."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

import idna
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from aiflow_jupyter.tiers.terms import Described, Price, TierName

KEYS: Final = ("afr_", "sk_", "sk-", "aiflow-")
"""How keys begin: whoever puts one where its variable's name belongs is told so, without the key."""

_VARIABLE = re.compile(r"[A-Za-z_]\w{0,63}")


def _a_variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value) or value.lower().startswith(KEYS) or _like_a_key(value):
        raise ValueError("is the name of an environment variable; a key itself never stands here")
    return value


def _like_a_key(value: str) -> bool:
    """Whether a text looks like a key rather than a name: long, one word, of digits and letters of both cases."""
    kinds = (str.isdigit, str.islower, str.isupper)
    return len(value) > 24 and re.fullmatch(r"[\w-]+", value) is not None and all(any(map(k, value)) for k in kinds)


def _a_file(value: Path) -> Path:
    if _like_a_key(value.name):
        raise ValueError("is the name of a file; a key itself never stands here")
    return value


def _a_name(value: str) -> str:
    if not value.isprintable():
        raise ValueError("is a name in one line, of letters that can be seen")
    return value


def an_address(value: str) -> str:
    """An address, checked: the validator of `Address`."""
    try:
        parts = urlsplit(value)
        parts.port  # noqa: B018 - it is read when asked for
        if parts.hostname and (not parts.hostname.isascii() or "xn--" in parts.hostname):
            idna.encode(parts.hostname)
    except ValueError:
        raise ValueError("is no address") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("is an address that begins with http:// or https://")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError("is an address alone, without a name, a key or anything behind ? or #")
    return value


def _a_currency(value: str) -> str:
    if not re.fullmatch("[A-Z]{3}", value):
        raise ValueError('is the three letters of a currency, such as "USD"')
    return value


def _each_once(value: Sequence[Any]) -> Sequence[Any]:
    if len(set(value)) < len(value):
        raise ValueError("names each tier once")
    return value


Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600, strict=True)]
KeyFile = Annotated[Path, AfterValidator(_a_file)]
Variable = Annotated[str, AfterValidator(_a_variable)]
Address = Annotated[str, AfterValidator(an_address)]
Tokens = Annotated[int, Field(ge=1, le=100_000_000, strict=True)]
Money = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False, strict=True)]
Currency = Annotated[str, AfterValidator(_a_currency)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, strict=True)]
Name = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_a_name)]
Takes = frozenset[Literal["images", "tools"]]
Chain = Annotated[tuple[TierName, ...], Field(min_length=1), AfterValidator(_each_once)]


class Section(BaseModel):
    """A section of the file: settings that are not known are mistakes."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Other(Section):
    """What is said of another model of a tier, which a question may name; what is not said is as for its own.

    Attributes:
        window, max_output, price_in, price_out, takes: see `Model`.
    """

    window: Tokens | None = None
    max_output: Tokens | None = None
    price_in: Money | None = None
    price_out: Money | None = None
    takes: Takes | None = None

    @model_validator(mode="after")
    def _both_prices(self) -> Self:
        if (self.price_in is None) != (self.price_out is None):
            raise ValueError("has one of price_in and price_out; a price is both")
        return self

    def described(self, currency: str) -> Described:
        """The same as the router takes it."""
        price = None
        if self.price_in is not None and self.price_out is not None:
            price = Price(self.price_in, self.price_out, currency)
        return Described(self.window, self.max_output, price, self.takes)


class Model(Section):
    """What is said of the model of any tier.

    Attributes:
        model: its name.
        window: tokens of its context.
        max_output: tokens that stay free for an answer where a request does not say; with a price, also the most that
            is asked for.
        price_in, price_out: what a million tokens cost, read and written.
        currency: of these prices.
        takes: what it can do with beyond text: `images`, `tools`.
        models: the tier's models by their names; what is said there of its own goes before what is said here, as a
            project may have chosen it.
    """

    model: Name | None = None
    window: Tokens | None = None
    max_output: Tokens | None = None
    price_in: Money | None = None
    price_out: Money | None = None
    currency: Currency = "USD"
    takes: Takes = frozenset({"tools"})
    models: Annotated[dict[Name, Other], Field(max_length=1_000)] = {}
    _priced: bool = True

    @model_validator(mode="before")
    @classmethod
    def _as_described(cls, said: Any) -> Any:
        models, model = (said.get("models"), said.get("model")) if isinstance(said, dict) else (None, None)
        own = models.get(model) if isinstance(models, dict) and isinstance(model, str) else None
        return said | own if isinstance(own, dict) else said

    @property
    def price(self) -> Price:
        """What its tokens cost, nothing where nothing is said."""
        free = not (self.price_in or self.price_out)
        return Price(self.price_in or 0.0, self.price_out or 0.0, self.currency, known=self._priced or free)

    def of_another(self, said: Collection[str]) -> Self:
        """The section for another model than the one that it tells of, but for the settings that are said of that."""
        fields = type(self).model_fields
        section = self.model_copy(
            update={name: fields[name].default for name in ("window", "max_output") if name not in said}
        )
        section._priced = "price_in" in said  # noqa: SLF001 - its own
        return section
