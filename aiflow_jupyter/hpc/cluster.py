"""Texts for a cluster: the endpoint's configuration and the job that starts the model server."""

from __future__ import annotations

from typing import Final

from aiflow_jupyter.hpc.checks import install

CONFIG: Final = f"""\
# user_config_template.yaml.j2 of the Globus Compute endpoint.
# Workers only carry tokens: many fit on one CPU node, and the GPU is the model server's.
# Once, with the Python 3.11 or later of the cluster that the endpoint runs in:
#   (where aiflow-jupyter is whole)  aiflow worker --bundle aiflow-worker.pyz     and copy that file to the cluster:
#   mkdir -p ~/.aiflow && cp aiflow-worker.pyz ~/.aiflow/
#   {install()}
#   python3 ~/.aiflow/aiflow-worker.pyz keys                 (its public line goes into aiflow.toml: worker_key)
#   python3 ~/.aiflow/aiflow-worker.pyz check --relay https://relay.example.org
# Nothing else is needed there. After a new bundle or a new key, start the endpoint again.
engine:
  type: GlobusComputeEngine
  max_workers_per_node: 32
  provider:
    type: SlurmProvider
    partition: CHANGE_ME
    account: CHANGE_ME
    init_blocks: 0
    min_blocks: 0
    max_blocks: 1
    walltime: "08:00:00"
    worker_init: |
      export PYTHONPATH="$HOME/.aiflow/aiflow-worker.pyz${{PYTHONPATH:+:$PYTHONPATH}}"
      export AIFLOW_WORKER_KEY_FILE="$HOME/.aiflow/worker.key"
      export AIFLOW_MODEL_SERVER_FILE="$HOME/.aiflow/server.json"
      # Where nodes reach the internet by a proxy only: export HTTPS_PROXY=http://proxy.example.org:3128
"""

SLURM: Final = """\
#!/bin/bash
#SBATCH --job-name=aiflow-vllm
#SBATCH --partition=CHANGE_ME
#SBATCH --account=CHANGE_ME
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=08:00:00
# Starts vLLM and tells the workers where it is, in a file that only you can read. The key is made for this job alone;
# it travels in the environment, since every user of the node can read a command line.
set -euo pipefail
umask 077
vllm=""

model="${1:-Qwen/Qwen3-8B}"
file="${AIFLOW_MODEL_SERVER_FILE:-$HOME/.aiflow/server.json}"
mkdir -p "$(dirname "$file")"

VLLM_API_KEY="$(python3 -c 'import secrets; print(secrets.token_urlsafe(32))')"
export VLLM_API_KEY
port="$(python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')"

draft="$(mktemp "$file.XXXXXX")"
printf '{"url": "http://%s:%s/v1", "key": "%s"}\\n' "$(hostname -f)" "$port" "$VLLM_API_KEY" > "$draft"
mv "$draft" "$file"
# A later job may have written its own; only this one's is removed.
leave() {
  if grep -qsF "$VLLM_API_KEY" "$file"; then rm -f "$file"; fi
  [ -z "$vllm" ] || kill "$vllm" 2>/dev/null || true
}
trap leave EXIT
trap 'exit 143' TERM

vllm serve "$model" --host 0.0.0.0 --port "$port" &
vllm=$!
wait "$vllm"
"""
