"""Messages sent to readers as they come: server-sent events and WebSockets."""
