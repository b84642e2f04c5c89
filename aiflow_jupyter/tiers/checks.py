"""What `aiflow doctor` finds of the configuration and of the tiers. All waits run at once; no secret is shown."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from aiflow_jupyter.errors import AiflowError
from aiflow_jupyter.hpc import checks
from aiflow_jupyter.hpc.findings import Finding

if TYPE_CHECKING:
    from aiflow_jupyter.tiers.sections import AnyHpc, Config, LocalHpc

_BRIEF = 30  # seconds that the channel of a check may be joined; nobody does


def examine() -> list[Finding]:
    """Look at the settings, and at all that the tiers need which are on.

    Takes at most some seconds: each look has a deadline, and those that wait do so together.
    """
    from aiflow_jupyter.tiers import config  # noqa: PLC0415 - pydantic is loaded when first needed

    path = config.user_file()
    try:
        settings = config.load()
    except AiflowError as error:
        return [Finding("settings", error.message, wrong=True, mend=error.hint)]
    read = [str(file) for file in (path, Path(config.FILE).absolute()) if file.is_file()]
    found = [Finding("settings", f"read: {', '.join(dict.fromkeys(read))}" if read else f"none; {config.place()}")]
    return found + asyncio.run(_tiers(settings, path))


async def _tiers(settings: Config, path: Path) -> list[Finding]:
    hpc = settings.tiers.hpc
    looks = [_servers(settings, path)]
    if hpc is None:
        off = Finding("hpc tier", f"off; a section [tiers.hpc] in {path} turns it on")
        return [finding for part in await asyncio.gather(*looks) for finding in part] + [off]
    on = Finding("hpc tier", f'on, executor = "{hpc.executor}"')
    looks.append(_relay(hpc))
    at_once = []
    if hpc.executor == "local":
        looks.append(_one(model_server(hpc)))
    else:
        at_once.append(_worker_key(hpc.worker_key))
        if hpc.executor == "globus":
            looks.append(_globus())
        else:
            at_once.append(_factory(hpc.factory))
    servers, *others = await asyncio.gather(*looks)
    return [*servers, on, *at_once, *(finding for part in others for finding in part)]


async def _servers(settings: Config, path: Path) -> list[Finding]:
    """The local and the cloud tier, and how one is chosen."""
    from aiflow_jupyter.tiers import overview  # noqa: PLC0415
    from aiflow_jupyter.tiers.discovery import Discovery  # noqa: PLC0415

    local = await Discovery().settle(settings.tiers.local)
    tiers = settings.tiers.model_copy(update={"local": local, "hpc": None})
    seen = await overview.look(settings.model_copy(update={"tiers": tiers}))
    found = []
    for tier in seen.tiers:
        what = f"{tier.tier} tier"
        if tier.configured:
            who = " ".join(part for part in (tier.provider, tier.model) if part)
            mend = "" if tier.well else f"[tiers.{tier.tier}] in {path} says who answers; aiflow tiers shows it"
            found.append(Finding(what, f"{who}: {tier.health}", tier.well is False, mend))
            if tier.key is not None:
                there = "is there" if tier.key.present else f"is not there; {tier.key.setting} names it"
                mend = "" if tier.key.present else "set it before this starts, or name a file of mode 0600: key_file"
                found.append(Finding(f"{tier.tier} key", f"{tier.key.place} {there}", not tier.key.present, mend))
        elif tier.tier == "cloud":
            found.append(Finding(what, f"off; a section [tiers.cloud] in {path} turns it on"))
    found.append(Finding("routing", seen.routing()))
    return found


async def _relay(settings: AnyHpc) -> list[Finding]:
    """The key that opens channels, the relay, and whether it takes that key."""
    if settings.relay == "self":
        where = settings.relay_public_host or settings.relay_host
        return [Finding("relay", f"this kernel's own, reached at {where}; it starts with the first question")]
    key = _key_place(settings)
    ready = await checks.relay(settings.relay)
    if key.wrong or ready.wrong:
        return [key, ready]
    return [key, ready, await _taken(settings)]


def _key_place(settings: AnyHpc) -> Finding:
    name, path = settings.relay_key_env, settings.relay_key_file
    mend = "Its operator makes one: aiflow keys relay add NAME"
    if name is not None:
        there = bool(os.environ.get(name, "").strip())
        found = f"in the environment, {name}" if there else f"{name} is not set here"
        return Finding("relay key", found, not there, "" if there else f"export {name}=... before this starts. {mend}")
    if path is None:
        return Finding("relay key", "neither relay_key_env nor relay_key_file names one", wrong=True, mend=mend)
    return checks.private_file("relay key", path.expanduser(), mend)


async def _taken(settings: AnyHpc) -> Finding:
    """Whether the relay takes the key: a channel is opened, which nobody joins and which soon expires."""
    from aiflow_jupyter.relay.link import create_channel  # noqa: PLC0415
    from aiflow_jupyter.tiers.keys import relay_key  # noqa: PLC0415

    try:
        key = relay_key(settings)
        async with asyncio.timeout(checks.PATIENCE):
            await create_channel(settings.relay, key.reveal(), int(time.time()) + _BRIEF, timeout=checks.PATIENCE)
    except AiflowError as error:
        return Finding("relay takes key", error.message, wrong=True, mend=error.hint)
    except TimeoutError:
        return Finding("relay takes key", f"no answer within {checks.PATIENCE:g} s", wrong=True, mend="Run it again.")
    return Finding("relay takes key", "yes")


def _worker_key(text: str) -> Finding:
    from aiflow_jupyter.hpc.provider import check_key  # noqa: PLC0415

    try:
        check_key(text)
    except AiflowError as error:
        return Finding("worker key", error.message, wrong=True, mend=error.hint)
    return Finding("worker key", f"a public key; python aiflow-worker.pyz check there shows the same: {text}")


def _factory(factory: str) -> Finding:
    """Whether the module is there; it is not run, as it may start workers."""
    module = factory.partition(":")[0]
    try:
        there = find_spec(module) is not None
    except (ImportError, ValueError):
        there = False
    mend = "" if there else "Its folder has to be on PYTHONPATH, or the module installed."
    return Finding("factory", factory if there else f"there is no module {module}", not there, mend)


async def model_server(settings: LocalHpc) -> Finding:
    """Whether the model server answers that a worker of this machine would ask."""
    from aiflow_jupyter.hpc.modelserver import BY_SETTING, NotReadyError, Server  # noqa: PLC0415
    from aiflow_jupyter.tiers.keys import model_server_key  # noqa: PLC0415

    try:
        key = model_server_key(settings)
        named = settings.model_server
        server = Server(named, key.reveal() if key else "", BY_SETTING) if named else Server.find()
    except NotReadyError as error:
        mend = 'model_server = "http://127.0.0.1:8000/v1"; for a try, `aiflow models serve` plays one'
        return Finding("model server", str(error), wrong=True, mend=mend)
    except AiflowError as error:
        return Finding("model server", error.message, wrong=True, mend=error.hint)
    return await checks.model_server(server)


async def _one(look: Awaitable[Finding]) -> list[Finding]:
    return [await look]


async def _globus() -> list[Finding]:
    from aiflow_jupyter.hpc.globus import logged_in  # noqa: PLC0415

    what = "globus login"
    try:
        async with asyncio.timeout(2 * checks.PATIENCE):
            await asyncio.to_thread(logged_in)
    except AiflowError as error:
        return [Finding(what, error.message, wrong=True, mend=error.hint)]
    except TimeoutError:
        return [Finding(what, f"can't be told within {2 * checks.PATIENCE:g} s", mend="Is Globus reachable from here?")]
    return [Finding(what, "there is one")]
