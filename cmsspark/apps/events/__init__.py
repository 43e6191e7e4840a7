"""Physics events: ROOT files → features → samples → classifiers. Needs the extra ``cmsspark[events]``."""
