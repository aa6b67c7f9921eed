"""Float64 references as those of ``blobnet.checkup.reference``, for tests alone: losses, optimizers, dropout."""
