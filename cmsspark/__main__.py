"""``python -m cmsspark``: the ``cmsspark`` command of this Python."""

from cmsspark.main import main

if __name__ == "__main__":
    main()
