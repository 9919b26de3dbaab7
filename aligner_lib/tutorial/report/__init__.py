"""Results for the learner: the report, the portfolio, and the table of progress."""
