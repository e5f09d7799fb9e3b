"""Creates files and folders that only their owner may read or write. Everything that the server writes is created
by this package, or with the file modes that it defines."""
