"""What a cache of a given size would have missed: traces, policies, bounds, and how
large a site's cache has to be.

A trace is who was asked for, in order of time; a policy replays it. Extra ``cmsspark[cache]``.
"""
