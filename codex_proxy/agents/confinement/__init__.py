"""Keeps the processes of agents from files of the user, with Landlock, bubblewrap or Codex's sandbox."""
