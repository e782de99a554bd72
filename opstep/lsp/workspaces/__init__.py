"""What the language server shows of recorded runs beside the program's lines."""
