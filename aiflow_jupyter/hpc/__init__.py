"""The control plane: how a job on a cluster is started, and how its stream comes back."""
