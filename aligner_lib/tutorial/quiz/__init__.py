"""The questions of the notebooks' quizzes in TOML files, and their parser."""
