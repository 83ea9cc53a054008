"""The care of a data directory from outside: look at it, repair it, copy it."""
