"""What a learner keeps: the report, the portfolio, and the table of progress."""
