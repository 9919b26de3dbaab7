"""What a notebook knows of a run: its records as columns, charts, alarms, marks and controls, and how it ended."""
