"""Live views of a run: the monitor, the job panel, and the status line of PPO's critic server."""
