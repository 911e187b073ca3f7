"""From the table to the broker: lanes → fetch → publish → settle. The protocol: docs/internals/relay-protocol.md."""
