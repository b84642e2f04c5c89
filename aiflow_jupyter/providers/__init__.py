"""Where tokens come from: every provider turns its own wire into the one stream of events that `Source` describes.

Importing this package loads nothing; import the provider's module. Provider differences end in this room.
"""
