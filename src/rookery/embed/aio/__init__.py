"""The async face of the embedded broker: the one that is written; the blocking face is generated from it."""
