"""Checks that devices compute rightly: ``blobnet doctor`` runs them in child processes (docs/doctor.md)."""
