"""Files and folders for their owner alone. Everything that we write goes through here, or is opened as here."""
