"""The pipelines that come with the broker: what became of messages, streams kept for good, dead letters, replay."""
