"""Messages that users write: parsed, translated to CUDA, compiled at run time."""
