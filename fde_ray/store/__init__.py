"""The run store and the object store."""
