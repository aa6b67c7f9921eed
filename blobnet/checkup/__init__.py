"""Whether devices compute rightly: what ``blobnet doctor`` runs, in processes that may die of it (docs/doctor.md)."""
