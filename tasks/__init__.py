"""Prefect tasks: one file a stage: where it runs, retries, timeout, skip rule, artifacts."""
