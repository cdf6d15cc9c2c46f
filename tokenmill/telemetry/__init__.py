"""Phases, utilisation and profiles: where the time of a stage goes."""
