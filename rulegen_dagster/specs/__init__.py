"""From an uploaded file to its canonical text and clauses; no model, no database, no clock."""
