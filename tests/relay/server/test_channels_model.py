"""The book of channels under any order of events, against the drawing in its docstring."""

from __future__ import annotations

import copy

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
        self.book = Channels(Limits(channels=4, tombstones=100, abandon_timeout=20), b"salt")
        self.now = 100
        self.joined = {}  # (channel, role) -> token of the first join
        self.ends = {}  # (channel, role) -> the attached end
        self.finished = set()
        self.left = {}  # channel -> when an end last left
        self.expiry = {}
        self.count = 0

    channels = Bundle("channels")

    @rule(target=channels, lifetime=st.integers(1, 200))
    def open(self, lifetime):
        self.count += 1
        name = self.count.to_bytes(16, "big")
        self.expiry[name] = self.now + lifetime
        if len(self.book) >= 3:
            with pytest.raises(Refusal) as caught:
                self.book.open(name, KEY, self.expiry[name], self.now, self.now, per_key=3)
            self.finished.add(name)  # never opened: no rule is to use it
            self.expiry[name] = 0
            self.who_comes_when_told_finds_room(caught.value)
        else:
            self.book.open(name, KEY, self.expiry[name], self.now, self.now, per_key=3)
        return name

    def who_comes_when_told_finds_room(self, refusal):
        after = refusal.headers.get("Retry-After")
        if after is None:
            assert all(len(channel.ends) == 2 for channel in self.book._open.values())
            return
        later, then = copy.deepcopy(self.book), self.now + int(after)
        later.expire(then, then)
        later.open(bytes(16), KEY, then + 1, then, then, per_key=3)

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
            channel.detach(role, old, self.now)  # when its connection is lost, later

    @rule(name=channels, role=ROLES, over=st.booleans())
    def leave(self, name, role, over):
        end = self.ends.pop((name, role), None)
        if end is None:
            return
        channel = self.known[name]
        self.left[name] = self.now
        if over:
            self.book.finish(channel, role)
            self.finished.add(name)
            self.lose(channel, 4010)
        channel.detach(role, end, self.now)
        peer = self.ends.get((name, OTHER[role]))
        if peer is not None:
            assert (peer.heard[-1], peer.peer) == (0, None)

    def lose(self, channel, code):
        """The ends that the book has dismissed leave."""
        for role in OTHER:
            end = self.ends.pop((channel.id, role), None)
            if end is not None:
                assert end.dismissed == code
                channel.detach(role, end, self.now)

    @rule(name=channels, token=TOKENS)
    def pass_by(self, name, token):
        """Both ends come, if they may, and are lost."""
        for role in OTHER:
            self.join(name, role, token)
        for role in OTHER:
            self.leave(name, role, over=False)

    @rule(seconds=st.integers(1, 40))
    def expire(self, seconds):
        self.now += seconds
        before = list(self.book._open.values())
        abandoned = self.book.expire(self.now, self.now)
        for channel in before:
            roles = [role for role in OTHER if (channel.id, role) in self.ends]
            both_came = all((channel.id, role) in self.joined for role in OTHER)
            expired = channel.not_after < self.now and len(roles) < 2
            given_up = both_came and not roles and self.now - self.left[channel.id] > 20 and not expired
            assert (channel in abandoned) == given_up
            assert (channel.id not in self.book._open) == (expired or given_up)
            if given_up:
                self.finished.add(channel.id)
            if expired:
                self.lose(channel, 4012)

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
    def nobody_is_left_where_nothing_comes_any_more(self):
        assert all(name in self.book._open for name, _ in self.ends)

    @invariant()
    def nothing_is_kept_for_channels_that_are_gone(self):
        assert sum(map(len, self.book._of_key.values())) == len(self.book)
        assert all(self.book._of_key.values())


TestChannels = ChannelsMachine.TestCase
