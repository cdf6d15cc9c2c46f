"""Prefect flows, deployments and the command line: what runs when."""
