"""Creates files and folders that only their owner may read or write."""
