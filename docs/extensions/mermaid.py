"""Draws Mermaid's blocks as SVG files while the site is built: pages need no script for them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, ClassVar

import mermaidx
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

# Text is text and not HTML: browsers draw it in an image too.
_CONFIG = {"htmlLabels": False, "flowchart": {"htmlLabels": False, "useMaxWidth": False}}
_FOLDER = Path("build/mermaid")  # below the source folder, where Sphinx looks for images


class Mermaid(SphinxDirective):
    """A picture of the block; what Mermaid cannot read is an error."""

    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {"alt": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        source = "\n".join(self.content)
        name = hashlib.sha256(f"{mermaidx.__version__}{_CONFIG}{source}".encode()).hexdigest()[:16]
        path = Path(self.env.srcdir) / _FOLDER / f"{name}.svg"
        if not path.exists():
            try:
                svg = mermaidx.render(source, config=_CONFIG).svg()
            except RuntimeError as error:
                raise self.error(str(error)) from error
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(svg)
        picture = nodes.image(uri=f"/{_FOLDER / path.name}", classes=["diagram"])
        picture["alt"] = self.options.get("alt", "diagram")
        return [picture]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
