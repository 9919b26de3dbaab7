"""The questions of the notebooks' quizzes: a TOML file each, and what reads them."""
