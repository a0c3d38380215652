"""These tests start a Ray, each in a process of its own; none runs beside another."""
