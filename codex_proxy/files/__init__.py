"""Files: private ones, ones that are put below a folder of others, and changes of a folder."""
