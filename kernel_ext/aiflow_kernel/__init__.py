"""The kernel half of aiflow-jupyter: the host with its one loop thread, the control channel, and the AiFlow kernel."""
