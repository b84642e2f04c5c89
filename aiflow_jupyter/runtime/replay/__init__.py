"""Traces: what a run's providers gave, recorded with its times, and replayed on a virtual clock or in real time."""
