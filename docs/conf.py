"""Sphinx configuration of the documentation site; ``bin/docs`` builds it in strict mode."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cmsspark import __version__

project = "cmsspark"
author = "the cmsspark developers"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"cmsspark {release}"
html_copy_source = False
html_show_copyright = False

# Anchors are made as GitHub makes them, so that one link works there and on the site.
myst_heading_anchors = 4
nitpicky = True
autodoc_member_order = "bysource"
# Types stay in the source: names that are imported for type checkers only cannot be linked.
autodoc_typehints = "none"
