"""`aiflow worker` brings the worker to a cluster; `aiflow keys worker` makes the key that requests are sealed for.

`aiflow login` is for Globus.
"""

# ruff: noqa: PLC0415 - imported when used, so that the command starts quickly
from __future__ import annotations

from pathlib import Path

import click


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
    if not bundle.absolute().parent.is_dir():
        raise HpcError(
            f"there is no folder {bundle.absolute().parent}", code="AF991", hint="Make it first, or name another one."
        )
    try:
        modules = write(bundle)
    except OSError as error:
        raise HpcError(f"{bundle} can't be written: {error.strerror or error}", code="AF991") from None
    click.echo(f"{bundle}  {bundle.stat().st_size:,} bytes  {len(modules)} modules; needs {', '.join(NEEDS)}")


@click.command()
def login() -> None:
    """Log in to Globus, for the hpc tier; it may ask for a code. `%aiflow login` does it in a notebook."""
    from aiflow_jupyter.hpc import globus

    globus.login()
    click.echo("logged in to Globus")


@click.command(name="worker")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="AIFLOW_WORKER_KEY_FILE",
    default=None,
    help="The private key's file.  [default: ~/.aiflow/worker.key]",
)
@click.option("--force", is_flag=True, help="Make a new key in the place of an old one, which is then gone.")
def worker_key(file: Path | None, *, force: bool) -> None:
    """Make this worker's key pair, once, and print its public key; the private one stays in a file of mode 0600.

    On a cluster without `aiflow`, `python aiflow-worker.pyz keys` does the same.
    """
    from aiflow_jupyter.hpc.keyfile import key_pair

    key, told = key_pair(file, replace=force)
    click.echo("\n".join(told), err=True)
    click.echo(key.public)
