"""The router sends a request to its tier's provider and nowhere else."""

from __future__ import annotations

import pytest

from aiflow_jupyter.errors import ConfigError, ProviderError
from aiflow_jupyter.events import Event, Finish
from aiflow_jupyter.runtime.source import Request
from aiflow_jupyter.tiers.router import Router

ASKED = ({"role": "user", "content": "Hi"},)


class Provider:
    def __init__(self, fails=None):
        self.fails = fails
        self.requests = []
        self.open = self.closed = 0

    async def stream(self, request):
        self.requests.append(request)
        self.open += 1
        try:
            yield Event("token", "a")
            if self.fails:
                raise self.fails
            yield Event("finish", Finish())
        finally:
            self.open -= 1

    async def aclose(self):
        self.closed += 1


async def kinds(router, tier):
    return [event.kind async for event in router.stream(Request(ASKED, tier=tier))]


@pytest.mark.parametrize(
    ("tiers", "chosen"), [(("local", "hpc", "cloud"), "local"), (("cloud", "hpc"), "hpc"), (("cloud",), "cloud")]
)
async def test_auto_takes_the_nearest_tier_that_is_configured(tiers, chosen):
    providers = {tier: Provider() for tier in tiers}
    assert await kinds(Router(providers), "auto") == ["token", "finish"]
    assert [tier for tier, provider in providers.items() if provider.requests] == [chosen]
    assert providers[chosen].requests[0].tier == chosen


async def test_a_named_tier_is_strict():
    local = Provider()
    with pytest.raises(ConfigError, match="tier 'hpc' is not configured") as caught:
        await kinds(Router({"local": local}), "hpc")
    assert "local" in caught.value.hint
    assert local.requests == []


async def test_nothing_configured_is_an_error():
    with pytest.raises(ConfigError, match="no tier is configured"):
        await kinds(Router({}), "auto")


async def test_a_failure_is_the_providers_and_goes_to_no_other_tier():
    local, cloud = Provider(ProviderError("down")), Provider()
    with pytest.raises(ProviderError, match="down"):
        await kinds(Router({"local": local, "cloud": cloud}), "auto")
    assert (local.open, cloud.requests) == (0, [])


async def test_an_answer_that_is_not_wanted_any_more_is_closed_at_the_provider():
    provider = Provider()
    events = Router({"local": provider}).stream(Request(ASKED, tier="local"))
    await anext(events)
    assert provider.open == 1
    await events.aclose()
    assert provider.open == 0


async def test_closing_closes_every_provider_even_if_one_can_not_be_closed():
    class Stuck(Provider):
        async def aclose(self):
            raise OSError("stuck")

    providers = {"local": Stuck(), "hpc": Provider(), "cloud": Provider()}
    with pytest.raises(OSError, match="stuck"):
        await Router(providers).aclose()
    assert (providers["hpc"].closed, providers["cloud"].closed) == (1, 1)
