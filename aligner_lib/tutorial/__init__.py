"""The notebooks: their workspace, running them in order, and the report of what came out."""
