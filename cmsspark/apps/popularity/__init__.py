"""Which datasets will be popular: features of the past, models, and an evaluation that
never looks ahead.

Extra ``cmsspark[popularity]``.
"""
