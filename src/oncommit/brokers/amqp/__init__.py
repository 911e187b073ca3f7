"""AMQP 0-9-1, as far as a publisher needs it: frames, channels in confirm mode, a connection."""
