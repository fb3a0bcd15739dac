"""Messages of users' own: parsed, put into CUDA source, compiled at run time."""
