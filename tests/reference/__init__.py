"""Float64 references as those of ``blobnet.examination.reference``, for tests alone: losses, optimizers, dropout."""
