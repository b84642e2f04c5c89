"""`aiflow worker` brings the worker to a cluster; `aiflow keys worker` makes the key that requests are sealed for."""

# ruff: noqa: PLC0415 - imported when used, so that the command starts quickly
from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import click

from aiflow_jupyter.errors import ConfigError


@click.command()
@click.option(
    "--bundle", type=click.Path(path_type=Path, dir_okay=False), help="Write the worker as one file, a .pyz, here."
)
@click.option("--print-config", is_flag=True, help="Print a Globus Compute endpoint's configuration.")
@click.option("--print-slurm", is_flag=True, help="Print a Slurm job that starts vLLM for the workers.")
def worker(bundle: Path | None, *, print_config: bool, print_slurm: bool) -> None:
    """What runs on the cluster: as one file, and how to set it up. The job itself is `aiflow_jupyter.hpc.worker`."""
    from aiflow_jupyter.hpc import cluster
    from aiflow_jupyter.hpc.bundle import NEEDS, write
    from aiflow_jupyter.hpc.errors import HpcError

    if [bundle is not None, print_config, print_slurm].count(True) != 1:
        raise click.UsageError("choose one of --bundle PATH, --print-config, --print-slurm")
    if print_config or print_slurm:
        click.echo(cluster.CONFIG if print_config else cluster.SLURM, nl=False)
        return
    assert bundle is not None
    try:
        modules = write(bundle)
    except OSError as error:
        raise HpcError(f"{bundle} can't be written: {error.strerror or error}", code="AF991") from None
    click.echo(f"{bundle}  {bundle.stat().st_size:,} bytes  {len(modules)} modules; needs {', '.join(NEEDS)}")


@click.command(name="worker")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="AIFLOW_WORKER_KEY_FILE",
    default=None,
    help="The private key's file.  [default: ~/.aiflow/worker.key]",
)
def worker_key(file: Path | None) -> None:
    """Make this worker's key pair, once, and print its public key; the private one stays in a file of mode 0600."""
    from aiflow_jupyter.hpc.worker import KEY_FILE
    from aiflow_jupyter.relay.crypto import WorkerKey
    from aiflow_jupyter.relay.private import EMPTY, write_private

    try:
        path = (file or Path(KEY_FILE)).expanduser()
    except RuntimeError as error:  # a ~ without a home
        raise ConfigError(f"no place for the key: {error}", code="AF971") from None
    key = WorkerKey.generate()
    if os.path.lexists(path) or not write_private(path, key.secret_text() + "\n"):
        with suppress(OSError):
            if path.is_file() and not path.stat().st_size:
                raise ConfigError(f"the key file {path} is empty", code="AF971", hint=EMPTY)
        key = WorkerKey.load(path, env={})
        click.echo(f"the key in {path} is kept", err=True)
    else:
        click.echo(f"private key in {path}; in aiflow.toml of the notebook's machine, under [tiers.hpc]:", err=True)
        click.echo(f'worker_key = "{key.public}"', err=True)
    click.echo(key.public)
