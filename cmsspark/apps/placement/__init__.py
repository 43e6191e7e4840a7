"""Which datasets deserve another copy on disk, where, and which copy can go; replays
judge such plans on past weeks.

Forecasts of popularity come from outside: probabilities of the datasets for one week.
"""
