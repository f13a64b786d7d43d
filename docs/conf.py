"""How Sphinx builds this documentation; every warning is an error (see scripts/check)."""

from curl_rl import __version__

project = "curl-rl"
copyright = "the curl-rl authors"
version = release = __version__
extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"curl-rl {__version__}"
