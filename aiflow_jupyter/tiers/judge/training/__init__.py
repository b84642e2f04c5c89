"""Makes the classifier's model file from labelled queries: `python -m aiflow_jupyter.tiers.judge.training --help`.

It needs scikit-learn and torch, which nothing else of the package does.
"""
