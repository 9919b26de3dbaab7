"""An overview of all participants of a workshop."""
