"""The provenance checker: runs in the scoring sandbox, standard library only.

`program.main` reads a job and prints one JSON line. `reading` and `documents` turn foreign files
into tables, `values` compares cells, `columns` finds a field's column, `alignment` pairs rows,
`tables` judges one table against its sources, `deliverable` a whole output folder.
"""
