"""What drives a shard: the time, the timer, the journal, and those who wait."""
