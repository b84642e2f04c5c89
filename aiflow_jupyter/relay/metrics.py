"""What a relay counts, and its Prometheus text. No channel, key, address or name is in it."""

from __future__ import annotations

from collections import Counter


class Metrics:
    """Counters of one relay; plain integers, because two of them are raised for every frame."""

    __slots__ = (
        "bytes",
        "channels_abandoned",
        "channels_finished",
        "channels_opened",
        "closes",
        "dropped",
        "frames",
        "joins",
        "paused_seconds",
        "refusals",
        "started",
    )

    def __init__(self, now: float) -> None:
        self.started = now
        self.frames = 0
        self.bytes = 0
        self.dropped = 0
        self.joins = 0
        self.channels_opened = 0
        self.channels_finished = 0
        self.channels_abandoned = 0
        self.paused_seconds = 0.0
        self.refusals: Counter[str] = Counter()
        self.closes: Counter[int] = Counter()

    def text(self, *, now: float, channels: int, sockets: int, attached: int, queued: int, draining: bool) -> str:
        """The Prometheus text format, version 0.0.4."""
        rows: list[str] = []

        def family(name: str, kind: str, explanation: str, *values: tuple[str, float]) -> None:
            rows.extend((f"# HELP aiflow_relay_{name} {explanation}", f"# TYPE aiflow_relay_{name} {kind}"))
            rows.extend(f"aiflow_relay_{name}{labels} {value}" for labels, value in values)

        family("uptime_seconds", "gauge", "Seconds since the start.", ("", round(now - self.started, 3)))
        family("draining", "gauge", "1 while the relay goes away.", ("", int(draining)))
        family("channels", "gauge", "Channels neither finished nor expired.", ("", channels))
        family("sockets", "gauge", "Open sockets, in whatever state.", ("", sockets))
        family("attached", "gauge", "Sockets that are an end of a channel.", ("", attached))
        family("queued_bytes", "gauge", "Bytes waiting for slow sockets.", ("", queued))
        family("channels_opened_total", "counter", "Channels opened.", ("", self.channels_opened))
        family("channels_finished_total", "counter", "Channels that an end finished.", ("", self.channels_finished))
        family("channels_abandoned_total", "counter", "Channels both ends left.", ("", self.channels_abandoned))
        family("joins_total", "counter", "Accepted joins.", ("", self.joins))
        family("frames_total", "counter", "Messages forwarded.", ("", self.frames))
        family("bytes_total", "counter", "Bytes of the messages forwarded.", ("", self.bytes))
        family("dropped_frames_total", "counter", "Messages for an absent peer.", ("", self.dropped))
        family("paused_seconds_total", "counter", "Seconds senders were not read.", ("", round(self.paused_seconds, 6)))
        refusals = [(f'{{reason="{reason}"}}', count) for reason, count in sorted(self.refusals.items())]
        family("refusals_total", "counter", "Requests refused, by reason.", *refusals)
        closes = [(f'{{code="{code}"}}', count) for code, count in sorted(self.closes.items())]
        family("closes_total", "counter", "Sockets closed by the relay, by code.", *closes)
        return "\n".join(rows) + "\n"
