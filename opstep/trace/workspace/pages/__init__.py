"""What `opstep ws W.db open` adds to Datasette: questions, links, figures and plots."""
