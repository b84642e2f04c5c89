"""What a token costs on its way through a relay, beside what it costs with streamrelay, in one run.

Three processes for each variant, on loopback: a producer, a relay, a consumer. Everything is encrypted, padding and the
relay's counters are on. The variants take turns within each round, as a shared machine is not the same from one minute
to the next; ratios are made within a round, and their median is what counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import secrets
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from aiflow_jupyter.bench import certificates
from aiflow_jupyter.bench.certificates import Certificates
from aiflow_jupyter.errors import AiflowError
from aiflow_jupyter.relay import loops

PEER: Final = "streamrelay"
GOALS: Final = {
    "latency_ratio": ("<=", 0.8),
    "latency_ratio_fast": ("<=", 0.5),
    "throughput_ratio": (">=", 15.0),
    "p95_ms_200_channels": ("<=", 20.0),
}
KNEE_MS: Final = 20.0
_START: Final = 30.0

Figures = dict[str, Any]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Attributes:
        rounds: turns that every variant has.
        tokens: of the stream at 100 a second.
        skip: first tokens of it that do not count.
        burst: tokens as fast as they go.
        long_burst: the same, long enough to be steady; the peer's part of it takes most of the time.
        long_rounds: rounds of it.
        connects: times to the first token, each round.
        channels: numbers of channels with 30 tokens a second each.
        channel_s: for how long.
        channel_rounds: rounds of it.
        tls_rounds: rounds behind TLS.
    """

    rounds: int = 6
    tokens: int = 320
    skip: int = 20
    burst: int = 20_000
    long_burst: int = 300_000
    long_rounds: int = 3
    connects: int = 3
    channels: tuple[int, ...] = (1, 10, 100, 200, 500)
    channel_s: float = 4.0
    channel_rounds: int = 2
    tls_rounds: int = 3


QUICK: Final = Size(
    rounds=2,
    tokens=60,
    skip=10,
    burst=2_000,
    long_burst=5_000,
    long_rounds=1,
    connects=1,
    channels=(1, 5),
    channel_s=1.0,
    channel_rounds=1,
    tls_rounds=1,
)


def measure(*, against: str | None = None, size: Size | None = None, tell: Tell = lambda _: None) -> Figures:
    """All figures, as one JSON object.

    Args:
        against: `streamrelay` to have it measured beside.
        size: how much is measured.
        tell: told what is being done.

    Raises:
        AiflowError: what is to be compared with is not installed, or a process failed.
    """
    if against is not None and importlib.util.find_spec(against) is None:
        raise AiflowError(
            f"{against} is not installed, so there is nothing to measure beside",
            code="AF820",
            hint="pip install 'aiflow-jupyter[bench]'",
        )
    return asyncio.run(_measure(against is not None, size or Size(), tell))


async def _measure(peer: bool, size: Size, tell: Tell) -> Figures:
    kinds = ["aiflow", *(["aiflow_fast"] if loops.installed() else []), *([PEER] if peer else [])]
    load = os.getloadavg()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        made = certificates.make(Path(folder))
        results: dict[str, Results] = {}
        for line in ("plain", "tls"):
            async with AsyncExitStack() as stack:
                stages = [
                    await stack.enter_async_context(_stage(kind, made if line == "tls" else None)) for kind in kinds
                ]
                results[line] = Results()
                await _stream(stages, size, results[line], lambda text, line=line: tell(f"{line}: {text}"))  # type: ignore[misc]
                if line == "plain":
                    await _channels(stages, size, results[line], tell)
    figures: Figures = {
        "machine": {
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "load_before": round(load[0], 2),
            "load_after": round(os.getloadavg()[0], 2),
            "took_s": round(time.monotonic() - began, 1),
        },
        "versions": {name: _version(name) for name in ("websockets", "cryptography", "uvloop", PEER)},
        "size": {name: getattr(size, name) for name in Size.__slots__},
    }
    for line, found in results.items():
        figures[line] = {kind: found.of(kind) for kind in kinds}
    return figures | _ratios(results, peer=peer)


# What is measured


class Results:
    """Figures of every variant, measure and round."""

    def __init__(self) -> None:
        self.rounds: dict[str, dict[str, list[Figures]]] = defaultdict(lambda: defaultdict(list))

    def note(self, kind: str, measure: str, figures: Figures) -> None:
        """Keep what one round gave."""
        self.rounds[kind][measure].append(figures)

    def values(self, kind: str, measure: str, figure: str) -> list[float]:
        """One figure, round by round."""
        return [found[figure] for found in self.rounds[kind][measure]]

    def ratios(self, measure: str, figure: str, above: str, below: str) -> Figures:
        """The ratio of two variants: its median, and its range over the rounds."""
        pairs = zip(self.values(above, measure, figure), self.values(below, measure, figure), strict=True)
        ratios = [one / other for one, other in pairs]
        return {"median": _round(statistics.median(ratios)), "range": [_round(min(ratios)), _round(max(ratios))]}

    def of(self, kind: str) -> Figures:
        """Medians over the rounds, and ranges of what matters."""
        found: Figures = {"channels": {}}
        for measure, rounds in self.rounds[kind].items():
            medians: Figures = {name: _round(statistics.median([one[name] for one in rounds])) for name in rounds[0]}
            main = next(name for name in ("tokens_per_s", "p50") if name in medians)
            values = [one[main] for one in rounds]
            medians[f"{main}_range"] = [_round(min(values)), _round(max(values))]
            where, _, number = measure.partition(":")
            if number:
                found[where][number] = medians
            else:
                found[where] = medians
        if found["channels"]:
            found["knee"] = _knee(found["channels"])
        else:
            del found["channels"]
        return found


def _knee(channels: dict[str, Figures]) -> Figures:
    """Up to how many channels the 95th percentile stays within bounds, and the first number where it does not."""
    beyond = next((int(number) for number, found in channels.items() if found["p95"] > KNEE_MS), None)
    within = [int(number) for number in channels if beyond is None or int(number) < beyond]
    return {"p95_ms": KNEE_MS, "within": max(within, default=None), "beyond": beyond}


async def _stream(stages: list[Stage], size: Size, results: Results, tell: Tell) -> None:
    tls = stages[0].secure
    rounds = size.tls_rounds if tls else size.rounds
    for number in range(rounds):
        tell(f"one stream, round {number + 1} of {rounds}")
        for stage in _turn(stages, number):
            paced = {"mode": "pace", "rate": 100, "number": size.tokens, "skip": size.skip}
            results.note(stage.kind, "latency_ms", await stage.play(1, paced))
            delays = [await stage.play(1, {"mode": "connect", "number": 1}) for _ in range(size.connects)]
            first = sorted(delay["p50"] for delay in delays)
            results.note(stage.kind, "first_token_ms", {"p50": statistics.median(first), "max": first[-1]})
            await _burst(stage, size.burst, "burst", results)
            if stage.kind != PEER:
                await _burst(stage, size.burst, "frame_by_frame", results, frame_by_frame=True)
            if number < size.long_rounds and not tls:
                await _burst(stage, size.long_burst, "long_burst", results)


async def _burst(stage: Stage, number: int, name: str, results: Results, **options: Any) -> None:
    figures = await stage.play(1, {"mode": "burst", "number": number, **options})
    results.note(stage.kind, name, {"tokens_per_s": figures["tokens_per_s"], "frames": figures["frames"]})


async def _channels(stages: list[Stage], size: Size, results: Results, tell: Tell) -> None:
    for turn in range(size.channel_rounds):
        for count in size.channels:
            tell(f"{count} channels, round {turn + 1} of {size.channel_rounds}")
            for stage in _turn(stages, turn):
                order = {"mode": "pace", "rate": 30, "number": round(30 * size.channel_s)}
                before, began = await stage.usage(), time.monotonic()
                figures = await stage.play(count, order)
                after, took = await stage.usage(), time.monotonic() - began
                figures["relay_cpu_percent"] = round(100 * (after["cpu_s"] - before["cpu_s"]) / took, 1)
                figures["relay_rss_mb"] = after["rss_mb"]
                del figures["frames"], figures["count"]
                results.note(stage.kind, f"channels:{count}", figures)


def _turn(stages: list[Stage], number: int) -> list[Stage]:
    """The variants in an order that changes each round."""
    first = number % len(stages)
    return stages[first:] + stages[:first]


def _ratios(results: dict[str, Results], *, peer: bool) -> Figures:
    plain, tls = results["plain"], results["tls"]
    found: Figures = {}
    for name, kind in (("latency_ratio", "aiflow"), ("latency_ratio_fast", "aiflow_fast")):
        there = peer and kind in plain.rounds
        found[name] = None
        if there:
            for line, ratios in (("", plain), ("_tls", tls)):
                ratio = ratios.ratios("latency_ms", "p50", kind, PEER)
                found[f"{name}{line}"] = ratio["median"]
                found[f"{name}{line}_range"] = ratio["range"]
    if peer:
        for name, above, below in (
            ("throughput_ratio", "long_burst", "long_burst"),
            ("throughput_ratio_20k", "burst", "burst"),
            ("frame_by_frame_ratio", "frame_by_frame", "burst"),
        ):
            ours = plain.values("aiflow", above, "tokens_per_s")
            theirs = plain.values(PEER, below, "tokens_per_s")
            ratios_ = [one / other for one, other in zip(ours, theirs, strict=True)]
            found[name] = _round(statistics.median(ratios_))
            found[f"{name}_range"] = [_round(min(ratios_)), _round(max(ratios_))]
    if "channels:200" in plain.rounds["aiflow"]:
        found["p95_ms_200_channels"] = _round(statistics.median(plain.values("aiflow", "channels:200", "p95")))
    found["goals"] = {
        name: {"goal": f"{sign} {bound:g}", "met": found[name] <= bound if sign == "<=" else found[name] >= bound}
        for name, (sign, bound) in GOALS.items()
        if found.get(name) is not None
    }
    return found


# The processes


class Stage:
    """The three processes of one variant."""

    def __init__(self, kind: str, relay: Child, producer: Child, consumer: Child, facts: Figures) -> None:
        self.kind = kind
        self._relay, self._producer, self._consumer = relay, producer, consumer
        self._facts = facts
        self._url = facts["url"]
        self.secure = self._url.startswith(("https", "wss"))

    async def play(self, count: int, order: Figures) -> Figures:
        """Have tokens sent on `count` new channels; what the consumer found."""
        channels = await self._open(count)
        order = order | {"url": self._url, "channels": channels, **self._facts["order"]}
        await self._consumer.ask(order)
        await asyncio.sleep(0.3 + 0.003 * count)
        sending = asyncio.ensure_future(self._producer.ask(order))
        try:
            figures = await self._consumer.answer(120)
            await sending
        finally:
            sending.cancel()
        if figures["count"] != count * order["number"]:
            raise AiflowError(
                f"{self.kind} delivered {figures['count']} of {count * order['number']} tokens", code="AF821"
            )
        return figures

    async def usage(self) -> Figures:
        """CPU seconds and memory of the relay."""
        return await self._relay.ask({})

    async def _open(self, count: int) -> list[Figures]:
        if self.kind == PEER:
            return [{"id": secrets.token_hex(16)} for _ in range(count)]
        tls = ssl.create_default_context(cafile=self._facts["authority"]) if self.secure else False
        headers = {"Authorization": f"Bearer {self._facts['key']}"}
        channels = []
        async with httpx.AsyncClient(verify=tls, trust_env=False, headers=headers, timeout=30) as client:
            for _ in range(count):
                answer = (await client.post(f"{self._url}/channels", json={})).raise_for_status().json()
                channels.append(
                    {
                        "id": answer["channel"],
                        "producer": answer["producer"],
                        "consumer": answer["consumer"],
                        "secret": secrets.token_hex(32),
                    }
                )
        return channels


class Child:
    """A process of `relay_ends` that answers orders."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self._process = process
        self._name = name

    async def ask(self, order: Figures, seconds: float = 120) -> Figures:
        """Give an order and wait for its first answer."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            await self._process.stdin.drain()
        return await self.answer(seconds)

    async def answer(self, seconds: float) -> Figures:
        """The next answer."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise AiflowError(f"{self._name} did not answer within {seconds:g} s", code="AF821") from None
        if not line:
            raise AiflowError(f"{self._name} ended; its last words are above", code="AF821")
        answer: Figures = json.loads(line)
        return answer


@asynccontextmanager
async def child(role: str, kind: str, environment: dict[str, str]) -> AsyncIterator[Child]:
    """A process, until the block ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "aiflow_jupyter.bench.relay_ends", role, kind),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | environment,
    )
    try:
        yield Child(process, f"the {role} of {kind}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@asynccontextmanager
async def _stage(kind: str, made: Certificates | None) -> AsyncIterator[Stage]:
    environment = {loops.VARIABLE: "uvloop" if kind == "aiflow_fast" else "asyncio"}
    if made is not None:
        environment["SSL_CERT_FILE"] = str(made.authority)
    program = PEER if kind == PEER else "aiflow"
    secret = secrets.token_hex(16)
    order = {
        "port": _free_port(),
        "secret": secret,
        "certificate": str(made.certificate) if made else "",
        "key": str(made.key) if made else "",
    }
    async with AsyncExitStack() as stack:
        relay, producer, consumer = [
            await stack.enter_async_context(child(role, program, environment))
            for role in ("relay", "producer", "consumer")
        ]
        facts = await relay.ask(order, _START)
        facts["order"] = {"secret": secret, "key": secrets.token_hex(32)} if kind == PEER else {}
        facts["authority"] = str(made.authority) if made else ""
        yield Stage(kind, relay, producer, consumer, facts)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _round(value: float) -> float:
    return round(value) if abs(value) >= 1000 else round(value, 3)


# As text


def table(figures: Figures) -> list[str]:
    """The figures for reading."""
    lines = []
    for line, title in (("plain", "plain"), ("tls", "both sides behind TLS")):
        kinds = list(figures[line])
        lines += [title, f"{'':<34}" + "".join(f"{kind:>22}" for kind in kinds)]
        rows = (
            ("one way at 100 tok/s, p50 ms", "latency_ms", "p50"),
            ("  p95 ms", "latency_ms", "p95"),
            ("  p99 ms", "latency_ms", "p99"),
            ("connect to first token, ms", "first_token_ms", "p50"),
            (f"burst of {figures['size']['burst']:,}, tok/s", "burst", "tokens_per_s"),
            (f"burst of {figures['size']['long_burst']:,}, tok/s", "long_burst", "tokens_per_s"),
            ("frame by frame, tok/s", "frame_by_frame", "tokens_per_s"),
        )
        for name, measure, figure in rows:
            if any(measure in figures[line][kind] for kind in kinds):
                lines.append(f"{name:<34}" + "".join(_cell(figures[line][kind].get(measure), figure) for kind in kinds))
        for count in figures[line][kinds[0]].get("channels", {}):
            cells = []
            for kind in kinds:
                found = figures[line][kind]["channels"][count]
                cells.append(f"{found['p50']:.2f}/{found['p95']:.1f} {found['relay_cpu_percent']:.0f}%")
            name = f"{count} channels, p50/p95 ms, CPU"
            lines.append(f"{name:<34}" + "".join(f"{cell:>22}" for cell in cells))
        lines.append("")
    for name in (name for name in figures if "ratio" in name and not name.endswith("_range")):
        if figures[name] is not None:
            low, high = figures[f"{name}_range"]
            lines.append(f"{name:<34}{figures[name]:>10}   ({low} to {high})")
    lines += [
        f"{name:<34}{'met' if found['met'] else 'missed':>10}   (goal {found['goal']})"
        for name, found in figures["goals"].items()
    ]
    return lines


def _cell(found: Figures | None, figure: str) -> str:
    if found is None:
        return f"{'':>22}"
    low, high = found.get(f"{figure}_range", (None, None))
    text = f"{found[figure]:,}" + ("" if low is None else f" ({low:,}-{high:,})")
    return f"{text:>22}"
