"""An independent implementation of ``docs/counting.md`` in plain Python.

It shares no code with the package and is written for reading, not for speed: what it
computes is what the main job is compared with, cell by cell.
"""
