"""The book of channels under any order of events, against the drawing in its docstring."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from aiflow_jupyter.relay.capability import Capability
from aiflow_jupyter.relay.channels import OTHER, Channels
from aiflow_jupyter.relay.limits import Limits
from aiflow_jupyter.relay.request import Refusal

ROLES = st.sampled_from(sorted(OTHER))
TOKENS = st.sampled_from([bytes([number]) * 32 for number in range(3)])
KEY = bytes(8)


class FakeEnd:
    def __init__(self):
        self.peer = None
        self.heard = []
        self.dismissed = None

    def hint(self, code):
        self.heard.append(code)

    def meet(self, peer):
        self.peer = peer

    def dismiss(self, code, reason):
        self.dismissed = code


class ChannelsMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.book = Channels(Limits(channels=4, tombstones=100), b"salt")
        self.now = 100
        self.joined = {}  # (channel, role) -> token of the first join
        self.ends = {}  # (channel, role) -> the attached end
        self.finished = set()
        self.expiry = {}
        self.count = 0

    channels = Bundle("channels")

    @rule(target=channels, lifetime=st.integers(1, 50))
    def open(self, lifetime):
        self.count += 1
        name = self.count.to_bytes(16, "big")
        self.expiry[name] = self.now + lifetime
        if len(self.book) >= 3:
            with pytest.raises(Refusal):
                self.book.open(name, KEY, self.expiry[name], self.now, per_key=3)
            self.finished.add(name)  # never opened: no rule is to use it
            self.expiry[name] = 0
        else:
            self.book.open(name, KEY, self.expiry[name], self.now, per_key=3)
        return name

    @rule(name=channels, role=ROLES, token=TOKENS)
    def join(self, name, role, token):
        if self.expiry[name] < self.now:
            return  # the capability is refused before the book is asked
        capability = Capability(role, name, self.expiry[name], KEY)
        if name in self.finished:
            with pytest.raises(Refusal):
                self.book.find(capability, self.now)
            return
        channel = self.book.find(capability, self.now)
        expected = self.joined.get((name, role), token) == token
        assert channel.admits(role, token) == expected
        if not expected:
            heard = {end: len(end.heard) for end in channel.ends.values()}
            channel.warn()
            assert all(end.heard[count:] == [3] for end, count in heard.items())
            return
        old, peer, end = self.ends.get((name, role)), self.ends.get((name, OTHER[role])), FakeEnd()
        channel.attach(role, token, end)
        self.joined[name, role] = token
        self.ends[name, role] = end
        assert end.heard == [0 if peer is None else 1]
        if peer is not None:
            assert peer.heard[-1] == 2
        if old is not None:
            assert (old.dismissed, old.peer) == (4009, None)
            channel.detach(role, old)  # when its connection is lost, later

    @rule(name=channels, role=ROLES, over=st.booleans())
    def leave(self, name, role, over):
        end = self.ends.pop((name, role), None)
        if end is None:
            return
        channel = self.known[name]
        if over:
            self.book.finish(channel)
            self.finished.add(name)
        channel.detach(role, end)
        peer = self.ends.get((name, OTHER[role]))
        if peer is not None:
            assert (peer.heard[-1], peer.peer) == (0, None)

    @rule(seconds=st.integers(1, 40))
    def expire(self, seconds):
        self.now += seconds
        waiting = self.book.expire(self.now)
        for channel in waiting:
            assert channel.not_after < self.now
            assert len(channel.ends) == 1

    @property
    def known(self):
        return {**getattr(self, "_known", {}), **{channel.id: channel for channel in self.book._open.values()}}

    @invariant()
    def remember(self):
        self._known = self.known

    @invariant()
    def both_ends_face_each_other(self):
        for (name, role), end in self.ends.items():
            assert end.peer is self.ends.get((name, OTHER[role]))

    @invariant()
    def nothing_is_kept_for_channels_that_are_gone(self):
        assert sum(map(len, self.book._of_key.values())) == len(self.book)
        assert all(self.book._of_key.values())


TestChannels = ChannelsMachine.TestCase
