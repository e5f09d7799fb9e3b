"""Worker processes for tasks that may take long, with limits of CPU time and memory."""
