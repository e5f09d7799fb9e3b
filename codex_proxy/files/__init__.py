"""Files and folders that only their owner may read or write. Everything that the server writes is created by this
package or with its modes."""
