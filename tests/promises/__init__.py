"""The ledger of promises: every sentence that binds a student, and the check that asks for it."""
