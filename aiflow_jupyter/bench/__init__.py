"""Reproducible measurements; each is `aiflow bench NAME --json`, and `aiflow demo` is one of them."""
