"""Prices, ledger, estimate, baseline and report: what each token cost, and why."""
