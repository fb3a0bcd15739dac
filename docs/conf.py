"""Sphinx's settings. The source folder is the repository, so links work there and on the site."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import peergraph

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "Peergraph"
author = "The Peergraph developers"
project_copyright = "The Peergraph developers"
version = release = peergraph.__version__

root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "docs/**.rst",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "benchmarks/results/README.md",
    "benchmarks/results/**/README.md",
]
exclude_patterns = [".*", "build", "dist", "csrc", "plugin", "tests"]
if find_spec("dgl") is None:  # there are no wheels of DGL for Python 3.13
    exclude_patterns.append("docs/reference/peergraph_dgl.rst")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "error_messages",
    "mermaid",
    "public_names",
    "repository_links",
]
# --- pages in Markdown
myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
copybutton_prompt_text = "$ "

# --- pages out of docstrings
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_maximum_signature_line_length = 88
default_role = "code"  # single backticks
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

# --- looks
html_theme = "pydata_sphinx_theme"
html_title = "Peergraph"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}
html_sidebars = {name: [] for name in ("docs/index", "docs/how_it_works")}

# --- `make linkcheck`, which needs the internet
linkcheck_timeout = 20
linkcheck_retries = 2
