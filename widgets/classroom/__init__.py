"""Every participant of a workshop at a glance."""
