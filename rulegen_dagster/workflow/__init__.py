"""The use cases: the only code that sees ledger, provider and rules together."""
