"""The pages that `opstep ws W.db open` adds to Datasette: runs, programs, ops, plots."""
