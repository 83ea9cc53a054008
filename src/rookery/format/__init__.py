"""What a message looks like: in memory, in AMQP's encoding, and in the journal."""
