"""A stress run: see __main__. What is set here is set before torch is loaded."""

import os

# Traces of what peers did to connections of torch's, which is what a stress run is about.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
