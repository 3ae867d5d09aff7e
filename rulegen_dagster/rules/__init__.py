"""Rules: the language, its engine, grounding, drafts and validation."""
