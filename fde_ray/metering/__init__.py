"""What calls cost: a write-ahead ledger in the path of every call, pinned prices, budgets.

`ledger.MeteredChat` is the way to every model. `prices` turns usage into nano-dollars, `budgets`
refuses what a run may not spend, `chunks` folds streams into replies and back.
"""
