"""Conversations: questions that follow on each other, kept in full, and folded where a tier's window is too small.

`turns` is what they are made of, `store` keeps them, `open_turn` is a question that is being asked, `folding` makes one
fit into a window, by what `summary` condenses, and `exchange` writes one to a file and reads it back.
"""
