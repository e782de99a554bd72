"""Questions, links, figures and plots that `opstep ws W.db open` adds to Datasette."""
