"""The benchmark's rules as pure functions and state machines."""
