"""Live views of a run: the monitor, the job panel, and the line about PPO's critic server."""
