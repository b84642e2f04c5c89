"""`aiflow relay` runs a relay; `aiflow keys relay` says who may open channels on it."""

# ruff: noqa: PLC0415 - imported when used, so that the command starts quickly
from __future__ import annotations

from pathlib import Path

import click

from aiflow_jupyter.errors import ConfigError

STATE = "~/.aiflow/relay"

_state = click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="AIFLOW_RELAY_STATE",
    default=STATE,
    show_default=True,
    help="Directory of the relay's secret and its key file.",
)


@click.command()
@_state
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="0 for any free one.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Certificate chain (PEM); with --tls-key.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Private key (PEM).")
@click.option("--behind-proxy", is_flag=True, help="A reverse proxy ends TLS in front of the relay.")
@click.option(
    "--trusted-proxy", multiple=True, metavar="NETWORK", help="Believe X-Forwarded-For from here; repeatable."
)
@click.option("--insecure", is_flag=True, help="Serve other machines without TLS: capabilities can be read on the way.")
@click.option(
    "--metrics-token-file", type=click.Path(path_type=Path), help="0600 file; /metrics then needs this token."
)
@click.option("--channels", type=click.IntRange(min=1), default=None, help="Open channels of the whole relay.")
@click.option("--sockets", type=click.IntRange(min=2), default=None, help="Open sockets of the whole relay.")
@click.option("--channels-per-key", type=click.IntRange(min=1), default=None, help="Open channels of one key.")
@click.option("--bytes-per-second", type=click.IntRange(min=1024), default=None, help="Rate of one channel.")
@click.option("--max-lifetime", type=click.FloatRange(min=1), default=None, metavar="SECONDS", help="Of a channel.")
@click.option("--drain", type=click.FloatRange(min=0), default=None, metavar="SECONDS", help="Grace after SIGTERM.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
def relay(
    state: Path,
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    trusted_proxy: tuple[str, ...],
    metrics_token_file: Path | None,
    log_level: str,
    *,
    behind_proxy: bool,
    insecure: bool,
    **limits: float | None,
) -> None:
    """Run a relay that pairs the two ends of a stream and can read neither."""
    import logging

    from aiflow_jupyter.relay import loops
    from aiflow_jupyter.relay.capability import Secret
    from aiflow_jupyter.relay.keys import KeyStore
    from aiflow_jupyter.relay.limits import Limits
    from aiflow_jupyter.relay.private import read_private
    from aiflow_jupyter.relay.server import RelayServer
    from aiflow_jupyter.relay.service import run, tls_context

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key go together")
    tls = tls_context(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    directory = _directory(state)
    server = RelayServer(
        KeyStore(directory / "keys.json"),
        host=host,
        port=port,
        secret=Secret.load(directory / "secret"),
        limits=Limits(**{name: value for name, value in limits.items() if value is not None}),  # type: ignore[arg-type]
        tls=tls,
        behind_proxy=behind_proxy,
        insecure=insecure,
        trusted_proxies=trusted_proxy,
        metrics_token=read_private(metrics_token_file).strip() if metrics_token_file is not None else None,
    )
    loops.run(run(server, lambda: click.echo(f"relay on {server.url}; keys: {directory / 'keys.json'}", err=True)))


@click.group()
def keys() -> None:
    """Keys of this machine."""


@keys.group(name="relay")
def relay_keys() -> None:
    """Who may open channels on the relay of this machine; a running relay takes changes at once."""


@relay_keys.command()
@click.argument("name")
@click.option("--channels", type=click.IntRange(min=0), default=None, help="Open channels at a time.")
@click.option("--joins-per-minute", type=click.IntRange(min=0), default=None, help="Joins with its capabilities.")
@_state
def add(name: str, channels: int | None, joins_per_minute: int | None, state: Path) -> None:
    """Make a personal key and print it, this once; the relay keeps only its hash."""
    from aiflow_jupyter.relay.keys import KeyStore

    store = KeyStore(_directory(state) / "keys.json")
    click.echo(store.add(name, channels=channels, joins_per_minute=joins_per_minute))
    click.echo(
        "Keep it now: it is not shown again. Its owner puts it, on the notebook's machine, into a file of mode 0600\n"
        "or into an environment variable, and names that in aiflow.toml, under [tiers.hpc]:\n"
        '  relay_key_file = "relay.key"   or   relay_key_env = "AIFLOW_RELAY_KEY"',
        err=True,
    )


@relay_keys.command(name="list")
@_state
def list_(state: Path) -> None:
    """The names of the keys and their limits."""
    from aiflow_jupyter.relay.keys import KeyStore

    for key in KeyStore(_directory(state) / "keys.json").names():
        channels = "default" if key.channels is None else key.channels
        joins = "default" if key.joins_per_minute is None else key.joins_per_minute
        click.echo(f"{key.name}  channels {channels}  joins per minute {joins}")


@relay_keys.command()
@click.argument("name")
@_state
def revoke(name: str, state: Path) -> None:
    """Forget a key: it opens no more channels, and those it opened can't be joined any more."""
    from aiflow_jupyter.relay.keys import KeyStore

    KeyStore(_directory(state) / "keys.json").revoke(name)
    click.echo(f"revoked {name}")


def _directory(state: Path) -> Path:
    try:
        directory = state.expanduser()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"the relay's state can't be in {state}: {getattr(error, 'strerror', '') or error}",
            code="AF971",
            hint="Name a directory that is yours, or can be made: --state or AIFLOW_RELAY_STATE.",
        ) from None
    return directory
