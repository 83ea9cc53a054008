"""The async face of the client: the one that is written; the blocking face is generated from it."""
