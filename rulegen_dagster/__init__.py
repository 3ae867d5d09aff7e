"""Written policies become executable, tested rules; no committed work is lost, or paid for twice.

Imports go one way: `defs, cli → resources, workflow → ledger, providers, specs, rules → domain`.
"""
