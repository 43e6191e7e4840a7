"""What ``cmsspark`` runs: one file a command. :mod:`cmsspark.cli` names them."""
