"""Worker processes for tasks that may take long: each has a limit of CPU time and memory, and can be killed."""
