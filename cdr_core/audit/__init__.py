"""Ledger, proof and receipt."""
