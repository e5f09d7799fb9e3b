"""What runs the processes of agents: the sessions of their turns, the transports, and what the processes report."""
