"""Streaming LLM graphs in Jupyter."""
