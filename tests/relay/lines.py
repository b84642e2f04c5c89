"""Two ends of a stream with a line between them that the test holds in its hands, in virtual time."""

from __future__ import annotations

from collections import deque
from typing import Any

from aiflow_jupyter.relay.frames import Hint, Status, pack_hint
from aiflow_jupyter.relay.protocol import DEFAULT_LIMITS, Consumer, Producer, StreamLimits, pack

SECRET = bytes(range(32))
CHANNEL = bytes(range(16))


class Line:
    """What is under way stands in `down` (to the consumer) and `up`; what was taken, in `got`."""

    def __init__(
        self,
        limits: StreamLimits = DEFAULT_LIMITS,
        *,
        secret: bytes = SECRET,
        channel: bytes = CHANNEL,
        consumer_secret: bytes | None = None,
        salts: tuple[bytes, bytes] | None = None,
    ) -> None:
        salts = salts or (None, None)
        self.producer = Producer(secret, channel, limits, salt=salts[0])
        self.consumer = Consumer(consumer_secret or secret, channel, limits, salt=salts[1])
        self.now = 0.0
        self.down: deque[bytes] = deque()
        self.up: deque[bytes] = deque()
        self.seen: list[bytes] = []  # all that ever went down
        self.seen_up: list[bytes] = []
        self.sent: list[Any] = []
        self.got: list[Any] = []

    def attach(self, end: str = "both") -> None:
        """Connect, or connect again: what was under way to or from that end is lost."""
        for name, machine in (("producer", self.producer), ("consumer", self.consumer)):
            if end in {name, "both"}:
                machine.detach(self.now)
                self.down.clear()
                self.up.clear()
                machine.attach(self.now)
        self.collect()

    def hint(self, code: Hint = Hint.PRESENT) -> None:
        self.producer.receive(pack_hint(code), self.now)
        self.consumer.receive(pack_hint(code), self.now)
        self.collect()

    def collect(self) -> None:
        down, up = self.producer.data_to_send(), self.consumer.data_to_send()
        self.seen += down
        self.seen_up += up
        self.down += down
        self.up += up

    def send(self, value: Any) -> None:
        self.producer.send(pack(value), self.now)
        self.sent.append(value)
        self.collect()

    def end(self, status: Status = Status.OK, message: str = "") -> None:
        self.producer.end(status, message, self.now)
        self.collect()

    def deliver(self, count: int = 10**9, *, take: bool = True) -> None:
        """Hand over up to `count` messages in order."""
        self.collect()
        while count > 0 and (self.down or self.up):
            if self.down:
                self.consumer.receive(self.down.popleft(), self.now)
                count -= 1
            if self.up and count > 0:
                self.producer.receive(self.up.popleft(), self.now)
                count -= 1
            if take:
                self.take()
            self.collect()

    def take(self) -> None:
        while values := self.consumer.take(self.now):
            self.got += values
        self.collect()

    def wait(self, seconds: float, *, take: bool = True, deliver: bool = True) -> None:
        """Let time pass; both ends' timers fire when they want to."""
        until = self.now + seconds
        while True:
            timers = [due for end in (self.producer, self.consumer) if (due := end.next_timer()) is not None]
            due = min([*timers, until])
            if due >= until:
                break
            self.now = max(due, self.now + 0.001)
            for end in (self.producer, self.consumer):
                if (timer := end.next_timer()) is not None and timer <= self.now:
                    end.tick(self.now)
            self.collect()
            if deliver:
                self.deliver(take=take)
        self.now = until

    def silence(self, machine: Producer | Consumer, seconds: int) -> None:
        """One end's time passes and nothing reaches it."""
        for _ in range(seconds):
            self.now += 1
            machine.tick(self.now)

    def settle(self, seconds: float = 30.0) -> None:
        """An honest line until nothing happens any more."""
        self.deliver()
        until = self.now + seconds
        while self.now < until and not (self.producer.over and self.consumer.over):
            self.wait(0.5)


def joined(limits: StreamLimits = DEFAULT_LIMITS, **options: Any) -> Line:
    """A line whose ends have met."""
    line = Line(limits, **options)
    line.attach()
    line.deliver()
    line.now += 1
    assert line.producer.joined
    assert line.consumer.joined
    return line
