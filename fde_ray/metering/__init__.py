"""Token counts, prices and the cost ledger."""
