"""The widgets' access to runs: metrics as columns, charts, alarms, marks, controls, and the end of a run."""
