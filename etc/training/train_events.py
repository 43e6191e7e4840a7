"""Trains a network on a sample of events, on one worker or on those that `cmsspark lab
train run` starts.

cmsspark lab train run etc/training/train_events.py --workers 2 -- SAMPLE --model hlf --epochs 6
"""

from cmsspark.apps.events.train_script import main

main()
