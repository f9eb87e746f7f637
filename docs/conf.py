"""The site: `make docs` builds it, without a network."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from everfed import __version__

project = "everfed"
author = "The everfed authors"
copyright = author
version = release = __version__

extensions = [
    "myst_nb",  # Markdown, and notebooks that run when the site is built
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "everfed_site",  # what is read off the source: keys, commands, docstrings, diagrams
]
exclude_patterns = ["_ext", "_build", "**.ipynb_checkpoints"]
templates_path = ["_templates"]

html_theme = "furo"
html_title = "everfed"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"  # in the page itself: MathJax would have to be fetched
html_show_sourcelink = False
html_show_copyright = False
html_theme_options = {
    "source_repository": "https://github.com/everfed/everfed/",
    "source_branch": "main",
    "source_directory": "docs/",
}

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_output_stderr = "remove"  # warnings would show where the site was built
# Notebooks run in a folder of their own, so that they leave nothing in the source; one reads data beside it.
nb_execution_in_temp = True
os.environ["EVERFED_PROGRESS"] = "0"  # a finished bar says nothing to a reader
os.environ["EVERFED_DEPLOYMENT"] = str(Path(__file__).parent / "notebooks" / "deployment")

autosummary_generate = True
autodoc_typehints = "none"  # types stand beside the arguments in their descriptions, not in signatures of six lines
autodoc_member_order = "bysource"
add_module_names = False
default_role = "name"  # links to public names, and code

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"

smartquotes = False  # -- begins an option
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!everfed\.).*")]  # other projects' names have no page here
